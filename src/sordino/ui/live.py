"""The progress of a run for the page: its last values, and its curves, thinned so that any length is quick to draw."""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sordino.core.rounding import up
from sordino.report.chart import Axis, Chart, ChartSeries, Point
from sordino.report.live import LiveRun
from sordino.report.reading import harmless
from sordino.ui.overview import SCORES, RunLine, line_of
from sordino.ui.shelf import Shelved

POINTS = 600  # of a line that is sent
OPEN = 12  # runs whose curves are kept in memory
ROUND = Axis("round")
OTHERS = (  # further curves: name, title, label of the axis, sentence
    ("noise", "Noise", "standard deviation", "Per coordinate of one client's message, as planned."),
    ("clip", "Clip bound", "clip bound", "The bound on the norm of what is clipped, where the method adapts it."),
)


class RunCurves:
    """A run that is looked at again and again."""

    def __init__(self, item: Shelved) -> None:
        self.run = LiveRun(item.path)
        self._lock = threading.Lock()
        self._made: tuple[Any, dict[str, Any]] | None = None

    def line(self, item: Shelved) -> RunLine:
        """Return what the list says about the run, but of all its records, up to any damage."""
        with self._lock:
            return self._line(item)

    def _line(self, item: Shelved) -> RunLine:
        self.run.refresh()
        return line_of(item, self.run.row())

    def look(self, item: Shelved) -> dict[str, Any]:
        """Return the progress, the last values and the curves of the run, for the page."""
        with self._lock:
            line = self._line(item)
            fresh = (line, self.run.count, self.run.damage())
            if self._made is None or self._made[0] != fresh:
                self._made = (fresh, self._picture(line))
            return self._made[1]

    def points(self, name: str, viewer: str = "") -> tuple[Point, ...]:
        """Return the points of one curve: epsilon against a viewer, or a number of every round; () without any."""
        with self._lock:
            self.run.refresh()
            return self._points(name, viewer)

    def damage(self) -> tuple[str, ...]:
        """Return what is wrong with the records, in sentences."""
        return self.run.damage()

    def _points(self, name: str, viewer: str = "") -> tuple[Point, ...]:
        known = name == "epsilon" or name in self.run.known
        return self.run.points(name, viewer, POINTS) if known else ()

    def _picture(self, line: RunLine) -> dict[str, Any]:
        run, last = self.run, self.run.last
        return {
            "line": asdict(line),
            "rounds": run.count,
            "last": None if last is None else {"loss": last.loss, "noise": last.noise, "lost": last.lost},
            "evaluated_on": "" if last is None else (last.evaluated_on or ""),
            "spent": {} if last is None else {harmless(v): up(epsilon) for v, epsilon in last.epsilon.items()},
            "total": None if line.total is None else up(line.total),
            "sentence": harmless(run.sentence),
            "damage": list(run.damage()),
            "charts": [chart.to_json() for chart in self._charts(line)],
        }

    def _charts(self, line: RunLine) -> Iterator[Chart]:
        run, source = self.run, "public/records.jsonl"
        if run.viewers:
            series = [ChartSeries(f"against the {harmless(v)}", self._points("epsilon", v)) for v in run.viewers]
            text = "The epsilon that was planned for so many rounds, for everybody who may look on."
            if line.total is not None and math.isfinite(line.total):
                right = max(line.planned or 1, line.rounds or 1)
                limit = ((1, line.total), (right, line.total))
                series.append(ChartSeries("total of the guarantee", limit, role="limit"))
            yield Chart(
                "live-epsilon", "lines", "Privacy spent", ROUND, Axis("epsilon", low=0.0), tuple(series),
                summary=text, source=f"{source}: epsilon",
            )  # fmt: skip
        if run.measure:
            yield self._quality(source)
        for name, title, label, text in OTHERS:
            if name in run.known:
                yield Chart(
                    f"live-{name}", "lines", title, ROUND, Axis(label, low=0.0),
                    (ChartSeries(name, self._points(name)),), summary=text, source=f"{source}: {name}",
                )  # fmt: skip

    def _quality(self, source: str) -> Chart:
        """Return the chart of the score, and of the loss beside it."""
        names = list(dict.fromkeys((self.run.measure, *({"loss"} & self.run.known))))
        axes = [Axis(SCORES[n], percent=True) if n == "accuracy" else Axis(SCORES[n], low=0.0) for n in names]
        sides = ("left", "right")
        series = [ChartSeries(SCORES[n], self._points(n), axis=side) for n, side in zip(names, sides, strict=False)]  # type: ignore[arg-type]
        title = " and ".join(SCORES[n] for n in names)
        return Chart(
            "live-quality", "lines", title[0].upper() + title[1:], ROUND, axes[0], tuple(series),
            right=axes[1] if len(axes) > 1 else None,
            summary="On the data that the records name, whenever the model was evaluated.",
            source=f"{source}: {', '.join(names)}",
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
