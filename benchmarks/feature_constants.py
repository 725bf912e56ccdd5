"""Choose the constants of the fixed picture features on training records alone (docs/results/features.md).

    python benchmarks/feature_constants.py oriented-gradients silhouettes colour-scattering    # 50,000 records: a GPU
    python benchmarks/feature_constants.py silhouettes --train 6000 --held-out 3000 --sweeps 1  # a core, some minutes

One constant at a time, each from a small grid, in sweeps; first those that say how much the noise counts, last those
that make features long; values that make them longer than 3,000 numbers are left out, since whitening costs the cube of
that. The start is what the papers have, or the simplest value where they have none. A candidate's
score is the accuracy of a linear model that is trained as private ones are: clipped gradients of all records, Gaussian
noise, the last quarter of the models averaged, the best of five learning rates. The noise in the mean gradient is that
of the whole training set, however few records are trained on. A constant moves to the best value of its grid if that
wins on more held-out records than it loses by more than one standard error.

Prints Markdown: every candidate, then what was chosen and what the package has. What is chosen for one feature holds
for the next ones that are named: silhouettes take the histograms of oriented-gradients. Reads no test record. With
--records, training pictures come from .npz files in a folder, and torch and numpy are all that is needed.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from sordino.features import colour_scattering, oriented_gradients, silhouettes

ROUNDS, CLASSES = 50, 10
RATES = (10.0, 40.0, 160.0, 640.0, 2560.0)  # learning rates, times the norm of a row
ONCE = {8.0: 0.6003, 2.0: 1.9939}  # noise multiplier of one Gaussian release, by epsilon; delta = 1e-5
FILES = {"cifar10": [f"cifar10_train_{i}.npz" for i in range(1, 6)], "fashion-mnist": ["fashion_mnist.npz"]}
Constants = dict[str, Any]


@dataclass(frozen=True)
class Case:
    module: ModuleType
    compute: Callable[[Tensor], Tensor]
    dataset: str
    records: int  # of the whole training set, for which the noise is meant
    noise: float  # multiplier of all rounds together
    axes: Mapping[str, tuple[Any, ...]]  # by constant; the first value of each is the start


CASES = {
    "oriented-gradients": Case(
        oriented_gradients, oriented_gradients.oriented_gradients, "cifar10", 50_000, ONCE[8.0],
        {
            "NORM": (1.0, 3.0, 10.0, 30.0),
            "RIDGE": (0.1, 0.01, 0.03, 0.3, 1.0, 3.0, 10.0),
            "DECAY": (1.0, 0.7, 1.3, 1.6, 2.0, 2.5, 3.0),  # 1: Field
            "CHROMA": (1.0, 0.1, 0.2, 0.35, 0.5),
            "COLOUR": (1.0, 0.0, 0.3, 3.0, 10.0),
            "HYS": (0.2, 0.1, 0.3, 1.0),  # 0.2: Dalal & Triggs
            "BINS": ((9, 9, 9), (6, 6, 6), (12, 12, 12), (9, 6, 6), (12, 6, 6), (18, 9, 9)),
            "GRID": (4, 3),  # cells of 8 pixels: Dalal & Triggs
            "SCALES": ((1,), (2,), (1, 2)),
        },
    ),
    "colour-scattering": Case(
        colour_scattering, colour_scattering.colour_scattering, "cifar10", 50_000, ONCE[8.0],
        {
            "NORM": (1.0, 3.0, 10.0, 30.0),
            "RIDGE": (0.1, 0.003, 0.01, 0.03, 0.3, 1.0),
            "DECAY": (1.0, 0.7, 1.3, 1.6, 2.0, 2.5, 3.0),
            "CHROMA": (1.0, 0.1, 0.2, 0.35, 0.5),
            "ANGLES": (8, 4, 6),  # 8: Oyallon & Mallat
            "GRID": (8, 4, 6),  # a window every 4 pixels: Oyallon & Mallat
        },
    ),
    "silhouettes": Case(  # 50 clients, each of which adds the whole noise; histograms as in oriented_gradients
        silhouettes, silhouettes.silhouettes, "fashion-mnist", 60_000, ONCE[2.0] * math.sqrt(50),
        {
            "NORM": (1.0, 3.0, 10.0, 30.0, 100.0),
            "RIDGES": ((0.1, 0.1), *((a, b) for a in (0.03, 0.3) for b in (0.03, 0.3, 1.0)), (0.1, 0.3), (0.1, 1.0)),
            "TEXTURE": (1.0, 0.7, 1.3, 1.6),
            "SHAPE": (1.0, 1.5, 2.0, 2.5, 3.0, 4.0),
            "CENTRE": (1.0, 0.0, 2.0, 3.0, 5.0),
            "SPREAD": (0.5, 0.25, 0.75, 1.0),
            "SOFT": (1.0, 2.0, 4.0, 8.0),
            "BRIGHT": (0.5, 0.4, 0.6, 0.8),
            "CONTRAST": (0.25, 0.1, 0.5),
        },
    ),
}  # fmt: skip


def main(words: list[str] | None = None) -> dict[str, Constants]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("features", nargs="+", choices=list(CASES))
    parser.add_argument("--train", type=int, default=40_000, help="records to train on")
    parser.add_argument("--held-out", type=int, default=10_000, help="other training records to look at")
    parser.add_argument("--sweeps", type=int, default=2, help="at most; fewer where one changes nothing")
    parser.add_argument("--records", metavar="FOLDER", help="of FILES; instead of datasets by their names")
    asked = parser.parse_args(words)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    chosen = {}
    for name in asked.features:
        case = CASES[name]
        x, y = from_files(Path(asked.records), case.dataset) if asked.records else from_package(case.dataset)
        if len(x) < asked.train + asked.held_out:
            parser.error(
                f"{asked.train} and {asked.held_out} records were asked for, there are {len(x)}: ask for fewer."
            )
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(99))[: asked.train + asked.held_out]
        print(f"\n## {name}\n")
        chosen[name] = choose(case, x[order].to(device), y[order].to(device), asked.train, asked.sweeps)
        set_constants(case.module, chosen[name])
    return chosen


def from_package(dataset: str) -> tuple[Tensor, Tensor]:
    from sordino.data.load import load

    data = load(dataset)
    return data.x_train, data.y_train


def from_files(folder: Path, dataset: str) -> tuple[Tensor, Tensor]:
    """Training pictures; colours come last in a file and first in what is returned."""
    files = [np.load(folder / name) for name in FILES[dataset]]
    x, y = (torch.from_numpy(np.concatenate([file[key] for file in files])) for key in ("x_train", "y_train"))
    return x.permute(0, 3, 1, 2) if x.ndim == 4 else x, y.long()


def choose(case: Case, x: Tensor, y: Tensor, train: int, sweeps: int = 2) -> Constants:
    """The first `train` records are trained on, the others looked at."""
    known: dict[str, Tensor] = {}

    def looked_at(constants: Constants) -> Tensor:
        if (key := str(constants)) not in known:
            known[key] = right(case, constants, x, y, train)
        return known[key]

    shipped = {name: getattr(case.module, name) for name in case.axes}
    current = {name: values[0] for name, values in case.axes.items()}
    print(f"Start: {current}: {share(looked_at(current))} %, {train} records to train on, {len(x) - train} held out.\n")
    print("| sweep | constant | accuracy % by value | taken |\n| --- | --- | --- | --- |", flush=True)
    for sweep in range(1, sweeps + 1):
        before = current
        for name, values in case.axes.items():
            found = {value: looked_at(current | {name: value}) for value in values}
            best = max(values, key=lambda value: int(found[value].sum()))
            if wins(found[best], looked_at(current)):
                current = current | {name: best}
            cells = ", ".join(f"{value}: {share(found[value])}" for value in values)
            print(f"| {sweep} | {name} | {cells} | {current[name]} |", flush=True)
        if current == before:
            break
    print(f"\nChosen: {current}: {share(looked_at(current))} %.")
    print(f"In the package: {shipped}: {share(looked_at(shipped))} %.")
    return current


def share(hits: Tensor) -> str:
    return f"{100 * hits.float().mean().item():.2f}"


def wins(new: Tensor, old: Tensor) -> bool:
    """Whether more records are won than lost, by more than a standard error of that difference."""
    won, lost = int((new & ~old).sum()), int((old & ~new).sum())
    return won - lost > math.sqrt(won + lost)


def right(case: Case, constants: Constants, x: Tensor, y: Tensor, train: int) -> Tensor:
    """Which of the held-out records a noisily trained linear model gets right, at its best learning rate.  bool"""
    shipped = {name: getattr(case.module, name) for name in constants}
    try:
        set_constants(case.module, constants)
        rows = case.compute(x).flatten(1)
    finally:
        set_constants(case.module, shipped)
    rows = torch.cat([rows, rows.new_ones(len(rows), 1)], 1)
    noise = case.noise * math.sqrt(ROUNDS) * train / case.records
    scores = rows[train:] @ noisy_models(rows[:train], y[:train], noise, constants["NORM"])
    hits = scores.view(len(rows) - train, len(RATES), CLASSES).argmax(2) == y[train:, None]
    return hits[:, hits.sum(0).argmax()].cpu()


def set_constants(module: ModuleType, constants: Constants) -> None:
    for name, value in constants.items():
        setattr(module, name, value)
    module.public_whitening.cache_clear()


def noisy_models(rows: Tensor, y: Tensor, noise: float, norm: float) -> Tensor:
    """Softmax regression from zero, every record's gradient clipped to 1; one model a learning rate, side by side.

    [n, dim] -> [dim, rates * CLASSES]"""
    generator, dim = torch.Generator().manual_seed(0), rows.shape[1]
    target = F.one_hot(y, CLASSES).to(rows.dtype)[:, None]
    rates = torch.tensor(RATES, device=rows.device).repeat_interleave(CLASSES) / norm
    lengths = rows.norm(dim=1)[:, None, None]
    weights = rows.new_zeros(dim, len(RATES) * CLASSES)
    average, tail = torch.zeros_like(weights), ROUNDS // 4
    for step in range(ROUNDS):
        away = (rows @ weights).view(len(rows), len(RATES), CLASSES).softmax(2) - target
        away = away / (away.norm(dim=2, keepdim=True) * lengths).clamp_min(1)  # a gradient is the product of the two
        drawn = noise * torch.randn(dim, CLASSES, generator=generator).to(rows.device).repeat(1, len(RATES))
        weights = weights - rates * (rows.T @ away.flatten(1) + drawn) / len(rows)
        if step >= ROUNDS - tail:
            average += weights / tail
    return average


if __name__ == "__main__":
    main()
