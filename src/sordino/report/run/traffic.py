"""For the owner: bytes sent and time taken, by round."""

from __future__ import annotations

import math

from sordino.report.chart import Axis, Chart
from sordino.report.document import Block, FigureTile, Paragraph, Section, Tiles
from sordino.report.run.fields import RunSources
from sordino.report.run.lines import ROUNDS, constant, curve, finite, series, trend
from sordino.report.run.words import figures, number_of, size

FILE = "private/records.jsonl"


def section(run: RunSources) -> Section | None:
    """Return traffic and times, which depend on the draw and so are the owner's alone."""
    owner = run.records.owner
    if owner is None or not run.owners or not owner.rounds:
        return None
    up, down = curve(owner.rounds, lambda r: r.bytes_up), curve(owner.rounds, lambda r: r.bytes_down)
    seconds = curve(owner.rounds, lambda r: r.seconds)
    totals = [math.fsum(y for _, y in finite(points)) for points in (up, down, seconds)]
    if not any(totals):
        return None
    count = len(owner.rounds)
    text = (
        f"In {number_of(count, 'round')} the clients together sent {size(totals[0])} and received {size(totals[1])}; "
        f"the rounds took {duration(totals[2])}. Bytes and times depend on who was drawn, so they are the owner's."
    )
    each = f"{size(totals[0] / count)} a round"
    tiles = Tiles(
        (
            FigureTile(size(totals[0]), "sent by clients", each),
            FigureTile(size(totals[1]), "received by clients", f"{size(totals[1] / count)} a round"),
            FigureTile(duration(totals[2]), "time of all rounds", f"{duration(totals[2] / count)} a round"),
        ),
        f"{FILE}: bytes_up, bytes_down, seconds",
    )
    blocks: list[Block] = [Paragraph(text), tiles]
    if len(finite(up)) > 1 and not (constant(up) and constant(down)):
        unit, label = _unit(max(y for points in (up, down) for _, y in finite(points)))
        lines = tuple(
            series(name, [(x, y / unit) for x, y in points]) for name, points in (("sent", up), ("received", down))
        )
        summary = trend(f"What clients send, in {label},", lines[0].points)
        blocks.append(
            Chart(
                "traffic-bytes", "lines", "Traffic of all clients, by round", ROUNDS, Axis(label, low=0.0), lines,
                summary=summary, source=f"{FILE}: bytes_up, bytes_down",
            )
        )  # fmt: skip
    if len(finite(seconds)) > 1:
        blocks.append(
            Chart(
                "traffic-seconds", "lines", "Time of a round", ROUNDS, Axis("seconds", low=0.0),
                (series("seconds", seconds),), summary=trend("The time of a round, in seconds,", seconds),
                source=f"{FILE}: seconds",
            )
        )  # fmt: skip
    return Section("traffic", "What did it cost in traffic and time?", tuple(blocks))


def duration(seconds: float) -> str:
    """Return a time in words."""
    if seconds < 120:
        return f"{figures(seconds)} s"
    if seconds < 7200:
        return f"{figures(seconds / 60)} minutes"
    return f"{figures(seconds / 3600)} hours"


def _unit(most: float) -> tuple[float, str]:
    """Return the unit in which so many bytes are shown."""
    for unit, label in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if most >= unit:
            return unit, label
    return 1.0, "bytes"
