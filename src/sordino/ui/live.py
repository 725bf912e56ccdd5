"""The curves of a run, read as its records grow, and thinned so that a run of any length is quick to draw."""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from sordino.core.record import RoundRecord
from sordino.core.rounding import up
from sordino.report.chart import Axis, Chart, ChartSeries, Point, thinned
from sordino.report.growing import RecordFile, public_record
from sordino.report.reading import mapping_at, object_in, text_at
from sordino.ui.overview import RunLine
from sordino.ui.shelf import Shelved

POINTS = 600  # of a line that is sent
BLOCKS = 2048  # pairs of points of a line that are kept
OPEN = 12  # runs whose records are kept in memory
VIEWERS = 12  # lines in a chart
ROUND = Axis("round")
MEASURED = ("accuracy", "loss", "noise", "clip")


class GrowingLine:
    """The points of a line, of which the smallest and the largest of every stretch are kept once there are many."""

    def __init__(self) -> None:
        self._blocks: list[tuple[Point, Point]] = []
        self._width, self._filled = 1, 0
        self._last: Point | None = None

    def add(self, x: float, y: float | None) -> None:
        """Add a point to the right of all others; None leaves a gap."""
        point = (x, math.nan if y is None else y)
        self._last = point
        if self._blocks and self._filled < self._width:
            self._blocks[-1] = _joined(self._blocks[-1], (point, point))
            self._filled += 1
            return
        if len(self._blocks) >= BLOCKS:
            self._blocks = [_joined(a, b) for a, b in zip(self._blocks[::2], self._blocks[1::2], strict=True)]
            self._width *= 2
        self._blocks.append((point, point))
        self._filled = 1

    def points(self) -> tuple[Point, ...]:
        """Return at most about POINTS points that look like all of them."""
        flat = [p for low, high in self._blocks for p in ((low,) if low is high else sorted((low, high)))]
        if self._last is not None and flat[-1][0] != self._last[0]:
            flat.append(self._last)
        return thinned(flat, POINTS)


def _joined(a: tuple[Point, Point], b: tuple[Point, Point]) -> tuple[Point, Point]:
    known = [p for p in (*a, *b) if math.isfinite(p[1])]
    if not known:
        return a
    return min(known, key=lambda p: p[1]), max(known, key=lambda p: p[1])


def _slim(line: bytes) -> RoundRecord:
    """Return a record without what curves do not show, so that a hundred thousand of them fit into memory."""
    r = public_record(line)
    epsilon = dict(list(r.epsilon.items())[:VIEWERS])
    return RoundRecord(r.round, epsilon, r.loss, r.accuracy, None, r.clip, r.evaluated_on, r.noise, None, r.lost)


@dataclass
class _Lines:
    taken: int = 0
    first: RoundRecord | None = None
    epsilon: dict[str, GrowingLine] = field(default_factory=dict)
    measured: dict[str, GrowingLine] = field(default_factory=lambda: {name: GrowingLine() for name in MEASURED})
    known: set[str] = field(default_factory=set)  # names of MEASURED with any value

    def take(self, records: list[RoundRecord]) -> None:
        for r in records[self.taken :]:
            for viewer in r.epsilon:
                if viewer not in self.epsilon and len(self.epsilon) < VIEWERS:
                    self.epsilon[viewer] = GrowingLine()
            for viewer, line in self.epsilon.items():
                line.add(r.round, r.epsilon.get(viewer))
            for name, line in self.measured.items():
                value = getattr(r, name)
                if value is not None:
                    self.known.add(name)
                line.add(r.round, value)
        self.taken = len(records)


class RunCurves:
    """A run that is looked at again and again."""

    def __init__(self, item: Shelved) -> None:
        self.public = item.public
        self.file: RecordFile[RoundRecord] = RecordFile(self.public / "records.jsonl", _slim, self.public)
        self._lines = _Lines()
        self._lock = threading.Lock()
        self._made: tuple[Any, dict[str, Any]] | None = None

    def look(self, line: RunLine) -> dict[str, Any]:
        """Return the progress, the last values and the curves of the run, for the page."""
        with self._lock:
            records = self._read()
            fresh = (line, len(records), self.file.damage)
            if self._made is None or self._made[0] != fresh:
                self._made = (fresh, self._picture(line, records))
            return self._made[1]

    def points(self, name: str, viewer: str = "") -> tuple[Point, ...]:
        """Return the points of one curve: epsilon against a viewer, accuracy, loss, noise or clip."""
        with self._lock:
            self._read()
            if name != "epsilon":
                return self._lines.measured[name].points() if name in self._lines.known else ()
            lines = self._lines.epsilon
            found = lines.get(viewer) or next(iter(lines.values()), None)
            return () if found is None else found.points()

    def _read(self) -> list[RoundRecord]:
        records = self.file.refresh()
        first = records[0] if records else None
        if first is not self._lines.first:  # a resumed run has replaced the file
            self._lines = _Lines(first=first)
        self._lines.take(records)
        return records

    def _picture(self, line: RunLine, records: list[RoundRecord]) -> dict[str, Any]:
        damage: list[str] = []
        plan = object_in(self.public / "plan.json", self.public, damage)
        result = object_in(self.public / "result.json", self.public, damage)
        promise = mapping_at(result, "guarantee") or mapping_at(plan, "promise")
        last = records[-1] if records else None
        damage += [self.file.damage] if self.file.damage else []
        missing = line.state == "finished" and line.rounds is not None and not self.file.damage
        if missing and len(records) < (line.rounds or 0):
            damage.append(f"records.jsonl holds {len(records):,} of the {line.rounds:,} rounds of the run.")
        spent = {} if last is None else {v: up(e) for v, e in last.epsilon.items()}
        return {
            "line": asdict(line),
            "rounds": len(records),
            "last": None if last is None else {"loss": last.loss, "noise": last.noise, "lost": last.lost},
            "evaluated_on": "" if last is None else (last.evaluated_on or ""),
            "spent": spent,
            "total": None if line.total is None else up(line.total),
            "sentence": text_at(promise, "sentence"),
            "damage": damage,
            "charts": [chart.to_json() for chart in self._charts(line)],
        }

    def _charts(self, line: RunLine) -> Iterator[Chart]:
        lines, source = self._lines, "public/records.jsonl"
        if lines.epsilon:
            series = [ChartSeries(f"against the {v}", g.points()) for v, g in lines.epsilon.items()]
            text = "The epsilon that was planned for so many rounds, for everybody who may look on."
            if line.total is not None and math.isfinite(line.total):
                right = max(line.planned or 1, line.rounds or 1)
                series.append(
                    ChartSeries("total of the guarantee", ((1, line.total), (right, line.total)), role="limit")
                )
            yield Chart(
                "live-epsilon", "lines", "Privacy spent", ROUND, Axis("epsilon", low=0.0), tuple(series),
                summary=text, source=f"{source}: epsilon",
            )  # fmt: skip
        if lines.known & {"accuracy", "loss"}:
            yield _quality(lines, source)
        for name, title, label, text in (
            ("noise", "Noise", "standard deviation", "Per coordinate of one client's message, as planned."),
            (
                "clip",
                "Clip bound",
                "clip bound",
                "The bound on the norm of what is clipped, where the method adapts it.",
            ),
        ):
            if name in lines.known:
                series = [ChartSeries(name, lines.measured[name].points())]
                yield Chart(
                    f"live-{name}", "lines", title, ROUND, Axis(label, low=0.0), tuple(series), summary=text,
                    source=f"{source}: {name}",
                )  # fmt: skip


def _quality(lines: _Lines, source: str) -> Chart:
    share, loss = Axis("accuracy", percent=True), Axis("loss", low=0.0)
    parts = []
    if "accuracy" in lines.known:
        parts.append(ChartSeries("accuracy", lines.measured["accuracy"].points()))
    if "loss" in lines.known:
        parts.append(ChartSeries("loss", lines.measured["loss"].points(), axis="right" if parts else "left"))
    both = len(parts) == 2
    title = "Accuracy and loss" if both else parts[0].name.capitalize()
    return Chart(
        "live-quality", "lines", title, ROUND, share if "accuracy" in lines.known else loss, tuple(parts),
        right=loss if both else None, summary="On the data that the records name, after every round.",
        source=f"{source}: {', '.join(p.name for p in parts)}",
    )  # fmt: skip


class OpenCurves:
    """The runs that somebody looks at; those that were looked at longest ago are given up first."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: OrderedDict[tuple[str, Path], RunCurves] = OrderedDict()

    def of(self, item: Shelved) -> RunCurves:
        """Return the run, opened before or now."""
        key = (item.id, item.public)
        with self._lock:
            run = self._open.pop(key, None) or RunCurves(item)
            self._open[key] = run
            while len(self._open) > OPEN:
                self._open.popitem(last=False)
        return run
