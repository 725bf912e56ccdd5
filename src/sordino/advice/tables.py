"""Accuracy bands for tables: what a run on records of numbers would keep, from its noise and measured runs alone.

Noise ratio of a run of `linear` on a table with d features: s sqrt(d + 1), where s is the standard deviation of the
noise in one coordinate of the mean clipped gradient, over the clip, divided by the square root of the number of steps.
With all records in every step, mu the Gaussian privacy level of (epsilon, delta), n records and K clients

    s = sqrt(K) / (mu n)    if every client adds all of its noise
    s = 1 / (mu n)          through a secure sum

It depends on public facts only, and predicts across tables how much of the signal survives. Above DROWNS no setting
that we know of helps: the noise drowns the signal.

The gain of a run is the part of what a model without privacy gains over guessing the most frequent class that it kept:
(accuracy - majority) / (accuracy without privacy - majority). advice/files/tables.json holds measured runs, written by
benchmarks/table_bands.py. A band is the lowest and the highest gain of the runs whose ratio is within a factor NEAR.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources

from sordino.advice.case import Case
from sordino.advice.planner import HOPELESS, WORKS
from sordino.privacy.accountants import gdp
from sordino.runs import defaults

DOUBTFUL, DROWNS = (
    defaults.LOUD,
    defaults.DROWNS,
)  # noise ratios above which a run is doubtful, and above which nothing helps
NEAR = 2.0  # factor between the noise ratios of a run and of the measured runs that it is compared with
LEAST_RUNS = 3  # number of the nearest runs that make a band where fewer are within that factor


@dataclass(frozen=True)
class TableRun:
    """A measured run on a table, or the mean of several that differ in their seed."""

    dataset: str
    clients: int
    channel: str
    epsilon: float
    ratio: float
    accuracy: float
    majority: float  # accuracy of guessing the most frequent class
    without: float  # accuracy of logistic regression without privacy

    @property
    def gain(self) -> float:
        """The part of the possible gain that was kept, between 0 and 1."""
        return min(1.0, max(0.0, (self.accuracy - self.majority) / (self.without - self.majority)))


@dataclass(frozen=True)
class MeasuredTables:
    """All measured runs, and how they were made."""

    made_by: str
    runs: tuple[TableRun, ...]


@lru_cache
def measured() -> MeasuredTables:
    """Return the measured runs, read from advice/files/tables.json."""
    text = (resources.files("sordino.advice") / "files" / "tables.json").read_text(encoding="utf-8")
    table = json.loads(text)
    rows = [dict(zip(table["columns"], row, strict=True)) for row in table["rows"]]
    return MeasuredTables(table["made_by"], tuple(TableRun(**row) for row in rows))


@dataclass(frozen=True)
class TableAdvice:
    """What the planner says of one run on a table."""

    ratio: float
    band: tuple[float, float] | None  # of the gain; None: so much noise was never measured
    verdict: str  # "works", "uncertain" or "hopeless"
    near: tuple[TableRun, ...]  # the measured runs that the band is made of
    needed: tuple[tuple[str, float], ...]  # each single change that would bring the ratio down to a useful level


def applies(examined: Case) -> bool:
    """Return whether a run is one that the bands are for: a private linear classifier of records of a table."""
    data, job, sample = examined.data, examined.job, examined.sample
    if data is None or job is None or sample is None or not job.method.private or not job.method.noisy_steps:
        return False
    table = data.x_train.ndim == 2 and data.x_train.is_floating_point()
    return table and data.task == "classification" and examined.spec.model == "linear"


def ratio_of(examined: Case) -> float | None:
    """Return the noise ratio s sqrt(d + 1) of a run, or None if there is none."""
    nsr, job, sample = examined.nsr(), examined.job, examined.sample
    if nsr is None or job is None or sample is None:
        return None
    return nsr * math.sqrt((sample[0].numel() + 1) / job.model.layout.dim)  # nsr counts every parameter


def ratio(epsilon: float, delta: float, records: int, features: int, clients: int, channel: str = "direct") -> float:
    """Return the noise ratio of a run with all records in every step, by the formula above."""
    share = 1.0 if channel == "secure-sum" else math.sqrt(clients)
    return share / (gdp.mu_for(epsilon, delta) * records) * math.sqrt(features + 1)


def near(value: float) -> tuple[TableRun, ...]:
    """Return the measured runs with about this noise ratio, or the nearest ones; none if all had much less noise."""
    runs = sorted(measured().runs, key=lambda run: abs(math.log(run.ratio / value)))
    if value > NEAR * max(run.ratio for run in runs):
        return ()
    close = [run for run in runs if value / NEAR <= run.ratio <= value * NEAR]
    return tuple(close if len(close) >= LEAST_RUNS else runs[:LEAST_RUNS])


def band(value: float) -> tuple[float, float] | None:
    """Return the lowest and the highest gain of measured runs with about this noise ratio; None if there are none."""
    gains = [run.gain for run in near(value)]
    return (min(gains), max(gains)) if gains else None


def verdict(value: float) -> str:
    """Return "works", "uncertain" or "hopeless", with the thresholds of the planner."""
    gains = band(value)
    if value > DROWNS or (gains is not None and gains[1] < HOPELESS):
        return "hopeless"
    return "works" if gains is not None and gains[0] >= WORKS and value <= DOUBTFUL else "uncertain"


@lru_cache
def useful() -> float:
    """Return the largest measured noise ratio, up to DOUBTFUL, at which the verdict is "works"."""
    works = [run.ratio for run in measured().runs if verdict(run.ratio) == "works"]
    return max(works, default=min(run.ratio for run in measured().runs))


def advice(examined: Case) -> TableAdvice | None:
    """Return the advice for a run on a table; None if the bands do not apply to it."""
    value = ratio_of(examined) if applies(examined) else None
    if value is None:
        return None
    said = verdict(value)
    return TableAdvice(value, band(value), said, near(value), () if said == "works" else _needed(examined, value))


def _needed(examined: Case, value: float) -> tuple[tuple[str, float], ...]:
    """Return the smallest single changes that bring the noise ratio down to a useful level."""
    wanted, excess = examined.spec, value / useful()
    out: list[tuple[str, float]] = []
    clients = examined.clients or 1
    if wanted.channel == "direct" and excess <= math.sqrt(clients):
        out.append(("channel", 1.0 / math.sqrt(clients)))
    mu = gdp.mu_for(wanted.epsilon, wanted.delta) * excess
    if mu < 10:  # beyond that, the epsilon protects nobody
        out.append(("epsilon", math.ceil(10 * gdp.epsilon_of_mu(mu, wanted.delta)) / 10))
    if examined.records is not None:
        out.append(("records", math.ceil(examined.records * excess)))
    return tuple(out)
