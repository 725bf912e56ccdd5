"""The numbers of a chart as a table, for those who cannot see it, for Markdown and for paper.

Where there are more numbers than anybody reads, evenly spaced places are shown; none is computed anew. `compact` makes
a chart smaller for a page. The words for a number are those of `assets/charts.js`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from sordino.report.chart import Axis, Chart, ChartSeries, thinned

N = TypeVar("N", int, float)
MINUS = "\N{MINUS SIGN}"
DIGITS = 7  # significant digits of a number that a page draws; two of them are far below a pixel


@dataclass(frozen=True)
class NumberTable:
    """Numbers of a chart as text."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    left_out: int  # places of the chart that are not in the table


def number(value: float | None, digits: int = 4, rounded: str = "nearest") -> str:
    """Return a number with so many significant digits and thousands separated, as charts.js writes it."""
    if value is None or not math.isfinite(value):
        return "not known"
    value = bounded(value, digits, rounded)
    size = abs(value)
    if not size:
        return "0"
    if size >= 1e6 or size < 1e-3:
        mantissa, exponent = f"{value:.{digits - 2}e}".split("e")
        return f"{mantissa.rstrip('0').rstrip('.') if '.' in mantissa else mantissa}e{int(exponent)}"
    short = float(f"{value:.{7 if float(value).is_integer() else digits}g}")
    text = f"{short:,.8f}".rstrip("0").rstrip(".")
    return text.replace("-", MINUS)


def bounded(value: float, digits: int, rounded: str) -> float:
    """Return a number that is rounded up or down to so many digits; an error of floating point is no difference."""
    if rounded == "nearest" or not value or float(value).is_integer():
        return value
    kept = digits if 1e-3 <= abs(value) < 1e6 else digits - 1
    near = float(f"{value:.{kept}g}")
    step = 10.0 ** (math.floor(math.log10(abs(value))) - kept + 1)
    away = value - near if rounded == "up" else near - value
    if away <= 1e-9 * abs(value):
        return near
    return float(f"{near + (step if rounded == 'up' else -step):.{kept}g}")


def worded(value: float | None, axis: Axis, digits: int = 4) -> str:
    """Return a value of an axis as text: a category, a percentage or a number."""
    if axis.scale == "category":
        at = -1 if value is None or not math.isfinite(value) else round(value)
        return axis.categories[at] if 0 <= at < len(axis.categories) else ""
    if value is None or not math.isfinite(value):
        return "not known"
    if axis.percent:
        return f"{number(100 * value, digits, axis.rounded)} %"
    return number(value, digits, axis.rounded)


def numbers(chart: Chart, most: int = 40, columns: int = 12) -> NumberTable:
    """Return the numbers of a chart as a table.

    Args:
        chart: the chart.
        most: largest number of rows.
        columns: largest number of columns of a heat map.
    """
    if chart.kind == "heat":
        return _of_cells(chart, most, columns)
    series = [s for s in chart.series if s.points]
    shared = _shared(series, most)
    if shared is None:
        return _one_by_one(chart, series, most)
    places, left_out = _even(shared, most)
    header = (_head(chart.x), *(_of_series(chart, s) for s in series))
    at = [{p[0]: k for k, p in enumerate(s.points)} for s in series]
    rows = tuple(
        (
            worded(x, chart.x),
            *(_value(chart, s, where[x]) if x in where else "" for s, where in zip(series, at, strict=True)),
        )
        for x in places
    )
    return NumberTable(header, rows, left_out)


def _shared(series: Sequence[ChartSeries], most: int) -> list[float] | None:
    """Return the places that a table of all series has as rows; None if the series share too few."""
    sets = [{p[0] for p in s.points} for s in series]
    if any(len(xs) < len(s.points) for xs, s in zip(sets, series, strict=True)):
        return None  # several values at one place, such as dots
    union = sorted(set().union(*sets))
    long = [xs for xs in sets if len(xs) > 2]
    if len(union) <= most or not long:
        return union
    common = sorted(set.intersection(*long))
    return common if len(common) >= most // 2 else None


def _one_by_one(chart: Chart, series: Sequence[ChartSeries], most: int) -> NumberTable:
    each, rows, left_out = max(2, most // max(1, len(series))), [], 0
    for s in series:
        places, left = _even(list(range(len(s.points))), each)
        left_out += left
        rows += [(s.name, worded(s.points[k][0], chart.x), _value(chart, s, k)) for k in places]
    sides = {_side(chart, s).label for s in series}
    return NumberTable(("series", _head(chart.x), " or ".join(sorted(sides))), tuple(rows), left_out)


def _of_cells(chart: Chart, most: int, columns: int) -> NumberTable:
    down, lost = _even(list(range(len(chart.cells))), most)
    across, cut = _even(list(range(len(chart.cells[0]) if chart.cells else 0)), columns)
    corner = f"{chart.y.label} by {chart.x.label}" if chart.x.label else chart.y.label
    header = (corner, *(worded(c, chart.x) for c in across))
    rows = tuple(
        (worded(r, chart.y), *(_cell(chart, chart.cells[r][c]) for c in across if c < len(chart.cells[r])))
        for r in down
    )
    return NumberTable(header, rows, lost + cut)


def _cell(chart: Chart, value: float) -> str:
    return worded(value, Axis("", percent=chart.cell_percent)) if math.isfinite(value) else ""


def _even(places: list[N], most: int) -> tuple[list[N], int]:
    """Return at most so many places, evenly spaced, with the first and the last, and how many are left out."""
    if len(places) <= most:
        return list(places), 0
    last = len(places) - 1
    kept = [places[k * last // (most - 1)] for k in range(most)]
    return kept, len(places) - len(kept)


def _side(chart: Chart, series: ChartSeries) -> Axis:
    return chart.right if series.axis == "right" and chart.right is not None else chart.y


def _head(axis: Axis) -> str:
    return axis.label or "place"


def _of_series(chart: Chart, series: ChartSeries) -> str:
    unit = _side(chart, series).label
    if not series.name or len(chart.series) == 1:
        return series.name or unit
    return f"{series.name} ({unit})" if chart.right is not None and unit else series.name


def _value(chart: Chart, series: ChartSeries, k: int) -> str:
    axis, value = _side(chart, series), series.points[k][1]
    if value is None or not math.isfinite(value):
        return ""
    if k >= len(series.band):
        return worded(value, axis)
    low, high = series.band[k]
    if not (math.isfinite(low) and math.isfinite(high)):
        return worded(value, axis)
    return f"{worded(value, axis)} ({worded(low, axis)} to {worded(high, axis)})"


def compact(chart: Chart, most: int) -> Chart:
    """Return a chart whose lines have at most about `most` points, with numbers of seven digits."""
    return replace(
        chart,
        series=tuple(_compact_series(s, most if chart.kind == "lines" else max(most, 2000)) for s in chart.series),
        cells=tuple(tuple(_short(v) for v in row) for row in chart.cells),
    )


def _compact_series(series: ChartSeries, most: int) -> ChartSeries:
    rows = [(*p, *series.band[k]) if k < len(series.band) else p for k, p in enumerate(series.points)]
    kept = thinned(rows, most)  # type: ignore[arg-type]  # a point followed by its band
    points = tuple((_short(row[0]), _short(row[1])) for row in kept)
    band = tuple((_short(row[2]), _short(row[3])) for row in kept) if series.band else ()  # type: ignore[misc]
    return replace(series, points=points, band=band)


def _short(value: float) -> float:
    if not isinstance(value, float) or not math.isfinite(value):
        return value
    if value.is_integer() and abs(value) < 2**53:
        return int(value)
    return float(f"{value:.{DIGITS}g}")
