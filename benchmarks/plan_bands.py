"""How much accuracy noise costs: the table behind the bands of `sordino plan`.

    python benchmarks/plan_bands.py            # runs the grid, writes src/sordino/runs/files/bands.json
    python benchmarks/plan_bands.py cnn mlp    # these models only; the others' lines stay as they are
    python benchmarks/plan_bands.py --table    # a summary of the table, and how often a band holds what was left out

Every run is one of Sordino's own engine on embedded MNIST records: 2,000 training records are held out and measured on,
the test set is not used. Noise is placed at fixed levels of the run's noise-to-signal ratio
(see sordino/runs/planner.py); the epsilon that gives this noise is computed first and the run calibrates itself to it.
`kept` is the accuracy divided by that of the same run (model, clients, rounds) without privacy: neither noise nor
clip, or a clip alone, at either learning rate, whichever is best. Every setting is run at two learning rates, a factor
of four apart, which train its model without noise; with noise both are divided by sqrt(1 + NSR^2) of a round.
"""

import json
import math
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import sordino
from sordino.advice import planner
from sordino.core.rng import Stream
from sordino.data import partition
from sordino.data.clients import ArrayClients
from sordino.data.dataset import Scaled
from sordino.data.load import load
from sordino.features.scattering import scattering
from sordino.models.cnn import cnn
from sordino.models.linear import linear

FILE = Path(__file__).parent.parent / "src" / "sordino" / "runs" / "files" / "bands.json"
HELD_OUT, DELTA, SEED = 2_000, 1e-5, 0
LEVELS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)  # noise-to-signal ratios of the whole run
NO_NOISE = 1e-4  # and one that is none
COLUMNS = [
    "model", "parameters", "unit", "clients", "records", "client_rate", "batch_rate", "rounds", "learning_rate",
    "epsilon", "noise_multiplier", "level", "accuracy", "without", "kept",
]  # fmt: skip


@dataclass(frozen=True)
class Bench:
    name: str
    make: Callable[[], nn.Module]
    features: Callable[[Tensor], Tensor]
    learning_rate: float  # where records are clipped to 1; a quarter of it where updates are clipped to the rate
    records: int  # in all
    rounds: tuple[int, ...]
    record_clients: int = 10  # clients in a run that protects records
    clients: int = 200  # and in one that protects clients
    client_rate: float = 1.0
    batch_rate: float = 1.0


SCALED = Scaled((0.1307,), (0.3081,))  # MNIST's published mean and deviation


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(784, 256), nn.Tanh(), nn.Linear(256, 10))


def pooled(x: Tensor) -> Tensor:
    return F.normalize(F.avg_pool2d(SCALED(x), 4).flatten(1)) * 10


def pixels(x: Tensor) -> Tensor:
    return F.normalize(SCALED(x).flatten(1)) * 10


BENCHES = (
    Bench("linear, 49 pixels", lambda: linear((49,), 10), pooled, 8.0, 4_000, (20, 160)),
    Bench("linear, scattering", lambda: linear((784,), 10), scattering, 8.0, 8_000, (20, 80)),
    Bench(
        "linear, scattering, sampled", lambda: linear((784,), 10), scattering, 8.0, 8_000, (80,),
        clients=400, client_rate=0.25, batch_rate=0.25,
    ),
    Bench("mlp", mlp, pixels, 4.0, 2_000, (40,), record_clients=4, clients=20),
    Bench("cnn", lambda: cnn((1, 28, 28), 10), SCALED, 4.0, 800, (40,), record_clients=4, clients=80),
)  # fmt: skip


class Data:
    """The records of one bench, features already made."""

    def __init__(self, bench: Bench, x: Tensor, y: Tensor) -> None:
        features = bench.features(x[: HELD_OUT + bench.records])
        self.test = features[:HELD_OUT], y[:HELD_OUT]
        self.x, self.y = features[HELD_OUT:], y[HELD_OUT : HELD_OUT + bench.records]

    def clients(self, count: int) -> ArrayClients:
        parts = partition.iid(len(self.x), count, Stream.research(SEED).at("partition"))
        return ArrayClients.split(self.x, self.y, parts)


def train(bench: Bench, data: Data, count: int, **keys: Any) -> float:
    with torch.random.fork_rng(devices=[]), tempfile.TemporaryDirectory() as out:
        torch.manual_seed(SEED)
        common = {"device": "cpu", "delta": DELTA, "seed": SEED, "out": out, "evaluate_every": 10**6}
        result = sordino.train(bench.make(), data.clients(count), test=data.test, **(common | keys))
    return result.accuracy or 0.0


def setting(unit: str) -> planner.TrustSetting:
    wanted = {"record": "server", "client": "public"}[unit]
    return next(s for s in planner.SETTINGS if (s.unit, s.viewer) == (unit, wanted))


def line(bench: Bench, data: Data, unit: str, rounds: int) -> list[list[Any]]:
    """All levels of one setting, at both learning rates."""
    count = bench.record_clients if unit == "record" else bench.clients
    parameters = sum(p.numel() for p in bench.make().parameters())
    how, size = setting(unit), len(data.x) // count
    rates = (bench.client_rate if unit == "client" else 1.0, bench.batch_rate if unit == "record" else 1.0)
    asked = planner.PlanQuestion(count, size, parameters, 1.0, DELTA, rounds, *rates)
    highest = bench.learning_rate if unit == "record" else bench.learning_rate / 4
    keys = {"rounds": rounds, "client_rate": rates[0], "batch_rate": rates[1]}
    found, without = [], []
    for rate in (highest, highest / 4):
        without.append(train(bench, data, count, method="none", learning_rate=rate, **keys))
        for level in (NO_NOISE, *LEVELS):
            z = level * math.sqrt(rounds) / planner.nsr_of(how, asked, 1.0)
            if min(rates) < 1 and z < 0.1:  # its epsilon is beyond every grid
                continue
            epsilon = how.guarantee(asked, rounds, z).epsilon
            lower = rate / math.sqrt(1 + level * level * rounds)
            own = {"method": "dp-sgd"} if unit == "record" else {"method": "dp-fedavg", "clip": lower}
            accuracy = train(bench, data, count, epsilon=epsilon, learning_rate=lower, **own, **keys)
            if level == NO_NOISE:
                without.append(accuracy)
            else:
                found.append([float(f"{v:.4g}") for v in (lower, epsilon, z)] + [level, accuracy])
    best = max(without)
    return [
        [bench.name, parameters, unit, count, size, *rates, rounds, *row, best, round(row[-1] / best, 4)]
        for row in found
    ]


def grid(names: list[str]) -> None:
    torch.set_num_threads(1)
    data = load("mnist")
    order = torch.from_numpy(Stream.research(99).permutation(len(data.y_train)))
    x, y = data.x_train[order], data.y_train[order]
    for bench in (b for b in BENCHES if b.name in names):
        held, rows = Data(bench, x, y), []
        for unit in ("record", "client"):
            for rounds in bench.rounds:
                start = time.monotonic()
                found = line(bench, held, unit, rounds)
                kept, seconds = " ".join(f"{r[-1]:.2f}" for r in found), time.monotonic() - start
                print(
                    f"{bench.name}, {unit}, {rounds} rounds: {kept} of {found[0][-2]:.3f} ({seconds:.0f} s)", flush=True
                )
                rows += found
        write(bench.name, rows)


def write(name: str, rows: list[list[Any]]) -> None:
    """Put the lines of one model into the file, in place of those it had."""
    kept = json.loads(FILE.read_text(encoding="utf-8"))["rows"] if FILE.is_file() else []
    known = [b.name for b in BENCHES]
    rows = sorted([r for r in kept if r[0] != name and r[0] in known] + rows, key=lambda r: known.index(r[0]))
    head = {"made_by": "python benchmarks/plan_bands.py", "data": "MNIST, 2,000 held-out training records"}
    body = ",\n".join(json.dumps(row) for row in rows)
    text = json.dumps(head)[:-1] + f',\n"columns": {json.dumps(COLUMNS)},\n"rows": [\n{body}\n]}}\n'
    FILE.write_text(text, encoding="utf-8")


def table() -> None:
    """What is kept at each level, by model, in per cent; and how often the other models' band holds a run."""
    rows = planner.measured()
    models = list(dict.fromkeys(m.model for m in rows))
    for unit in ("record", "client"):
        print(f"| {unit}: NSR of the run | " + " | ".join(models) + " | all |\n" + "| --- " * (len(models) + 2) + "|")
        for level in planner.levels(unit):
            cells = []
            for model in (*models, None):
                kept = [m.kept for m in rows if (m.unit, m.level) == (unit, level) and model in (None, m.model)]
                cells.append(f"{100 * min(kept):.0f} to {100 * max(kept):.0f}" if kept else "")
            print(f"| {level:g} | " + " | ".join(cells) + " |")
        print(f"\nWorks up to {planner.useful(unit):g}.\n")
    for model in models:
        inside = total = 0
        for run in (m for m in rows if m.model == model):
            level = (run.unit, run.level)
            others = [m.kept for m in rows if (m.unit, m.level) == level and m.model != model]
            inside, total = inside + (min(others) - 0.02 <= run.kept <= max(others) + 0.02), total + 1
        print(f"{model}: {inside} of {total} runs lie within (2 per cent of) the band of the other models.")


def main() -> None:
    names = [b.name for b in BENCHES]
    if sys.argv[1:] == ["--table"]:
        table()
    elif unknown := [a for a in sys.argv[1:] if a not in names]:
        sys.exit(f"{__doc__}\nunknown: {unknown}; models: {names}")
    else:
        grid(sys.argv[1:] or names)


if __name__ == "__main__":
    main()
