"""Figures and tables of papers as lists of runs, and the presentation of their results.

A trial is one run: a row of the table (a method as the paper names it), an x (an epsilon, a number of clients, ...), a
form and a seed. The forms are `printed` (the paper's method as printed; its epsilon is a claim), `sound` (the sound
form; its epsilon is accounted), `features` (the sound form on fixed features instead of the paper's network) and
`reference` (without privacy).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sordino.report.summary import Spread

FORMS = ("printed", "sound", "features", "reference")
VERDICTS = ("Reproduced", "Reproduced in part", "Not reproduced", "Opposite", "Not comparable")

LINEAR: dict[str, dict[float, dict[str, Any]]] = {  # settings by the smallest epsilon that they apply to
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
    """Return the settings of a linear model on fixed features: 50 clients, one full-batch step per round, the last
    quarter of the models averaged.

    Learning rates were chosen for DP-SGD on held-out training records at epsilon 0.3, 0.5, 2 (MNIST), 1, 2
    (Fashion-MNIST; docs/results/utility.md) and 0.5, 2 (CIFAR-10; docs/results/002/settings.md); 4 for MNIST at 1 lies
    between its neighbours."""
    chosen = LINEAR[dataset][max(e for e in LINEAR[dataset] if e <= epsilon)]
    return {"dataset": dataset, "clients": 50, "delta": 1e-5, "epsilon": epsilon, "averaging": "tail:0.25"} | chosen


@dataclass(frozen=True)
class Trial:
    """One run of an experiment."""

    row: str  # label of the method in the table
    x: float | str  # value of the varied quantity
    form: str  # one of FORMS
    seed: int
    keys: Mapping[str, Any]  # keys of the run file

    @property
    def name(self) -> str:
        """The name of the run folder."""
        words = "-".join(str(w) for w in (self.row, self.x, self.form, f"seed{self.seed}"))
        return "".join(c if c.isalnum() or c in "-._" else "_" for c in words)[:64]


@dataclass(frozen=True)
class Outcome:
    """The results of a trial, read from the files of its run."""

    trial: Trial
    result: Mapping[str, Any]  # contents of result.json
    records: Sequence[Mapping[str, Any]]  # one per round
    folder: Path = Path()  # the run folder

    @property
    def score(self) -> float:
        """The accuracy in percent; for a regression, the root mean squared error."""
        accuracy = self.result.get("accuracy")
        if accuracy is not None:
            return 100.0 * float(accuracy)
        rmse = (self.result.get("metrics") or {}).get("rmse")
        return math.nan if rmse is None else float(rmse)

    def curve(self, name: str) -> tuple[list[int], list[float]]:
        """Return the rounds at which a value is known, and the value in each of them.

        `name` is "accuracy" (in percent) or a key of the record, of its `decided` or of its `metrics`."""
        values = [(r["round"], _value(r, name)) for r in self.records]
        known = [(n, v) for n, v in values if v is not None]
        return [n for n, _ in known], [100.0 * v if name == "accuracy" else v for _, v in known]

    @property
    def diverged(self) -> bool:
        """Whether the loss of the last evaluation was not finite."""
        last = next((r for r in reversed(self.records) if r.get("evaluated_on") is not None), {"loss": 0.0})
        return last.get("loss") is None

    @property
    def honest(self) -> float:
        """The accounted epsilon."""
        epsilon = self.result["guarantee"]["epsilon"]
        return math.inf if epsilon is None else float(epsilon)

    @property
    def whom(self) -> str:
        """The unit of privacy and the viewer of the accounted guarantee."""
        promised = self.result["guarantee"]
        return f"{promised['unit']}, {promised['viewer']}"


def _value(record: Mapping[str, Any], name: str) -> float | None:
    value = record.get(name)
    if name == "noise":  # prefer the injected noise over the planned one, which early records have
        value = (record.get("decided") or {}).get("std", value)
    if value is None:
        value = (record.get("decided") or {}).get(name, (record.get("metrics") or {}).get(name))
    return float(value) if isinstance(value, int | float) else None


Points = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Experiment:
    """A figure or table of a paper: its runs, the paper's numbers, and how the results are shown."""

    name: str  # such as 002/fig4d
    title: str
    about: str  # setting, interpretation and differences from the paper, in sentences
    trials: Callable[[float], list[Trial]]  # the runs at a given scale
    paper: Mapping[tuple[str, Any], float] = field(default_factory=dict)  # the paper's numbers by (row, x)
    x: str = "epsilon"  # label of the varied quantity
    y: str = "accuracy, %"  # label of the score
    kind: str = "against-x"  # of picture: against-x, by-round (of `curve`), boxes, path, points (of `points`), table
    curve: str = "accuracy"  # value shown by round
    extra: Callable[[Sequence[Outcome]], list[str]] | None = None  # further lines of the page
    beside: Sequence[str] = ()  # by-round: further curves of a printed run, on a second axis
    bounds: Callable[[Outcome], Mapping[str, Sequence[float]]] | None = None  # by-round: bounds from theorems
    points: Callable[[Sequence[Outcome]], Mapping[str, Points]] | None = None  # measured values, and those of theorems
    log: bool = True  # whether points are drawn on a logarithmic axis
    within: str = ""  # name of the experiment whose runs, or some of them, are used
    verdict: str = (
        ""  # whether the full experiment shows what the paper shows, and why not; begins with one of VERDICTS
    )


def scaled(count: int, scale: float, least: int) -> int:
    """Return a number of rounds, clients or seeds reduced for a small machine, but not below min(count, least)."""
    return max(min(count, least), round(count * scale))


def seeds(count: int, scale: float) -> range:
    """Return the seeds of an experiment at this scale."""
    return range(scaled(count, scale, 1))


def spread(outcomes: Sequence[Outcome], row: str, x: float | str, form: str) -> Spread:
    """Return the mean and spread over seeds of the scores at one row, x and form."""
    return Spread.of(o.score for o in outcomes if (o.trial.row, o.trial.x, o.trial.form) == (row, x, form))


def honest(outcomes: Sequence[Outcome], row: str, x: float | str, form: str) -> float | None:
    """Return the largest accounted epsilon over seeds at one row, x and form; None if there are no runs."""
    each = [o.honest for o in outcomes if (o.trial.row, o.trial.x, o.trial.form) == (row, x, form)]
    return max(each) if each else None
