"""Curves over rounds, from the round records, and what they show in words."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from sordino.core.record import OwnerRecord, RoundRecord
from sordino.report.chart import Axis, ChartSeries, Point, thinned
from sordino.report.run.fields import WHOLE, is_number
from sordino.report.run.words import figures, percent

R = TypeVar("R", RoundRecord, OwnerRecord)
ROUNDS = Axis("round")  # the horizontal axis of a chart over rounds
COLUMNS = 60  # most columns of a heat map over rounds


def real(value: Any) -> float:
    """Return a value as a finite number, and as nan if it is none."""
    return float(value) if is_number(value) else math.nan


def curve(rounds: Sequence[R], value: Callable[[R], Any]) -> tuple[Point, ...]:
    """Return the points of all rounds that have a value; nan leaves a gap, such as for a loss that is not finite."""
    out = []
    for record in rounds:
        found = value(record)
        if found is not None and record.round <= WHOLE:
            out.append((float(record.round), real(found)))
    return tuple(out)


def finite(points: Iterable[Point]) -> list[Point]:
    """Return the points that have a value."""
    return [p for p in points if math.isfinite(p[1])]


def series(name: str, points: Sequence[Point], **looks: Any) -> ChartSeries:
    """Return a line of at most about 1000 points."""
    return ChartSeries(name, thinned(points), **looks)


def constant(points: Sequence[Point]) -> bool:
    """Return whether all values are the same, up to rounding."""
    values = [y for _, y in finite(points)]
    return bool(values) and max(values) - min(values) <= 1e-9 * max(abs(v) for v in values)


def worded(value: float, share: bool = False) -> str:
    """Return a value in words: a share in percent, any other number with three digits."""
    return percent(value) if share and 0 <= value <= 1 else figures(value)


def trend(
    name: str,
    points: Sequence[Point],
    share: bool = False,
    brief: bool = False,
    words: Callable[[float], str] | None = None,
) -> str:
    """Return what a curve shows: "Accuracy rises from 43 % in round 1 to 93 % in round 12".

    Args:
        name: what the curve is of; it begins the sentence.
        points: the points.
        share: whether values are shares, shown in percent.
        brief: whether the highest and the lowest value are left out.
        words: how a value is written, such as a bound that is rounded up; None: as a share or with three digits.
    """
    say = words or (lambda value: worded(value, share))
    known = finite(points)
    if not known:
        return f"{name} is not known in any round."
    (first, start), (last, end) = known[0], known[-1]
    if len(known) == 1:
        return f"{name} is {say(end)} in round {last:,.0f}."
    if constant(known):
        return f"{name} is {say(end)} in every round."
    before, after = say(start), say(end)
    verb = "rises" if end > start else "falls"
    text = f"{name} {verb} from {before} in round {first:,.0f} to {after} in round {last:,.0f}"
    if before == after:
        text = f"{name} is {before} in round {first:,.0f} and in round {last:,.0f}"
    low, high = min(known, key=lambda p: p[1]), max(known, key=lambda p: p[1])
    ends, extremes = {say(start), say(end)}, []
    if not brief and high[1] > max(start, end) and say(high[1]) not in ends:
        extremes.append(f"highest {say(high[1])} in round {high[0]:,.0f}")
    if not brief and low[1] < min(start, end) and say(low[1]) not in ends:
        extremes.append(f"lowest {say(low[1])} in round {low[0]:,.0f}")
    return f"{text}{''.join(f'; {e}' for e in extremes)}."


def marks(name: str, points: Sequence[Point]) -> ChartSeries:
    """Return points that stand alone, as marks on a chart of lines."""
    out: list[Point] = []
    for x, y in points[:: max(1, -(-len(points) // 400))]:
        out += [(x, y), (x, math.nan)]
    return ChartSeries(name, tuple(out), role="reference")


def stretches(count: int, columns: int = COLUMNS) -> list[tuple[int, int]]:
    """Return at most so many stretches (first, end) that divide a list of this length into parts of about one size."""
    columns = min(count, columns)
    return [(k * count // columns, (k + 1) * count // columns) for k in range(columns)]


def mean(values: Iterable[float]) -> float:
    """Return the mean of the values that are known; nan if none is."""
    known = [v for v in values if math.isfinite(v)]
    return math.fsum(known) / len(known) if known else math.nan
