"""Panels of pictures by round: one block for each kind of guarantee, and in it one panel per epsilon."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from sordino.report.summary import Line, Whom

COLUMNS = 3  # largest number of panels in a row
Panel = tuple[Any, list[Line]]  # axes, and the lines drawn there


def heading(whom: Whom) -> str:
    """Return the heading of a block: whom it protects, in which relation and against whom."""
    hidden = "" if whom.channel == "direct" else f",\n{whom.channel}"
    return f"{whom.unit} ({whom.relation}),\nagainst the {whom.viewer}{hidden}"


def panels(pyplot: Any, lines: Sequence[Line], by_whom: bool = False) -> tuple[Any, list[list[Panel]]]:
    """Create a figure and its blocks of panels.

    The reference is in every panel, and the panels of a block share the vertical axis. With `by_whom` there is one
    block for each kind of guarantee, else one for all lines."""
    private = [line for line in lines if line.kind != "reference"]
    whoms: list[Whom | None] = list(dict.fromkeys(line.whom for line in private)) if by_whom else []
    blocks = [(whom, _asked(private, whom)) for whom in (whoms if len(whoms) > 1 else [None])]
    most = max(len(asked) for _, asked in blocks)
    beside = most if most > 1 else len(blocks)
    columns = math.ceil(beside / math.ceil(beside / COLUMNS))  # rows of about the same length
    starts, cells = [], 0  # a block starts a new row, unless all blocks have one panel
    for _, asked in blocks:
        starts.append(cells)
        cells += columns * math.ceil(len(asked) / columns) if most > 1 else 1
    rows = math.ceil(cells / columns)
    high = 3.4 if len(blocks) == 1 else 3.7  # inches; more where panels have a block's heading
    figure = pyplot.figure(figsize=(1.4 + 4.0 * columns, 1.2 + high * rows), layout="constrained")
    out: list[list[Panel]] = []
    for start, (whom, asked) in zip(starts, blocks, strict=True):
        block: list[Panel] = []
        for place, epsilon in enumerate(asked):
            axis = figure.add_subplot(rows, columns, 1 + start + place, sharey=block[0][0] if block else None)
            named = ["" if epsilon is None else f"epsilon asked for: {epsilon:g}"]
            axis.set_title("\n".join(([] if whom is None else [heading(whom)]) + named), fontsize=10)
            axis.set_xlabel("round")
            axis.tick_params(labelleft=place % columns == 0)
            axis.xaxis.set_major_locator(pyplot.MaxNLocator(6, integer=True))
            inside = [e for e in private if e.asked == epsilon and whom in (None, e.whom)]
            block.append((axis, [e for e in lines if e in inside or e.kind == "reference"]))
        out.append(block)
    return figure, out


def _asked(lines: Sequence[Line], whom: Whom | None) -> list[float | None]:
    """Return the requested epsilons in ascending order."""
    epsilons = {e.asked for e in lines if e.asked is not None and whom in (None, e.whom)}
    return [*sorted(epsilons)] or [None]
