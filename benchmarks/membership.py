"""Membership attacks on federated CIFAR-10, without privacy and with it: Table 5 of 003 (docs/results/membership.md).

    python benchmarks/membership.py probe plain private --out OUT --seconds 40 200 140
    python benchmarks/membership.py udp resnet --out OUT --seconds 50 90
    python benchmarks/membership.py page --out OUT     # writes the page and its picture (matplotlib)

    probe    one model with each setting, until one overfits; plain and resnet use the best
    plain    no privacy: the real run of ten clients, 64 shadow models, all attacks
    private  dp-sgd at epsilon 2 and 8: likewise, with 16 shadow models that clip and add the same noise
    udp      udp-fl at epsilon 8 with Laplace and with staircase noise; shadow models are real runs, at most 8
    resnet   ResNet-18 without privacy, 8 shadow models

Half of the 50,000 training records are dealt to ten clients; the other half are non-members. Results are appended to
OUT/membership.json, and what is there already is not computed again. Shadow models are stored in --cache. A command
that runs out of seconds trains fewer shadow models, says how many, and attacks with those. Wants a GPU; in small:

    python benchmarks/membership.py plain --out OUT --records 200 --shadows 4 --rounds 8 --model cnn --batch 5
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sordino.attacks.base import Knowledge, MembershipAttack, Shadows, Targets
from sordino.attacks.canary import CanaryQueries
from sordino.attacks.lira import Lira
from sordino.attacks.loss_threshold import LossThreshold
from sordino.attacks.rmia import Rmia
from sordino.attacks.shadow_models import ShadowAttack
from sordino.audits.roc import Roc
from sordino.core import plugin
from sordino.core.rng import Stream
from sordino.core.types import Batch
from sordino.core.view import View
from sordino.data import partition
from sordino.data.clients import ArrayClients
from sordino.data.load import Dataset, load
from sordino.runs import build, run
from sordino.runs.job import Job
from sordino.runs.shadows import halves, train_shadows
from sordino.spec import spec

DELTA, SEED, GROUP = 1e-5, 0, 16  # GROUP: shadow models trained and stored together
SETTINGS: dict[str, dict[str, Any]] = {  # without privacy: what may overfit, tried in this order
    "momentum 0.05": {"optimizer": "momentum", "learning_rate": 0.05},
    "momentum 0.02": {"optimizer": "momentum", "learning_rate": 0.02},
    "sgd 0.1": {"optimizer": "sgd", "learning_rate": 0.1},
}
OVERFITTED = 0.98  # accuracy on members from which a setting is good enough
PRIVATE = {"local_steps": 1, "batch_rate": 0.1, "rounds": 60, "learning_rate": 0.5, "clip": 1.0}
# Feng et al. (2025), Table 5: TPR at 1 % FPR, accuracy, AUC; by attack and (noise, epsilon)
PAPER: dict[str, dict[tuple[str, float | None], tuple[float, float, float]]] = {
    "shadow-models": {
        ("none", None): (0.053, 0.710, 0.757), ("dp-sgd", 2.0): (0.009, 0.502, 0.493),
        ("dp-sgd", 8.0): (0.011, 0.503, 0.499), ("udp-fl laplace", 8.0): (0.007, 0.505, 0.500),
        ("udp-fl staircase", 8.0): (0.008, 0.504, 0.496),
    },
    "lira": {
        ("none", None): (0.126, 0.651, 0.716), ("dp-sgd", 2.0): (0.013, 0.506, 0.497),
        ("dp-sgd", 8.0): (0.011, 0.504, 0.497), ("udp-fl laplace", 8.0): (0.009, 0.513, 0.505),
        ("udp-fl staircase", 8.0): (0.009, 0.507, 0.492),
    },
    "canary": {
        ("none", None): (0.137, 0.649, 0.719), ("dp-sgd", 2.0): (0.016, 0.519, 0.513),
        ("dp-sgd", 8.0): (0.010, 0.521, 0.518), ("udp-fl laplace", 8.0): (0.015, 0.516, 0.507),
        ("udp-fl staircase", 8.0): (0.012, 0.511, 0.509),
    },
}  # fmt: skip


# --- data, runs, shadow models


@lru_cache
def pictures(folder: str | None) -> Dataset:
    return load("cifar10", folder)


@dataclass(frozen=True)
class Problem:
    """Records, of which the members are dealt to clients, and the records that are attacked."""

    x: Tensor
    y: Tensor
    members: np.ndarray  # [records], bool
    targets: np.ndarray  # places of the attacked records, as many members as others
    test: tuple[Tensor, Tensor]
    clients: int

    @staticmethod
    def read(asked: argparse.Namespace, device: torch.device) -> Problem:
        data, rng = pictures(asked.data), np.random.default_rng(SEED)
        chosen = torch.from_numpy(rng.permutation(len(data.y_train))[: 2 * asked.records])
        members = halves(len(chosen), 1, 12_345)[0]
        each = min(asked.targets // 2, int(members.sum()))
        sides = [rng.permutation(np.flatnonzero(side))[:each] for side in (members, ~members)]
        few = 10 * asked.records
        test = data.prepare(data.x_test[:few]).to(device), data.y_test[:few].to(device)
        x = data.prepare(data.x_train[chosen]).to(device)
        return Problem(x, data.y_train[chosen].to(device), members, np.concatenate(sides), test, asked.clients)

    def dealt(self, members: np.ndarray) -> ArrayClients:
        places = np.flatnonzero(members)
        parts = partition.iid(len(places), self.clients, Stream.research(SEED).at("partition"))
        return ArrayClients.split(self.x.cpu(), self.y.cpu(), [places[part] for part in parts])

    def job(self, asked: argparse.Namespace, keys: dict[str, Any], seed: int = SEED) -> Job:
        torch.manual_seed(SEED)
        module = plugin.load("models", asked.model)(tuple(self.x.shape[1:]), 10)
        usual = {"seed": seed, "mode": "research", "device": asked.device, "evaluate_every": 10**6}
        usual |= {"checkpoint_seconds": 1e9, "out": str(Path(asked.cache) / "runs")}
        return build.build(spec.from_dict(usual | keys), module, self.dealt(self.members))


def attacked(job: Job, look: Callable[[View], None] | None = None) -> list[View]:
    """Run a job for real and return what the public saw of it last; `look` is shown every public view."""
    seen: list[View] = []

    def keep(view: View) -> None:
        if view.viewer == "public":
            seen[:] = [view]
            if look is not None:
                look(view)

    run.execute(job, own_model=True, owner=lambda text: None, observe=keep)
    return seen


def accuracy(job: Job, params: Tensor, x: Tensor, y: Tensor) -> float:
    from sordino.attacks._confidence import outputs

    return float((outputs(job.model, params, x).argmax(dim=1) == y).float().mean())


def shadows_of(
    asked: argparse.Namespace, problem: Problem, job: Job, clock: Clock, count: int, reserve: float
) -> Shadows:
    """Train shadow models group by group while there is time, leaving `reserve` seconds for the attacks."""
    pool, parts, longest = Batch(problem.x, problem.y, (len(problem.y),)), [], 0.0
    for first in range(0, count, GROUP):
        if parts and clock.left < reserve + longest:
            break
        begun = time.monotonic()
        some = min(GROUP, count - first)
        folder = Path(asked.cache) / "shadows"
        parts.append(train_shadows(job, pool, some, SEED + 1000 + first, folder=folder))
        longest = max(longest, time.monotonic() - begun)
        print(f"  {first + some} shadow models: {longest:.1f} s for {some}, {clock.left:.0f} s left", flush=True)
    return Shadows(pool, torch.cat([p.params for p in parts]), np.concatenate([p.members for p in parts]))


# --- attacks


class Clock:
    """The seconds that a command may take."""

    def __init__(self, seconds: float) -> None:
        self.end = time.monotonic() + seconds

    @property
    def left(self) -> float:
        return self.end - time.monotonic()


@contextmanager
def quick() -> Iterator[None]:
    """Allow TF32, for the forward passes of attacks and for training without privacy."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    matmul.allow_tf32 = cudnn.allow_tf32 = True
    try:
        yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32 = before


CHEAP = ("loss-threshold", "lira", "lira offline", "shadow-models", "rmia")
ALL = (*CHEAP, "canary", "lira, 2 queries")
OF_TABLE = ("loss-threshold", "lira", "shadow-models", "canary")


def all_attacks(private: bool) -> dict[str, MembershipAttack]:
    """Return the attacks by the name in the table, the cheap ones first."""
    queries, steps = (1, 10) if private else (2, 20)
    return {
        "loss-threshold": LossThreshold(),
        "lira": Lira(),
        "lira offline": Lira(offline=True),
        "shadow-models": ShadowAttack(),
        "rmia": Rmia(),
        "canary": CanaryQueries(queries=queries, steps=steps),
        "lira, 2 queries": Lira(queries=2),
    }


def attack(
    asked: argparse.Namespace,
    problem: Problem,
    job: Job,
    views: Sequence[View],
    shadows: Shadows,
    clock: Clock,
    what: dict[str, Any],
    names: Sequence[str],
) -> None:
    """Attack a model with the attacks of these names, and store every figure as soon as it is known."""
    places = problem.targets
    targets = Targets(Batch(problem.x[places], problem.y[places], (len(places),)), (0,), places)
    known = Knowledge(job.model, classes=10, shadows=shadows, seed=SEED)
    truth, epsilon = problem.members[places], what["epsilon"]
    for name, attacker in all_attacks(epsilon is not None).items():
        if name not in names:
            continue
        if clock.left < 0:
            print(f"  no time for {name}")
            continue
        begun = time.monotonic()
        with quick():
            scores = attacker.score(views, known, targets)
        roc = Roc.of(scores, truth)
        row = what | {"attack": name, "shadows": len(shadows.params), "targets": len(places)}
        row |= figures(roc, epsilon) | {"seconds": round(time.monotonic() - begun, 1)}
        append(asked, row)
        auc, tpr = row["auc"], row["tpr_1"]
        print(f"  {name}: AUC {auc[0]:.3f}, TPR at 1 % FPR {tpr[0]:.4f}, {row['seconds']} s", flush=True)


def figures(roc: Roc, epsilon: float | None) -> dict[str, Any]:
    def numbers(estimate: Any) -> list[float]:
        return [round(v, 5) for v in (estimate.value, estimate.low, estimate.high)]

    out: dict[str, Any] = {"auc": numbers(roc.auc()), "tpr_01": numbers(roc.tpr_at(0.001))}
    out |= {"tpr_1": numbers(roc.tpr_at(0.01)), "accuracy": round(roc.balanced_accuracy(), 5)}
    if epsilon is not None:
        bound = roc.within(epsilon, DELTA)
        out["within"] = {"holds": bound.holds, "fpr": bound.fpr, "tpr": bound.tpr, "limit": round(bound.limit, 5)}
    fpr, tpr = roc.points(80)
    return out | {"curve": [[round(float(v), 6) for v in side] for side in (fpr, tpr)]}


# --- results


def rows_of(asked: argparse.Namespace) -> list[dict[str, Any]]:
    path = Path(asked.out) / "membership.json"
    return json.loads(path.read_text()) if path.is_file() else []


def append(asked: argparse.Namespace, row: dict[str, Any]) -> None:
    rows = rows_of(asked)
    row |= {"command": asked.words, "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"}
    path = Path(asked.out) / "membership.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps([*rows, row]))


def done(asked: argparse.Namespace, **what: Any) -> bool:
    """Return whether the results hold a row with these values."""
    return any(all(row.get(k) == v for k, v in what.items()) for row in rows_of(asked))


def missing(asked: argparse.Namespace, names: Sequence[str], **what: Any) -> list[str]:
    """Return which of these attacks on a model are not among the results."""
    return [name for name in names if not done(asked, attack=name, **what)]


# --- commands


def overfitting(asked: argparse.Namespace, name: str) -> dict[str, Any]:
    precision = "bfloat16" if asked.device != "cpu" and torch.cuda.is_available() else "float32"
    usual = {"method": "none", "local_epochs": 1.0, "batch_size": asked.batch, "precision": precision}
    return usual | {"rounds": asked.rounds, **SETTINGS[name]}


def describe(asked: argparse.Namespace, problem: Problem, job: Job, views: Sequence[View]) -> dict[str, Any]:
    params, members = views[-1].state.model, torch.from_numpy(problem.members).to(problem.x.device)
    on_members = accuracy(job, params, problem.x[members], problem.y[members])
    return {
        "model": asked.model, "parameters": job.model.layout.dim, "members": int(problem.members.sum()),
        "clients": asked.clients, "rounds": job.plan.rounds, "on_members": round(on_members, 4),
        "on_test": round(accuracy(job, params, *problem.test), 4),
    }  # fmt: skip


def probe(asked: argparse.Namespace, problem: Problem, clock: Clock) -> None:
    """Train one model with each setting, and stop at the first that overfits."""
    for name in SETTINGS:
        if clock.left < 0 or done(asked, part="probe", model=asked.model, setting=name, rounds=asked.rounds):
            continue
        begun, job = time.monotonic(), problem.job(asked, overfitting(asked, name))
        built = time.monotonic()
        with quick():
            views = attacked(job, lambda view, job=job: progress(problem, job, view))
        row = {"part": "probe", "setting": name, **describe(asked, problem, job, views)}
        row |= {"built": round(built - begun, 1), "seconds": round(time.monotonic() - built, 1)}
        append(asked, row)
        print(row, flush=True)
        if row["on_members"] >= OVERFITTED:
            return


def progress(problem: Problem, job: Job, view: View) -> None:
    """Print the accuracy on some members and test records after every fifth round."""
    if view.round % 5 == 0:
        some = torch.from_numpy(problem.targets[: len(problem.targets) // 8]).to(problem.x.device)
        pairs = (problem.x[some], problem.y[some]), tuple(t[:2000] for t in problem.test)
        shown = [f"{accuracy(job, view.state.model, *pair):.3f}" for pair in pairs]
        print(f"  round {view.round}: members {shown[0]}, test {shown[1]}", flush=True)


def chosen(asked: argparse.Namespace) -> str:
    """Return the setting that was asked for, else the most overfitted of those tried, else the first."""
    if asked.setting:
        return str(asked.setting)
    tried = [r for r in rows_of(asked) if r["part"] == "probe" and r["model"] == asked.model]
    return str(max(tried, key=lambda r: r["on_members"])["setting"]) if tried else next(iter(SETTINGS))


def plain(asked: argparse.Namespace, problem: Problem, clock: Clock, part: str = "plain", reserve: float = 45) -> None:
    """Attack a model that was trained without privacy."""
    names = missing(asked, CHEAP if part == "resnet" else ALL, part=part)
    if not names:
        return
    name = chosen(asked)
    job = problem.job(asked, overfitting(asked, name))
    with quick():
        views = attacked(job)
        what = {"part": part, "method": "none", "epsilon": None, "setting": name}
        what |= describe(asked, problem, job, views)
        print(what, f"{clock.left:.0f} s left", flush=True)
        shadows = shadows_of(asked, problem, job, clock, asked.shadows, reserve)
    attack(asked, problem, job, views, shadows, clock, what, names)


def private(asked: argparse.Namespace, problem: Problem, clock: Clock) -> None:
    """Attack models of dp-sgd, each with shadow models that clip and add the same noise."""
    todo = [e for e in asked.epsilon if missing(asked, ALL, part="private", epsilon=e)]
    total = clock.left
    for place, epsilon in enumerate(todo, start=1):
        part = Clock(clock.left - total * (1 - place / len(todo)))
        job = problem.job(asked, PRIVATE | {"method": "dp-sgd", "epsilon": epsilon, "delta": DELTA} | own_rounds(asked))
        views = attacked(job)
        what = {"part": "private", "method": "dp-sgd", "epsilon": epsilon, "setting": f"z {job.plan.z:.3f}"}
        what |= describe(asked, problem, job, views)
        print(what, f"{part.left:.0f} s left", flush=True)
        shadows = shadows_of(asked, problem, job, part, min(asked.shadows, 16), 15)
        names = missing(asked, ALL, part="private", epsilon=epsilon)
        attack(asked, problem, job, views, shadows, part, what, names)


def udp(asked: argparse.Namespace, problem: Problem, clock: Clock) -> None:
    """Attack models of udp-fl; shadow models are real runs on other halves of the records, as many as time allows."""
    total, kinds = clock.left, ("laplace", "staircase")
    for place, kind in enumerate(kinds, start=1):
        names = missing(asked, OF_TABLE, part="udp", method=f"udp-fl {kind}")
        if not names:
            continue
        part = Clock(clock.left - total * (1 - place / len(kinds)))
        keys = PRIVATE | {"method": "udp-fl", "mechanism": kind, "epsilon": 8.0, "delta": DELTA} | own_rounds(asked)
        job = problem.job(asked, keys)
        begun = time.monotonic()
        views = attacked(job)
        one = time.monotonic() - begun
        what = {"part": "udp", "method": f"udp-fl {kind}", "epsilon": 8.0, "setting": f"z {job.plan.z:.3f}"}
        what |= describe(asked, problem, job, views)
        print(what, f"a run {one:.1f} s, {part.left:.0f} s left", flush=True)
        members, params = halves(len(problem.y), 8, SEED + 2000), []
        for number, half in enumerate(members):
            if number >= 2 and part.left < 6 + 1.5 * one:
                break
            own = Problem(problem.x, problem.y, half, problem.targets, problem.test, problem.clients)
            params.append(attacked(own.job(asked, keys, seed=SEED + 1 + number))[-1].state.model)
        pool = Batch(problem.x, problem.y, (len(problem.y),))
        even = len(params) // 2 * 2
        shadows = Shadows(pool, torch.stack(params[:even]), members[:even])
        attack(asked, problem, job, views, shadows, part, what, names)


def own_rounds(asked: argparse.Namespace) -> dict[str, Any]:
    return {"rounds": asked.private_rounds}


def resnet(asked: argparse.Namespace, problem: Problem, clock: Clock) -> None:
    """Attack a ResNet-18 that was trained without privacy."""
    global GROUP
    GROUP = 2
    plain(asked, problem, clock, "resnet", reserve=20)


# --- the page


def page(asked: argparse.Namespace) -> None:
    """Write docs/results/membership.md and its picture from the results."""
    from membership_page import write

    write(rows_of(asked), Path(asked.page), PAPER)


COMMANDS = {"probe": probe, "plain": plain, "private": private, "udp": udp, "resnet": resnet}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commands", nargs="+", choices=(*COMMANDS, "page"), metavar="COMMAND")
    parser.add_argument("--out", required=True, help="folder of membership.json")
    parser.add_argument("--data", help="folder of CIFAR-10; by default where `sordino datasets` keeps it")
    parser.add_argument("--cache", default=str(Path(tempfile.gettempdir()) / "sordino-membership"))
    parser.add_argument("--page", default="docs/results", help="folder of the page")
    parser.add_argument("--seconds", type=float, nargs="+", default=[600.0], help="for each command, or one for all")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--model", help="cnn-femnist, with resnet resnet18")
    parser.add_argument("--setting", choices=tuple(SETTINGS), help="of training without privacy")
    parser.add_argument("--records", type=int, help="members; as many others (25,000; resnet 10,000)")
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--targets", type=int, default=20_000, help="attacked records, half of them members")
    parser.add_argument("--shadows", type=int, help="64; private at most 16; resnet 8")
    parser.add_argument("--rounds", type=int, help="without privacy, of one pass over each client's records (30; 20)")
    parser.add_argument("--private-rounds", type=int, default=PRIVATE["rounds"])
    parser.add_argument("--batch", type=int, default=50, help="records of a client's step without privacy")
    parser.add_argument("--epsilon", type=float, nargs="+", default=[2.0, 8.0])
    return parser.parse_args()


def main() -> None:
    given = arguments()
    given.words = "python benchmarks/membership.py " + shlex.join(sys.argv[1:])
    os.environ.setdefault("SORDINO_HOME", str(Path(given.cache) / "home"))
    seconds = given.seconds * len(given.commands) if len(given.seconds) == 1 else given.seconds
    for command, limit in zip(given.commands, seconds, strict=True):
        asked, big = argparse.Namespace(**vars(given)), command == "resnet"
        asked.model = given.model or ("resnet18" if big else "cnn-femnist")
        asked.records = given.records or (10_000 if big else 25_000)
        asked.shadows = given.shadows or (8 if big else 64)
        asked.rounds = given.rounds or (20 if big else 30)
        if command == "page":
            page(asked)
            continue
        clock = Clock(limit)
        problem = Problem.read(asked, build.device_of(asked.device))
        print(f"{command}: data ready, {clock.left:.0f} s left", flush=True)
        COMMANDS[command](asked, problem, clock)


if __name__ == "__main__":
    main()
