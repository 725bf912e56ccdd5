"""A figure or table of a paper as a list of runs, and what is made of their results.

A trial is one run: a row of the table (a method as the paper has it), an x (an epsilon, a number of clients, ...), a
form and a seed. Forms: `printed` (the paper's method as printed, its epsilon a claim), `sound` (the sound form, its
epsilon accounted), `features` (the sound form on fixed features instead of the paper's network) and `reference`
(without privacy).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sordino.report.summary import Spread

FORMS = ("printed", "sound", "features", "reference")


LINEAR: dict[str, dict[float, dict[str, Any]]] = {  # by epsilon, from which on it is taken
    "mnist": {e: {"rounds": 50, "learning_rate": rate} for e, rate in ((0.0, 1.0), (0.5, 2.0), (1.0, 4.0), (2.0, 8.0))},
    "fashion-mnist": {
        e: {"rounds": 100, "learning_rate": rate, "features": "silhouettes"} for e, rate in ((0.0, 4.0), (2.0, 8.0))
    },
    "cifar10": {
        e: {"rounds": 50, "learning_rate": rate, "features": "colour-scattering"}
        for e, rate in ((0.0, 1.0), (2.0, 8.0))
    },
}


def on_features(dataset: str, epsilon: float) -> dict[str, Any]:
    """A linear model on fixed features, 50 clients, a full-batch step a round, the last quarter of the models averaged.

    Learning rates were chosen for DP-SGD on held-out training records at epsilon 0.3, 0.5, 2 (MNIST), 1, 2
    (Fashion-MNIST; docs/results/utility.md) and 0.5, 2 (CIFAR-10; docs/results/002/settings.md); 4 for MNIST at 1 lies
    between its neighbours."""
    chosen = LINEAR[dataset][max(e for e in LINEAR[dataset] if e <= epsilon)]
    return {"dataset": dataset, "clients": 50, "delta": 1e-5, "epsilon": epsilon, "averaging": "tail:0.25"} | chosen


@dataclass(frozen=True)
class Trial:
    row: str
    x: float | str
    form: str
    seed: int
    keys: Mapping[str, Any]  # of a run file

    @property
    def name(self) -> str:
        """Of its run folder."""
        words = "-".join(str(w) for w in (self.row, self.x, self.form, f"seed{self.seed}"))
        return "".join(c if c.isalnum() or c in "-._" else "_" for c in words)[:64]


@dataclass(frozen=True)
class Outcome:
    """What a trial left: the files of its run."""

    trial: Trial
    result: Mapping[str, Any]
    records: Sequence[Mapping[str, Any]]
    folder: Path = Path()  # its run folder

    @property
    def score(self) -> float:
        """Accuracy in percent; of a regression the root of the mean squared error."""
        found = self.result.get("accuracy")
        if found is not None:
            return 100.0 * float(found)
        rmse = (self.result.get("metrics") or {}).get("rmse")
        return math.nan if rmse is None else float(rmse)

    def curve(self, name: str) -> tuple[list[int], list[float]]:
        """A figure by round: accuracy in percent, or whatever the record has by that name, at its top or `decided`."""
        found = [(r["round"], _value(r, name)) for r in self.records]
        kept = [(n, v) for n, v in found if v is not None]
        return [n for n, _ in kept], [100.0 * v if name == "accuracy" else v for _, v in kept]

    @property
    def diverged(self) -> bool:
        """Whether the last evaluation found no finite loss."""
        last = next((r for r in reversed(self.records) if r.get("evaluated_on") is not None), {"loss": 0.0})
        return last.get("loss") is None

    @property
    def honest(self) -> float:
        """Accounted epsilon."""
        found = self.result["guarantee"]["epsilon"]
        return math.inf if found is None else float(found)

    @property
    def whom(self) -> str:
        promised = self.result["guarantee"]
        return f"{promised['unit']}, {promised['viewer']}"


def _value(record: Mapping[str, Any], name: str) -> float | None:
    found = record.get(name)
    if name == "noise":  # what was injected before what was foreseen, as early records have it
        found = (record.get("decided") or {}).get("std", found)
    if found is None:
        found = (record.get("decided") or {}).get(name, (record.get("metrics") or {}).get(name))
    return float(found) if isinstance(found, int | float) else None


Points = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Experiment:
    """`trials(scale)` are the runs; `paper` the paper's own numbers by (row, x); `kind` says which picture is drawn."""

    name: str  # such as 002/fig4d
    title: str
    about: str  # setting, readings and what differs from the paper, in sentences
    trials: Callable[[float], list[Trial]]
    paper: Mapping[tuple[str, Any], float] = field(default_factory=dict)
    x: str = "epsilon"
    y: str = "accuracy, %"
    kind: str = "against-x"  # against-x, by-round (of `curve`), boxes, path, points (of `points`), table
    curve: str = "accuracy"
    extra: Callable[[Sequence[Outcome]], list[str]] | None = None  # further lines of the page
    beside: Sequence[str] = ()  # by round: other curves, of a run as printed, with an axis of their own
    bounds: Callable[[Outcome], Mapping[str, Sequence[float]]] | None = None  # by round: what a theorem says
    points: Callable[[Sequence[Outcome]], Mapping[str, Points]] | None = None  # measured, and what a theorem says
    log: bool = True  # whether points are drawn on a logarithmic axis
    within: str = ""  # the experiment whose runs these are, some or all of them


def scaled(count: int, scale: float, least: int) -> int:
    """Fewer rounds, clients or seeds on a small machine."""
    return max(min(count, least), round(count * scale))


def seeds(count: int, scale: float) -> range:
    return range(scaled(count, scale, 1))


def spread(found: Sequence[Outcome], row: str, x: float | str, form: str) -> Spread:
    return Spread.of(o.score for o in found if (o.trial.row, o.trial.x, o.trial.form) == (row, x, form))


def honest(found: Sequence[Outcome], row: str, x: float | str, form: str) -> float | None:
    each = [o.honest for o in found if (o.trial.row, o.trial.x, o.trial.form) == (row, x, form)]
    return max(each) if each else None
