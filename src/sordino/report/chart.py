"""The description of a chart, from which every medium draws the same figure.

A page draws it in the browser (`assets/charts.js`), `sordino plot` as PNG or SVG (`chart_pictures.py`), and both show
the same numbers as a table. A chart holds finished numbers and texts; nothing in it is computed later.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from sordino.core.errors import RunError

MOST = 1000  # points of a line: more are thinned, since no screen shows them

Point = tuple[float, float]


@dataclass(frozen=True)
class Axis:
    """One axis of a chart."""

    label: str
    scale: Literal["linear", "log", "category"] = "linear"
    categories: tuple[str, ...] = ()  # of a category axis; points then hold indices into it
    low: float | None = None  # where the axis begins; None: where the data do
    high: float | None = None
    percent: bool = False  # whether values are shares, shown as a percentage
    rounded: Literal["nearest", "up", "down"] = "nearest"  # up: values are upper bounds, which no text may understate


@dataclass(frozen=True)
class ChartSeries:
    """Points of one colour, joined by a line or not."""

    name: str
    points: tuple[Point, ...]  # (x, y); nan leaves a gap
    band: tuple[Point, ...] = ()  # low and high at every point: a band around a line, an error bar around a dot
    role: Literal["data", "reference", "limit"] = "data"  # reference: grey; limit: a dashed bound
    axis: Literal["left", "right"] = "left"


@dataclass(frozen=True)
class Chart:
    """A chart with its title, a sentence for those who cannot see it, and the source of its numbers."""

    id: str  # letters, digits and hyphens: the name of its file
    kind: Literal["lines", "dots", "bars", "heat"]
    title: str
    x: Axis
    y: Axis
    series: tuple[ChartSeries, ...] = ()
    cells: tuple[tuple[float, ...], ...] = ()  # of a heat map: [categories of y][categories of x]; nan: nothing there
    cell_label: str = ""  # what the colour of a heat map shows
    cell_percent: bool = False  # whether cells are shares: shown as percentages, on a scale of colours from 0
    right: Axis | None = None  # the second vertical axis
    summary: str = ""  # what the chart shows, in a sentence
    source: str = ""  # the files and fields that the numbers come from

    def __post_init__(self) -> None:
        if not self.id or not all(c.isascii() and (c.isalnum() or c == "-") for c in self.id):
            raise RunError(f"a chart has an id of letters, digits and hyphens, not {self.id!r}.")

    def to_json(self) -> dict[str, Any]:
        """Return the chart as a dictionary that JSON can hold; nan and infinity become None."""
        data: dict[str, Any] = _finite(asdict(self))
        return data


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def thinned(points: Sequence[Point], most: int = MOST) -> tuple[Point, ...]:
    """Return at most about `most` points that look like all of them: of each stretch the smallest and the largest.

    The first and the last point are kept, and so is every gap (nan) that is longer than a stretch.
    """
    if len(points) <= most:
        return tuple(points)
    inner, out = points[1:-1], [points[0]]
    stretches = max(1, (most - 2) // 2)
    for k in range(stretches):
        part = inner[k * len(inner) // stretches : (k + 1) * len(inner) // stretches]
        known = [p for p in part if math.isfinite(p[1])]
        if not known:
            out += part[:1]
            continue
        low, high = min(known, key=lambda p: p[1]), max(known, key=lambda p: p[1])
        out += [low] if low == high else sorted((low, high))
    return (*out, points[-1])
