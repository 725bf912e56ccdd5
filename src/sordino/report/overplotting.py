"""Drawing of curves that lie on each other, so that each remains visible.

Coinciding curves alternate in dashes of their colours, and their markers are at different rounds. A curve keeps its
normal width, as a wider one would look like a spread over seeds. Curves that are numerically equal are named in words,
as the eye cannot tell.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from sordino.report.curves import Floats

Band = tuple[Floats, Floats, Floats, Floats]  # rounds, mean, low, high
WIDTH, DASH = 1.5, 6.0  # in points: width of a curve, length of a dash of an alternating curve
TURNS = "turns"  # gid of alternating curves
MARKER, MARKERS = 4.0, 8  # size of a marker in points, approximate number of markers per curve
CLOSE = 0.01  # share of a panel's range, about the width of a curve, below which two curves look like one


def reach(bands: Sequence[Band]) -> float:
    """Return the distance below which two curves look like one, in panels that show all these."""
    low, high = (np.concatenate([band[end] for band in bands]) for end in (2, 3))
    return CLOSE * max(float(high.max() - low.min()), 1e-12)


def groups(bands: Sequence[Band], near: float, alone: Sequence[int] = ()) -> list[list[int]]:
    """Group curves that lie on the first of their group in at least half of the rounds.

    Args:
        bands: the curves.
        near: the distance below which two curves look like one.
        alone: indices of curves that are never grouped with others.

    Returns:
        Lists of indices; most have one element.
    """
    out: list[list[int]] = []
    for place, band in enumerate(bands):
        matches = (g for g in out if g[0] not in alone and _share(band, bands[g[0]], near, [1]) >= 0.5)
        home = next(matches, None)
        if home is None or place in alone:
            out.append([place])
        else:
            home.append(place)
    return out


def covered(bands: Sequence[Band], group: Sequence[int], place: int, near: float) -> bool:
    """Return whether a curve of the group that is drawn later has the same spread, so that this one is not drawn."""
    return any(_share(bands[place], bands[p], near, [2, 3]) == 1 for p in group if p > place)


def way(group: Sequence[int], place: int, rounds: int) -> dict[str, Any]:
    """Return the drawing options of a curve that depend on its group, in addition to the look of its method."""
    every = max(1, rounds // MARKERS)
    if len(group) == 1:
        return {"lw": WIDTH, "markersize": MARKER, "markevery": (place % every, every)}
    size, turn, dash = len(group), group.index(place), DASH / WIDTH  # dashes are measured in line widths
    at = [i * every % rounds for i in range(size)]
    inside = at[turn + 1 :].count(at[turn])  # there may be fewer rounds than curves
    return {
        "lw": WIDTH,
        "markersize": MARKER + 2 * inside,
        "markevery": (at[turn], size * every),
        "linestyle": ((size - turn) % size * dash, (dash, (size - 1) * dash)),
        "dash_capstyle": "butt",
        "gid": TURNS,
    }


def equals(panels: Sequence[dict[str, Band]]) -> list[list[str]]:
    """Return groups of two or more names whose curves and spreads are numerically equal in every panel."""
    equal_groups: list[list[str]] = []
    for name in dict.fromkeys(name for panel in panels for name in panel):
        same = next(
            (g for g in equal_groups if all(_equal(panel.get(name), panel.get(g[0])) for panel in panels)), None
        )
        if same is None:
            equal_groups.append([name])
        else:
            same.append(name)
    return [group for group in equal_groups if len(group) > 1]


def _share(band: Band, other: Band, near: float, parts: Sequence[int]) -> float:
    """Return the share of the longer curve's rounds in which these parts of both bands are near each other."""
    common, mine, theirs = np.intersect1d(band[0], other[0], return_indices=True)
    close = np.ones(len(common), dtype=np.bool_)
    for part in parts:
        close &= np.abs(band[part][mine] - other[part][theirs]) <= near
    return int(close.sum()) / max(len(band[0]), len(other[0]))


def _equal(band: Band | None, other: Band | None) -> bool:
    if band is None or other is None:
        return band is other
    return all(np.array_equal(a, b) for a, b in zip(band, other, strict=True))
