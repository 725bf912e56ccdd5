"""Curves that lie on each other, drawn so that each can be found.

They take turns, a dash of each colour, and their markers stand at different rounds: a curve is as broad as when it is
alone, for what is broader reads as a spread over seeds. Which curves are equal number for number is said in words, as
the eye cannot tell.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from sordino.report.curves import Floats

Band = tuple[Floats, Floats, Floats, Floats]  # rounds, mean, low, high
WIDTH, DASH = 1.5, 6.0  # points: a curve's breadth, and the length of a dash of one that takes turns
TURNS = "turns"  # the name of curves that take them
MARKER, MARKERS = 4.0, 8  # points; of a curve, about so many
CLOSE = 0.01  # of all that a panel shows, about a curve's breadth: what is nearer is one for the eye


def reach(bands: Sequence[Band]) -> float:
    """How near two curves are one, in panels that show all these."""
    low, high = (np.concatenate([band[end] for band in bands]) for end in (2, 3))
    return CLOSE * max(float(high.max() - low.min()), 1e-12)


def groups(bands: Sequence[Band], near: float, alone: Sequence[int] = ()) -> list[list[int]]:
    """Places of curves that lie on the first of their group at half of the rounds or more; most groups are of one, and
    those of some always."""
    out: list[list[int]] = []
    for place, band in enumerate(bands):
        found = (g for g in out if g[0] not in alone and _share(band, bands[g[0]], near, [1]) >= 0.5)
        home = next(found, None)
        if home is None or place in alone:
            out.append([place])
        else:
            home.append(place)
    return out


def covered(bands: Sequence[Band], group: Sequence[int], place: int, near: float) -> bool:
    """Whether a curve of its group has the same spread and is drawn later: two on each other would be a grey one."""
    return any(_share(bands[place], bands[p], near, [2, 3]) == 1 for p in group if p > place)


def way(group: Sequence[int], place: int, rounds: int) -> dict[str, Any]:
    """How a curve is drawn, beside what its method looks like."""
    every = max(1, rounds // MARKERS)
    if len(group) == 1:
        return {"lw": WIDTH, "markersize": MARKER, "markevery": (place % every, every)}
    size, turn, dash = len(group), group.index(place), DASH / WIDTH  # dashes are measured in breadths
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
    """Names whose curves and spreads are equal number for number in every panel: lists of two or more."""
    found: list[list[str]] = []
    for name in dict.fromkeys(name for panel in panels for name in panel):
        same = next((g for g in found if all(_equal(panel.get(name), panel.get(g[0])) for panel in panels)), None)
        if same is None:
            found.append([name])
        else:
            same.append(name)
    return [group for group in found if len(group) > 1]


def _share(one: Band, other: Band, near: float, parts: Sequence[int]) -> float:
    """Of the rounds of the longer one, at how many both are near each other."""
    common, mine, theirs = np.intersect1d(one[0], other[0], return_indices=True)
    close = np.ones(len(common), dtype=np.bool_)
    for part in parts:
        close &= np.abs(one[part][mine] - other[part][theirs]) <= near
    return int(close.sum()) / max(len(one[0]), len(other[0]))


def _equal(one: Band | None, other: Band | None) -> bool:
    if one is None or other is None:
        return one is other
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))
