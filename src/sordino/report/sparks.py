"""Small curves of characters for a terminal: one line of blocks, or a picture of braille dots."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
BLOCKS, PLAIN = "▁▂▃▄▅▆▇█", "_.-~=+*#"  # from low to high
DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))  # of a braille character, from the top


def binned(values: Floats, count: int) -> Floats:
    """Return at most `count` means of equal stretches of a curve; nan where nothing is known."""
    if len(values) <= count:
        return values
    edges = np.arange(count) * len(values) // count
    known = np.isfinite(values)
    sums = np.add.reduceat(np.where(known, values, 0.0), edges)
    counts = np.add.reduceat(known.astype(np.float64), edges)
    out: Floats = np.divide(sums, counts, out=np.full(count, np.nan), where=counts > 0)
    return out


def spark(values: Floats, width: int, plain: bool = False) -> str:
    """Return a curve as one line of blocks, or of plain characters; "" if there is nothing to draw."""
    bins = binned(np.asarray(values, dtype=np.float64), width)
    known = bins[np.isfinite(bins)]
    if not known.size or width < 1:
        return ""
    low, high = float(known.min()), float(known.max())
    marks = PLAIN if plain else BLOCKS
    scaled = np.full(len(bins), 0.5) if high <= low else (bins - low) / (high - low)
    levels = np.where(np.isfinite(bins), np.round(np.nan_to_num(scaled) * (len(marks) - 1)), -1).astype(int)
    return "".join(" " if level < 0 else marks[level] for level in levels)


def picture(x: Floats, y: Floats, width: int, height: int, right: float | None = None) -> list[str]:
    """Return a curve as lines of braille characters.

    Args:
        x: places from left to right.
        y: values; nan leaves a gap.
        width: characters in a line.
        height: lines.
        right: the end of the horizontal axis; by default the last place.
    """
    known = np.isfinite(x) & np.isfinite(y)
    x, y = x[known], y[known]
    if not len(x):
        return [" " * width] * height
    left, end = float(x[0]), max(float(x[-1]), right or 0.0)
    low, high = float(y.min()), float(y.max())
    columns = np.minimum((2 * width - 1) * (x - left) / (end - left or 1.0), 2 * width - 1).astype(int)
    places = (y - low) / (high - low) if high > low else np.full(len(y), 0.5)
    rows = np.clip(np.round((1 - places) * (4 * height - 1)), 0, 4 * height - 1).astype(int)
    cells = np.zeros((height, width), dtype=int)
    for column, row in _joined(sorted(set(zip(columns.tolist(), rows.tolist(), strict=True)))):
        cells[row // 4, column // 2] |= DOTS[row % 4][column % 2]
    return ["".join(chr(0x2800 + cell) if cell else " " for cell in line) for line in cells.tolist()]


def _joined(dots: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield dots and those on the straight lines between neighbours."""
    yield from dots[:1]
    for (left, high), (right, low) in pairwise(dots):
        steps = max(right - left, abs(low - high))
        for step in range(1, steps + 1):
            yield left + round(step * (right - left) / steps), high + round(step * (low - high) / steps)
