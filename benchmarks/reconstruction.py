"""Reconstruction attacks of the papers: Tables 6 and 7 of Feng et al. (003) and Fig. 4 of Li et al. (004).

    python benchmarks/reconstruction.py pack                     # 10,000 CIFAR-10 pictures and the digits -> carry/
    python benchmarks/reconstruction.py table6 --seconds 150     # inverting gradients; also table7, fig4
    python benchmarks/reconstruction.py all --seconds 420 --workers 8
    python benchmarks/reconstruction.py gather                   # all cells -> results.json and pictures.npz
    python benchmarks/reconstruction.py page                     # -> docs/results/reconstruction.md and its grids

Every cell of a table is one file under --out; a cell that is there is not computed again. --tiny is a trial on a CPU.
`all` starts --workers processes, each with its own share of the cells, because one attack leaves most of a GPU idle.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

import sordino
from sordino.attacks.acgan import AuxiliaryClassifierGan
from sordino.attacks.base import Knowledge, Victim
from sordino.attacks.inverting_gradients import InvertingGradients
from sordino.attacks.model_inversion import ModelInversion
from sordino.core import plugin
from sordino.core.local_training import Local
from sordino.core.types import Batch, Model
from sordino.core.vector import Layout
from sordino.core.view import View
from sordino.gradients import CohortGradients
from sordino.red_team import picture_metrics as metrics
from sordino.tasks.losses import cross_entropy

ROOT = Path(__file__).parents[1]
PACKED = ROOT / "carry" / "reconstruction.npz"
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SCALES = {"cifar10": ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)), "digits": ((0.1307,), (0.3081,))}
SHAPES = {"cifar10": (3, 32, 32), "digits": (1, 28, 28)}
NAMES = {"cifar10": ("airplane", "car", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
         "digits": tuple("0123456789")}  # fmt: skip
PRIVATE = {"cifar10": (8, 1), "digits": (6, 5)}  # ship and car, as in Fig. 4; 6 and, in place of the letter s, 5
UDP = {"laplace": "UDP-FL, Laplace", "staircase": "UDP-FL, staircase"}
EPSILONS = (2.0, 8.0)


# --- cells: what is computed, by name


def table6() -> dict[str, dict[str, Any]]:
    """Inverting gradients on CIFAR-10: one picture, and the mean gradient of about 100."""
    out: dict[str, dict[str, Any]] = {}
    for batch in (1, 100):
        out[f"table6/none/-/{batch}"] = {"model": "cnn-cifar", "batch": batch, "keys": {"method": "none"}}
        for name, keys in mechanisms().items():
            out |= {
                f"table6/{name}/{e:g}/{batch}": {"model": "cnn-cifar", "batch": batch, "keys": keys | {"epsilon": e}}
                for e in EPSILONS
            }
    out["table6/none, ResNet-18/-/1"] = {"model": "resnet18", "batch": 1, "keys": {"method": "none"}}
    return out


def table7() -> dict[str, dict[str, Any]]:
    """Model inversion on CIFAR-10."""
    out = {"table7/none/-": {"model": "cnn-cifar", "keys": {"method": "none"}}}
    for name, keys in mechanisms().items():
        out |= {f"table7/{name}/{e:g}": {"model": "cnn-cifar", "keys": keys | {"epsilon": e}} for e in EPSILONS}
    out["table7/none, ResNet-18/-"] = {"model": "resnet18", "keys": {"method": "none"}}
    return out


def mechanisms() -> dict[str, dict[str, Any]]:
    out: dict[str, dict[str, Any]] = {"DP-SGD": {"method": "dp-sgd", "clip": 0.01}}
    for mechanism, name in UDP.items():
        out[f"{name}, as printed"] = {"method": "udp-fl-paper", "mechanism": mechanism, "clip": 0.01}
        out[f"{name}, sound"] = {"method": "udp-fl", "mechanism": mechanism, "clip": 0.01}
    return out


def fig4() -> dict[str, dict[str, Any]]:
    """ACGAN by a client without private records."""
    printed: dict[str, dict[str, Any]] = {
        "NbAFL": {"method": "nbafl-paper", "scope": "round"},
        "Time-varying DP": {"method": "geodp-paper", "scope": "round", "noise_ratio": 0.995},
        "Sensitive DP": {"method": "adaptive-noise-paper", "scope": "round", "reading": "per-dataset"},
        "FedSDP": {"method": "fedsdp-paper"},
    }
    sound = {"NbAFL": "nbafl", "Time-varying DP": "geodp", "Sensitive DP": "adaptive-noise", "FedSDP": "fedsdp"}
    out: dict[str, dict[str, Any]] = {}
    for dataset, bound in (("cifar10", 1.0), ("digits", 0.1)):
        out[f"fig4/{dataset}/no training/-"] = {"dataset": dataset, "keys": None}
        out[f"fig4/{dataset}/FedAvg/-"] = {"dataset": dataset, "keys": {"method": "none"}}
        for name, keys in printed.items():
            box = {} if name == "Sensitive DP" else {"clip_by": "coordinate", "clip": bound}
            claim = keys | box | {"epsilon": 0.2, "delta": 0.02}
            out[f"fig4/{dataset}/{name}, as printed/0.2"] = {"dataset": dataset, "keys": claim}
            held = {"method": sound[name], "epsilon": 8.0, "delta": 1e-5}
            held |= {"batch_rate": 1.0, "local_steps": 2} if name == "FedSDP" else {}  # as its accountant needs
            out[f"fig4/{dataset}/{name}, sound/8"] = {"dataset": dataset, "keys": held}
    return out


CELLS = {"table6": table6, "table7": table7, "fig4": fig4}


# --- data and models


def pack() -> None:
    from sordino.data.load import load

    cifar, digits = load("cifar10"), load("femnist-digits", os.environ.get("SORDINO_DATA"))
    PACKED.parent.mkdir(exist_ok=True)
    kept = {"cifar10_x": cifar.x_train[:10_000].numpy(), "cifar10_y": cifar.y_train[:10_000].numpy()}
    kept |= {"digits_x": digits.x_train.numpy(), "digits_y": digits.y_train.numpy()}
    np.savez_compressed(PACKED, **kept)
    print(f"{PACKED}: {PACKED.stat().st_size / 2**20:.1f} MiB, {len(digits.x_train)} digits")


def pictures(dataset: str) -> tuple[Tensor, Tensor]:
    """All pictures as a model gets them, and labels."""
    with np.load(PACKED) as file:
        x, y = torch.from_numpy(file[f"{dataset}_x"]), torch.from_numpy(file[f"{dataset}_y"]).long()
    x = (x[:, None] if x.ndim == 3 else x).float() / 255
    mean, std = (torch.tensor(v).view(1, -1, 1, 1) for v in SCALES[dataset])
    return (x - mean) / std, y


def pixels(x: Tensor, dataset: str) -> Tensor:
    """Pictures in [0, 1] from what a model gets."""
    mean, std = (torch.tensor(v, device=x.device).view(1, -1, 1, 1) for v in SCALES[dataset])
    return (x * std + mean).clamp(0, 1)


def network(name: str, dataset: str) -> torch.nn.Module:
    torch.manual_seed(0)
    made: torch.nn.Module = plugin.load("models", name)(SHAPES[dataset], 10)
    return made


def modelled(module: torch.nn.Module) -> Model:
    module = module.to(DEVICE).eval()
    layout = Layout.of(module)
    return Model(module, layout, cross_entropy, CohortGradients.of(module, cross_entropy, layout))


def trained(module: torch.nn.Module, clients: Any, observe: Any, **keys: Any) -> Any:
    """A run whose folder and ledger are thrown away."""
    usual = {"seed": 0, "mode": "research", "device": DEVICE, "progress": False, "delta": 1e-5}
    with tempfile.TemporaryDirectory() as folder:
        os.environ["SORDINO_HOME"] = folder
        return sordino.train(module, clients, observe=observe, **usual | {"out": f"{folder}/runs"} | keys)


def scores(made: Tensor, true: Tensor, dataset: str) -> dict[str, float]:
    """Means over pictures: MSE and MAE in units of the model's input, as the papers have them; PSNR, SSIM of pixels."""
    a, b = pixels(made, dataset), pixels(true, dataset)
    values = {"mse": metrics.mse(made, true), "mae": metrics.mae(made, true), "psnr": metrics.psnr(a, b),
              "ssim": metrics.ssim(a, b)}  # fmt: skip
    return {name: round(float(value.mean()), 4) for name, value in values.items()}


# --- Table 6


class SeenEnoughError(Exception):
    """Enough was seen."""


def first_step(model: str, clients: Any, **keys: Any) -> tuple[Batch, View]:
    """The records of every client in the first step of a run, and what the server saw of it."""
    last: list[Batch] = []
    server: list[View] = []
    real = CohortGradients.sums

    def noted(self: Any, weights: Tensor, part: Batch, *args: Any, **more: Any) -> Tensor:
        last.append(part)
        return real(self, weights, part, *args, **more)

    def observe(view: View) -> None:
        if view.viewer == "server":
            server.append(view)
            raise SeenEnoughError

    CohortGradients.sums = noted  # type: ignore[method-assign]
    try:
        trained(network(model, "cifar10"), clients, observe, **{"rounds": 300, "learning_rate": 0.1} | keys)
    except Exception:
        if not server:
            raise
    finally:
        CohortGradients.sums = real  # type: ignore[method-assign]
    if len(last[-1].sizes) != len(server[0].cohort or ()):
        raise RuntimeError(f"the last gradients are of {len(last[-1].sizes)} clients, not of the whole cohort")
    return last[-1], server[0]


def gradients(cell: dict[str, Any], tiny: bool) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Attack the first of 300 steps of 10 clients (Section 5.2: 150 rounds of 2 steps).

    Batches of about one picture are drawn from 20 (rate 0.05, as in the paper), those of about 100 from 900.
    """
    batch, x, y = cell["batch"], *pictures("cifar10")
    each = 20 if batch == 1 else 900  # the packed data hold 10,000
    clients = [(x[k * each : (k + 1) * each], y[k * each : (k + 1) * each]) for k in range(10)]
    keys = {"batch_rate": batch / each} | cell["keys"]
    if keys["method"] == "none":  # the same pictures as with noise
        drawn, _ = first_step("cnn-cifar", clients, **keys | {"method": "dp-sgd", "epsilon": 8.0, "clip": 0.01})
        parts = zip(drawn.x.split(drawn.sizes), drawn.y.split(drawn.sizes), strict=True)
        clients, keys = [(a.cpu(), b.cpu()) for a, b in parts if len(a)], keys | {"batch_rate": 1.0}
    drawn, view = first_step(cell["model"], clients, **keys)
    model = modelled(network(cell["model"], "cifar10"))
    starts = np.cumsum([0, *drawn.sizes])
    wanted = [k for k, size in enumerate(drawn.sizes) if size == 1 or batch > 1]
    wanted = wanted[: 1 if batch > 1 else 4]
    box = [(s[0], s[1]) for s in zip(*SCALES["cifar10"], strict=True)]
    low, high = min(-m / s for m, s in box), max((1 - m) / s for m, s in box)
    attack = InvertingGradients(
        iterations=30 if tiny else 1500, total_variation=1e-2, shape=SHAPES["cifar10"], low=low, high=high
    )
    local, other = Local(learning_rate=0.1), Batch(x[-500:].to(DEVICE), y[-500:].to(DEVICE), (500,))
    found, true = [], []
    for k in wanted:
        part = slice(starts[k], starts[k + 1])
        victim = Victim(int(view.cohort[k] if view.cohort else k), 1, drawn.sizes[k])
        got = attack.reconstruct([view], Knowledge(model, 10, local, auxiliary=other), victim)
        originals = drawn.x[part].to(got.x)
        found.append(got.x[metrics.matched(got.x, originals)])
        true.append(originals)
    made, originals = torch.cat(found), torch.cat(true)
    gallery = torch.cat([originals, x[-900:].to(originals)])
    labels = {"identified": metrics.identification_rate(made, gallery, torch.arange(len(made)))}
    mean = scores(x.mean(dim=0, keepdim=True).to(made).expand_as(originals), originals, "cifar10")
    shown = {"made": pixels(made[:8], "cifar10"), "true": pixels(originals[:8], "cifar10")}
    return scores(made, originals, "cifar10") | labels | {"mean picture": mean, "records": len(made)}, shown


# --- Table 7


def inversion(cell: dict[str, Any], tiny: bool) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Train 10 clients of 900 records for 300 steps, then invert every class of the last model."""
    x, y = pictures("cifar10")
    each, rounds = (90, 4) if tiny else (900, 300)
    big = cell["model"] == "resnet18"
    clients = [(x[k * each : (k + 1) * each], y[k * each : (k + 1) * each]) for k in range(10)]
    public: list[View] = []
    keys = {"rounds": 60 if big and not tiny else rounds, "batch_rate": 0.05, "learning_rate": 0.1} | cell["keys"]
    if cell["keys"]["method"] != "none":
        keys["learning_rate"] = 10.0  # the clip is 0.01: a hundredth of the usual gradient
    module = network(cell["model"], "cifar10")
    trained(module, clients, lambda v: public.append(v) if v.viewer == "public" else None, **keys)
    model = modelled(module)
    attack = ModelInversion(iterations=20 if tiny else 500, shape=SHAPES["cifar10"])
    other = Batch(x[9000:].to(DEVICE), y[9000:].to(DEVICE), (1000,))
    got = attack.reconstruct(public[-1:], Knowledge(model, 10, auxiliary=other), Victim(None, records=10))
    draw = torch.Generator().manual_seed(0)
    inside, labels = x[: 10 * each], y[: 10 * each]
    picks = [(labels == c).nonzero()[:, 0][torch.randperm(int((labels == c).sum()), generator=draw)[:50]]
             for c in range(10)]  # fmt: skip
    true = torch.cat([inside[p] for p in picks]).to(DEVICE)
    made = torch.cat([got.x[c : c + 1].expand(len(p), -1, -1, -1) for c, p in enumerate(picks)])
    mean = torch.cat([other.x[other.y == c].mean(dim=0, keepdim=True).expand(len(p), -1, -1, -1)
                      for c, p in enumerate(picks)])  # fmt: skip
    with torch.no_grad():
        weights = model.layout.views(public[-1].state.model.to(DEVICE))
        logits = torch.func.functional_call(model.module, weights, (other.x,))
        accuracy = float((logits.argmax(dim=1) == other.y).float().mean())
    shown = {"made": pixels(got.x, "cifar10"), "true": pixels(true[:: len(true) // 10][:10], "cifar10")}
    more = {"accuracy": round(accuracy, 4), "mean picture": scores(mean, true, "cifar10")}
    return scores(made, true, "cifar10") | more, shown


# --- Fig. 4


def curious(cell: dict[str, Any], tiny: bool) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Train 100 clients, ten of them without private records, and attack as one of these."""
    dataset = cell["dataset"]
    x, y = pictures(dataset)
    hidden = torch.isin(y, torch.tensor(PRIVATE[dataset]))
    count, each = (20, 20) if tiny else (100, min(100, len(x) * 9 // 1000))
    honest, rest = count - count // 10, (~hidden).nonzero()[:, 0]
    mine = rest[-each * (count // 10) :]  # records of the curious clients, none of them private
    left = torch.ones(len(x), dtype=torch.bool)
    left[mine] = False
    at = torch.cat([left.nonzero()[:, 0][: honest * each], mine])
    clients = [(x[i], y[i]) for i in at.split(each)]
    module = network("cnn-cifar" if dataset == "cifar10" else "cnn-mnist", dataset)
    seen: list[View] = []
    rounds = 4 if tiny else 150
    if cell["keys"] is not None:
        keys: dict[str, Any] = {"rounds": rounds, "client_rate": 0.1, "client_sampling": "fixed", "learning_rate": 0.1}
        if "batch_rate" not in cell["keys"]:
            keys |= {"local_epochs": 2.0, "batch_size": min(50, each // 2)}
        keys |= cell["keys"]
        tags = [hidden[i].long().numpy() for i in at.split(each)]
        if str(keys["method"]).startswith("fedsdp"):
            keys["private_data"] = tags
        every = max(1, rounds // 10)
        trained(
            module, clients, lambda v: seen.append(v) if v.viewer == "public" and v.round % every == 0 else None, **keys
        )
    model = modelled(module)
    views = [View("client", v.round, "", v.state) for v in seen]
    if not views:  # the control: a model that nobody trained
        from sordino.core.types import State

        views = [View("client", 1, "", State(model.layout.read(model.module)))] * 10
        views = [replace(v, round=r + 1) for r, v in enumerate(views)]
    own = Batch(x[mine].to(DEVICE), y[mine].to(DEVICE), (len(mine),))
    labels = tuple(c for c in PRIVATE[dataset] for _ in range(16))
    attack = AuxiliaryClassifierGan(steps=3 if tiny else 200)
    victim = Victim(None, records=len(labels), labels=labels)
    got = attack.reconstruct(views, Knowledge(model, 10, own=own), victim)
    judge = judged(dataset, tiny)
    with torch.no_grad():
        right = judge(got.x).argmax(dim=1) == got.y
        weights = model.layout.views(views[-1].state.model.to(DEVICE))
        theirs = torch.func.functional_call(model.module, weights, (x[:2000].to(DEVICE),)).argmax(dim=1).cpu()
    near, best = [], []
    for c in PRIVATE[dataset]:
        true, made = x[hidden & (y == c)].to(DEVICE), got.x[got.y == c]
        nearest = true[metrics.distances(made, true).argmin(dim=1)]
        near.append(scores(made, nearest, dataset))
        best += [made[:4], nearest[:4]]
    result = {name: round(float(np.mean([n[name] for n in near])), 4) for name in near[0]}
    result |= {"judged": round(float(right.float().mean()), 4), "accuracy": float((theirs == y[:2000]).float().mean())}
    shown = {"made": pixels(torch.cat(best[::2]), dataset), "true": pixels(torch.cat(best[1::2]), dataset)}
    return result, shown


def judged(dataset: str, tiny: bool) -> torch.nn.Module:
    """A classifier trained on all pictures at once: which class does it see in a generated one?"""
    x, y = (v.to(DEVICE) for v in pictures(dataset))
    net = network("cnn-cifar" if dataset == "cifar10" else "cnn-mnist", dataset).to(DEVICE).train()
    adam, draw = torch.optim.Adam(net.parameters(), lr=2e-3), torch.Generator().manual_seed(1)
    for _ in range(1 if tiny else 12):
        for part in torch.randperm(len(x), generator=draw).to(DEVICE).split(128)[: 3 if tiny else None]:
            adam.zero_grad()
            F.cross_entropy(net(x[part]), y[part]).backward()
            adam.step()
    return net.eval()


WORK = {"table6": gradients, "table7": inversion, "fig4": curious}


# --- running, gathering


def place(out: Path, name: str) -> Path:
    return out / "cells" / f"{hashlib.sha256(name.encode()).hexdigest()[:16]}.json"


def work(kinds: list[str], out: Path, seconds: float, part: str, tiny: bool) -> None:
    """Compute cells that are not there until the time is over."""
    begun, (mine, of) = time.monotonic(), map(int, part.split("/"))
    cells = {name: cell for kind in kinds for name, cell in CELLS[kind]().items() if not tiny or "ResNet" not in name}
    (out / "cells").mkdir(parents=True, exist_ok=True)
    for name in sorted(cells, key=lambda n: "ResNet" not in n)[mine::of]:  # the longest first
        path = place(out, name)
        if path.exists():
            continue
        if time.monotonic() - begun > seconds:
            print(f"time is over before {name}", flush=True)
            return
        start = time.monotonic()
        try:
            result, shown = WORK[name.split("/")[0]](cells[name], tiny)
        except Exception as error:  # one cell must not end the others
            print(f"{name}: {type(error).__name__}: {error}", flush=True)
            continue
        kept = {k: (255 * v).round().to(torch.uint8).cpu().numpy() for k, v in shown.items()}
        np.savez_compressed(path.with_suffix(".npz"), **kept)
        row = {"name": name, "seconds": round(time.monotonic() - start, 1), "device": DEVICE} | result
        path.write_text(json.dumps(row))
        print(json.dumps(row), flush=True)


def spread(kinds: list[str], asked: argparse.Namespace) -> None:
    """Start processes with a share of the cells each, and gather what they made."""
    turns = [
        [sys.executable, __file__, *kinds, "--seconds", str(asked.seconds), "--out", str(asked.out), "--part",
         f"{k}/{asked.workers}", *(["--tiny"] if asked.tiny else [])]
        for k in range(asked.workers)
    ]  # fmt: skip
    running = [subprocess.Popen(turn) for turn in turns]
    for process in running:
        process.wait()
    gather(asked.out)


def gather(out: Path) -> None:
    """Put all cells into results.json and pictures.npz."""
    rows = [json.loads(path.read_text()) for path in sorted((out / "cells").glob("*.json"))]
    rows.sort(key=lambda row: row["name"])
    (out / "results.json").write_text(json.dumps(rows, indent=1) + "\n")
    kept = {}
    for row in rows:
        with np.load(place(out, row["name"]).with_suffix(".npz")) as file:
            kept |= {f"{row['name']}|{key}": file[key] for key in file.files}
    np.savez_compressed(out / "pictures.npz", **kept)
    print(f"{len(rows)} cells; {sum(row['seconds'] for row in rows):.0f} s of work")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="+", choices=("pack", *CELLS, "all", "gather", "page"))
    parser.add_argument("--seconds", type=float, default=120.0, help="no cell is started after this time")
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "reconstruction")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--part", default="0/1", help="which share of the cells: 0/4 is the first of four")
    parser.add_argument("--tiny", action="store_true", help="a trial of a few seconds a cell")
    asked = parser.parse_args()
    if asked.what == ["pack"]:
        return pack()
    if asked.what == ["gather"]:
        return gather(asked.out)
    if asked.what == ["page"]:
        from reconstruction_page import page

        return page(asked.out, ROOT / "docs" / "results")
    kinds = list(CELLS) if asked.what == ["all"] else asked.what
    if asked.workers > 1:
        return spread(kinds, asked)
    return work(kinds, asked.out, asked.seconds, asked.part, asked.tiny)


if __name__ == "__main__":
    main()
