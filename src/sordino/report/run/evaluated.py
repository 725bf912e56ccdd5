"""The evaluations of a run: the figures at its end, where they were taken, and how sure they are."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from scipy.special import betaincinv

from sordino.core.record import RoundRecord
from sordino.report.run.fields import Fields, RunSources, one_line, table
from sordino.report.run.metric_words import Metric, metric

CONFIDENCE = 0.95
MOST = 40  # metrics of a run that are shown


@dataclass(frozen=True)
class FinalFigures:
    """The figures at the end of a run, with their source."""

    values: dict[str, float] = field(default_factory=dict)
    where: str = ""  # what the figures were taken on, such as "public test data"
    round: int | None = None
    source: str = ""


def shares(run: RunSources) -> bool:
    """Return whether clients are compared by a share: by the accuracy, and not by the RMSE or the perplexity."""
    last = next((r.metrics for r in reversed(run.records.rounds) if r.metrics), {})
    return not any(name in last or run.result.part("metrics").has(name) for name in ("rmse", "mae", "perplexity"))


def kind_of(run: RunSources) -> Callable[[str], Metric]:
    """Return the function that describes a metric of this run."""
    compared = shares(run)
    return lambda name: metric(name, compared)


def evaluated(record: RoundRecord) -> bool:
    """Return whether the model was evaluated in a round."""
    return record.loss is not None or record.accuracy is not None or bool(record.metrics)


def figures_in(fields: Fields) -> dict[str, float]:
    """Return accuracy, loss and metrics of a record, the accuracy first."""
    out = {}
    for name in ("accuracy", "loss"):
        if (value := fields.number(name)) is not None:
            out[name] = value
    return out | dict(list(fields.part("metrics").numbers().items())[:MOST])


def final(run: RunSources) -> FinalFigures:
    """Return the figures at the end: those of the result, or of the last evaluated round of a run without a result."""
    last = next((r for r in reversed(run.records.rounds) if evaluated(r)), None)
    where = one_line(last.evaluated_on or "") if last is not None else ""
    where = where or run.plan.text("evaluated_on")
    at_end = figures_in(run.result)
    if at_end:
        return FinalFigures(at_end, where, run.result.count("rounds"), "public/result.json: accuracy, metrics")
    if last is None:
        return FinalFigures(where=where)
    fields = Fields("public/records.jsonl", vars(last), run.damage)
    return FinalFigures(figures_in(fields), where, last.round, "public/records.jsonl: the last evaluated round")


def noise_deviation(run: RunSources) -> float | None:
    """Return the standard deviation of the noise in a figure on held-out records; None if the figures are exact."""
    return run.plan.part("evaluation").number("deviation", 0.0) or None


def confusion(run: RunSources) -> tuple[tuple[tuple[float, ...], ...], str]:
    """Return the confusion matrix at the end [class][predicted class] and its source; () if there is none."""
    matrix = run.result.matrix("confusion")
    if matrix:
        return _square(matrix), "public/result.json: confusion"
    last = next((r for r in reversed(run.records.rounds) if r.confusion), None)
    if last is None:
        return (), ""
    return _square(table(last.confusion)), f"public/records.jsonl: confusion (round {last.round:,})"


def _square(matrix: tuple[tuple[float, ...], ...]) -> tuple[tuple[float, ...], ...]:
    return matrix if matrix and len(matrix) == len(matrix[0]) else ()


def interval(right: float, count: float) -> tuple[float, float]:
    """Return the 95 % interval of a share of so many records: Clopper and Pearson (1934)."""
    if not count > 0 or not 0 <= right <= count:
        return math.nan, math.nan
    tail = (1 - CONFIDENCE) / 2
    low = 0.0 if right == 0 else float(betaincinv(right, count - right + 1, tail))
    high = 1.0 if right == count else float(betaincinv(right + 1, count - right, 1 - tail))
    return low, high
