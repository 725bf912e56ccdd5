"""Small seeded runs (runs.py) through the public API, and what each gives: model bits, epsilons, noise, choices.

    python tests/golden/recorded.py --write [FILE]         records every run (default: runs.json beside this file)
    python tests/golden/recorded.py --compare FILE [BASE]  prints by run what differs from BASE (default: runs.json)
    python tests/golden/recorded.py --play NAME            prints one run

Nothing but `sordino.train` is used, and the small federations are made here, so that two versions of the package can
be compared by calling this file with another PYTHONPATH."""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.special import gammaln, log_ndtr
from torch import nn

import sordino

sys.path.insert(0, str(Path(__file__).parent.parent))  # where this file is run as a script
from golden.runs import RUNS, USUAL

FILE = Path(__file__).parent / "runs.json"
FEATURES, CLASSES = 20, 3
SIZES = {"even": (12,) * 8, "uneven": (12, 5, 30, 8, 12, 20), "paired": (12,) * 8, "pictures": (6, 4, 5, 8)}
SIZES |= {"lazy": SIZES["even"], "regression": SIZES["uneven"]}


class Interrupted(BaseException):
    """Ends a run after one of its rounds; no run catches it."""


def federation(kind: str) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return clients with three Gaussian classes in 20 dimensions, which pictures have as 4 by 5."""
    pairs = _drawn(SIZES[kind], (1, 4, 5) if kind == "pictures" else (FEATURES,))
    return [(x, x[:, :2] - x[:, 2:4]) for x, _ in pairs] if kind == "regression" else pairs


def _drawn(sizes: tuple[int, ...], shape: tuple[int, ...]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    draw = torch.Generator().manual_seed(0)
    centres = 2 * torch.randn(CLASSES, FEATURES, generator=draw)
    pairs = []
    for n in sizes:
        y = torch.randint(0, CLASSES, (n,), generator=draw)
        pairs.append(((centres[y] + torch.randn(n, FEATURES, generator=draw)).reshape(n, *shape), y))
    return pairs


def model(kind: str) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        if kind == "regression":
            return nn.Linear(FEATURES, 2)
        if kind == "linear":
            return nn.Linear(FEATURES, CLASSES)
        if kind == "cnn":
            return nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.Tanh(), nn.Flatten(), nn.Linear(80, CLASSES))
        return nn.Sequential(nn.Linear(FEATURES, 6), nn.Tanh(), nn.Linear(6, CLASSES))


def owners(kind: str) -> list[list[int]]:
    """Return each record's user: two or three records each, in a paired federation half of them next door."""
    if kind == "paired":
        return [[100 * (k // 2) + i // 3 for i in range(n)] for k, n in enumerate(SIZES[kind])]
    return [[100 * k + i // 3 for i in range(n)] for k, n in enumerate(SIZES[kind])]


def play(name: str) -> dict[str, Any]:
    """Return what is recorded of one run, which is played in a folder of its own; floats are text to the last digit."""
    run = RUNS[name]
    pairs = federation(run.clients)
    clients = sordino.LazyClients(len(pairs), 12, pairs.__getitem__, CLASSES) if run.clients == "lazy" else pairs
    with _fresh_folder() as folder:
        given: dict[str, Any] = {}
        if run.users:
            given["users"] = owners(run.clients)
        if run.groups:
            given["private_data"] = [[i % 3 % (run.groups + 1) for i in range(len(y))] for _, y in pairs]
        if run.test:
            given["test"] = _drawn((60,), (FEATURES,))[0]
        keys = (
            USUAL | run.keys | {"out": str(folder / "runs"), "name": "it", "checkpoint_seconds": run.checkpoint_seconds}
        )
        if run.interrupted:
            try:
                sordino.train(model(run.model), clients, watch=_dies_after(run.interrupted), **given, **keys)
            except Interrupted:
                keys = {"resume": folder / "runs" / "it"}
        result = sordino.train(model(run.model), clients, **given, **keys)
        published = json.loads((result.folder / "public" / "result.json").read_text())
    return _summary(result, published)


def _dies_after(rounds: int) -> Any:
    def watch(record: Any) -> None:
        if record.round == rounds:
            raise Interrupted

    return watch


@contextmanager
def _fresh_folder() -> Iterator[Path]:
    """Yield a temporary folder that also holds the user's registry; one thread meanwhile."""
    before, threads = os.environ.get("SORDINO_HOME"), torch.get_num_threads()
    with tempfile.TemporaryDirectory() as name:
        os.environ["SORDINO_HOME"] = str(Path(name) / "home")
        torch.set_num_threads(1)
        try:
            yield Path(name)
        finally:
            torch.set_num_threads(threads)
            del os.environ["SORDINO_HOME"]
            if before is not None:
                os.environ["SORDINO_HOME"] = before


def _summary(result: Any, published: dict[str, Any]) -> dict[str, Any]:
    weights = torch.cat([p.detach().float().flatten() for p in result.model.parameters()])
    exact = weights.double()
    public, private = result.history, result.private.history
    decided = [r.decided for r in private]
    return {
        "model": hashlib.sha256(weights.numpy().tobytes()).hexdigest(),
        "weights": [float(f"{v:.9g}") for v in (exact.norm(), exact.sum(), exact[0], exact[-1])],
        "guarantees": {
            v: {"epsilon": repr(g.epsilon), "delta": repr(g.delta), "unit": g.unit, "relation": g.relation}
            for v, g in result.guarantees.items()
        },
        "viewer": result.guarantee.viewer,
        "owner_epsilon": {v: repr(g.epsilon) for v, g in result.private.guarantees.items()},
        "claim": _text(published["claim"]),
        "epsilon": [_text(r.epsilon) for r in public],
        "noise": [_text(r.noise) for r in public],
        "owner_noise": [_text(r.noise) for r in private],
        "clip": [_text(r.clip) for r in public],
        "clients": [r.clients for r in private],
        "answers": [r.answers for r in private],
        "figures": [_text({"loss": r.loss, "accuracy": r.accuracy, "metrics": _old(r.metrics)}) for r in public],
        "last_figures": _text(_old(result.metrics)),
        "decided": hashlib.sha256(json.dumps(_text(decided), sort_keys=True).encode()).hexdigest(),
        "decided_values": _rounded(decided),
    }


LATER = ("auc", "balanced_accuracy", "brier", "calibration_error", "f1", "macro_f1", "r2")  # held to scikit-learn's


def _old(metrics: dict[str, float] | None) -> dict[str, float] | None:
    """Return the metrics that there were when the runs were recorded."""
    if metrics is None:
        return None
    return {name: v for name, v in metrics.items() if name.removeprefix("personal_") not in LATER}


def _text(value: Any) -> Any:
    """Return the value with every float as text to its last digit."""
    if isinstance(value, dict):
        return {str(k): _text(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_text(v) for v in value]
    return repr(float(value)) if isinstance(value, float) else value


def _rounded(value: Any) -> Any:
    """Return the value with every float rounded to six digits."""
    if isinstance(value, dict):
        return {str(k): _rounded(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(v) for v in value]
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else repr(value)
    return value


def probe() -> str:
    """Return a hash of a small computation, equal where the arithmetic of two machines is."""
    draw = torch.Generator().manual_seed(7)
    x, w = torch.randn(4, 3, 16, 16, generator=draw), torch.randn(5, 3, 3, 3, generator=draw)
    a, b = torch.randn(70, 33, generator=draw), torch.randn(33, 65, generator=draw)
    wide = torch.randn(3, 8, 1001, generator=draw)
    found = (
        x, a @ b, torch.einsum("bij,bkj->bik", wide, wide), nn.functional.conv2d(x, w), a.exp(), a.abs().log(),
        a.tanh(), a.softmax(1), wide.sum(2), wide.norm(dim=2), wide.double().exp().sum(2),
    )  # fmt: skip
    wide_64 = wide.abs().double().numpy()
    host = (np.exp(wide_64), np.log(wide_64), np.logaddexp(wide_64, 1.0), log_ndtr(-wide_64), gammaln(wide_64))
    arrays = [t.contiguous().numpy() for t in found] + list(host)
    return hashlib.sha256(b"".join(a.tobytes() for a in arrays)).hexdigest()


def machine() -> dict[str, str]:
    """Return what tells whether bits can be expected to be the same here."""
    return {"probe": probe(), "torch": torch.__version__, "numpy": np.__version__}


EXACT = {  # what a difference is called -> the fields that must agree to the last bit on the same machine
    "model bits": ("model",),
    "epsilon": ("guarantees", "viewer", "owner_epsilon", "epsilon", "claim"),
    "noise": ("noise",),
    "noise as injected": ("owner_noise",),
    "clip": ("clip",),
    "draw": ("clients", "answers"),
    "figures": ("figures", "last_figures"),
}
# relative, on other machines
TOLERANCE = {"epsilon": 1e-9, "noise": 1e-9, "noise as injected": 1e-9, "clip": 1e-9, "draw": 0.0}
ADAPTING = ("adap-dp-fl", "adaptive-noise", "adaptive-noise-client", "adaptive-noise-paper")  # their noise and clip
# follow float32 messages, as an adaptive clip does


def differences(name: str, new: dict[str, Any], old: dict[str, Any], same_machine: bool) -> list[str]:
    """Return what differs between two records of a run, a line each; decisions are compared to about five digits.

    On another machine models are compared by their summaries, and figures of evaluations not at all."""
    found = []
    keys = RUNS[name].keys if name in RUNS else {}
    adapting = keys.get("method") in ADAPTING or keys.get("adaptive_clip", False)
    for kind, columns in EXACT.items():
        if kind in ("model bits", "figures") and not same_machine:
            continue
        tolerance = 0.0 if same_machine else TOLERANCE[kind]
        if tolerance and adapting and kind != "epsilon":
            tolerance = 1e-3
        for column in columns:
            if not alike(new[column], old[column], tolerance):
                found.append(f"{kind}: {column} was {old[column]}, is {new[column]}")
    if not same_machine and not alike(new["weights"], old["weights"], 1e-3):
        found.append(f"model: norm, sum, first and last weight were {old['weights']}, are {new['weights']}")
    if not alike(new["decided_values"], old["decided_values"], 1e-5 if same_machine else 1e-3):
        found.append(f"decided: was {old['decided_values']}, is {new['decided_values']}")
    return found


def alike(new: Any, old: Any, rel: float) -> bool:
    """Return whether two values agree, floats (and text that is one) within a relative tolerance."""
    if isinstance(new, dict) and isinstance(old, dict):
        return new.keys() == old.keys() and all(alike(new[k], old[k], rel) for k in new)
    if isinstance(new, list) and isinstance(old, list):
        return len(new) == len(old) and all(alike(a, b, rel) for a, b in zip(new, old, strict=True))
    if new == old or rel == 0.0:
        return bool(new == old)
    try:
        return math.isclose(float(new), float(old), rel_tol=rel, abs_tol=rel / 1000)
    except (TypeError, ValueError):
        return False


def write(path: Path) -> None:
    lines, began = [], time.perf_counter()
    for name in sorted(RUNS):
        start = time.perf_counter()
        try:
            lines.append(f"{json.dumps(name)}: {json.dumps(play(name), sort_keys=True)}")
        except sordino.SordinoError as error:
            print(f"{name}: REFUSED: {error}", flush=True)
            continue
        print(f"{name}: {time.perf_counter() - start:.2f} s", flush=True)
    head = f'"machine": {json.dumps(machine(), sort_keys=True)}'
    path.write_text("{\n" + head + ',\n"runs": {\n' + ",\n".join(lines) + "\n}\n}\n")
    print(f"{len(lines)} runs of {len(RUNS)} in {time.perf_counter() - began:.1f} s -> {path}")


def compare(new: Path, old: Path) -> int:
    """Print what differs by run and return how many runs do."""
    found, base = json.loads(new.read_text()), json.loads(old.read_text())
    same, count = found["machine"] == base["machine"], 0
    if not same:
        print(f"recorded on another machine: {found['machine']}, {base['machine']}; compared within tolerances")
    for name in sorted(found["runs"].keys() | base["runs"].keys()):
        missing = [str(p) for p, f in ((new, found), (old, base)) if name not in f["runs"]]
        lines = [f"not in {p}" for p in missing] or differences(name, found["runs"][name], base["runs"][name], same)
        count += bool(lines)
        for line in lines:
            print(f"{name}: {line if len(line) < 600 else line[:600] + ' ...'}")
    print(f"{count} of {len(found['runs'].keys() | base['runs'].keys())} runs differ")
    return count


def main() -> int:
    parser = argparse.ArgumentParser(description="Record small runs, or compare two records of them.")
    parser.add_argument("--write", nargs="?", type=Path, const=FILE, metavar="FILE")
    parser.add_argument("--compare", nargs="+", type=Path, metavar=("FILE", "BASE"))
    parser.add_argument("--device", default="cpu", help="on which the runs are played")
    parser.add_argument("--play", choices=sorted(RUNS), metavar="NAME")
    asked = parser.parse_args()
    USUAL["device"] = asked.device
    if asked.write is not None:
        write(asked.write)
    if asked.play is not None:
        print(json.dumps(play(asked.play), indent=1, sort_keys=True))
    if asked.compare is not None:
        return int(compare(asked.compare[0], asked.compare[1] if len(asked.compare) > 1 else FILE) > 0)
    return 0


if __name__ == "__main__":
    sys.exit(main())
