"""The charts of a report as pictures, by matplotlib: the same figures, colours and texts as in `assets/charts.js`."""

from __future__ import annotations

import importlib.util
import io
import math
import textwrap
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from sordino.core.errors import SpecError
from sordino.report.chart import Axis, Chart, ChartSeries
from sordino.report.chart_numbers import number, worded

COLOURS = ("#1f5f99", "#c4501b", "#1b8466", "#8e4a9e", "#9a6c00", "#0e8296", "#b93a6b", "#56657a")  # as report.css
REFERENCE, LIMIT, HEAT, TEXT, AXIS, GRID = "#7b8694", "#55606e", "#14507f", "#4c5866", "#a5aeb9", "#e6e9ee"
PALE = "#f1f5f7"  # the smallest value of a heat map: HEAT at 6 %
MARKERS = "oD^s"
DASHES = ("-", (0, (2, 3)), (0, (8, 3, 2, 3)))
WIDTH, HEIGHT = 7.2, 3.9  # inches
LETTERS = 0.075  # inches of a letter, about
STYLE: Any = {
    "font.family": "sans-serif", "font.size": 9, "axes.spines.top": False, "axes.spines.right": False,
    "axes.spines.left": False, "axes.edgecolor": AXIS, "axes.axisbelow": True, "axes.labelcolor": TEXT,
    "xtick.color": AXIS, "xtick.labelcolor": TEXT, "ytick.color": AXIS, "ytick.labelcolor": TEXT, "ytick.left": False,
    "grid.color": GRID, "grid.linewidth": 0.8, "legend.frameon": False, "svg.hashsalt": "sordino",
    "text.parse_math": False, "axes.unicode_minus": True,
}  # fmt: skip
FORMATS = ("png", "svg")


def ready() -> None:
    """Raise SpecError if matplotlib is not installed."""
    if importlib.util.find_spec("matplotlib") is None:
        raise SpecError('pictures need matplotlib, which is not installed; try: pip install "sordino[plot]".')


def picture(chart: Chart, form: str = "png") -> bytes:
    """Return a chart as the contents of a .png or .svg file.

    Raises:
        SpecError: if matplotlib is not installed.
    """
    ready()
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    with pyplot.rc_context(STYLE):
        figure, file = _Picture(chart, pyplot).figure, io.BytesIO()
        try:
            about = {"Software": "Sordino"} if form == "png" else {"Creator": "Sordino", "Date": None}
            figure.savefig(file, format=form, dpi=150, metadata=about)
        finally:
            pyplot.close(figure)
    return file.getvalue()


class _Picture:
    """One chart on one figure."""

    def __init__(self, chart: Chart, pyplot: Any) -> None:
        self.chart, self.pyplot = chart, pyplot
        names = chart.x.categories
        room = WIDTH / max(1, len(names)) / LETTERS
        self.flipped = (
            chart.kind in ("bars", "dots") and chart.x.scale == "category" and any(len(n) + 2 > room for n in names)
        )
        self.x, self.y = (chart.y, chart.x) if self.flipped else (chart.x, chart.y)
        self.figure, self.axes = pyplot.subplots(figsize=(WIDTH, self._height()), layout="constrained")
        self.twin = self.axes.twinx() if chart.right is not None and not self.flipped else None
        if self.twin is not None:
            self.twin.spines["left"].set_visible(False)
        self._series()
        self._axes()
        self._words()

    def _height(self) -> float:
        if self.y.scale != "category":
            return HEIGHT
        rows = len(self.y.categories)
        if self.chart.kind == "heat":
            return max(2.0, min(8.0, 1.3 + 0.24 * rows))
        return min(30.0, 1.3 + rows * max(0.34, 0.14 + 0.13 * len(self.chart.series)))

    # --- what is drawn

    def _series(self) -> None:
        if self.chart.kind == "heat":
            self._heat()
            return
        beside = [s for s in self.chart.series if s.role == "data"]
        for k, series in enumerate(beside):
            look = {"color": COLOURS[k % len(COLOURS)]}
            draw = {"lines": self._line, "dots": self._dots, "bars": self._bars}[self.chart.kind]
            draw(series, look, k, len(beside))
        for series in self.chart.series:
            if series.role != "data":
                self._rule(series)

    def _side(self, series: ChartSeries) -> Any:
        return self.twin if series.axis == "right" and self.twin is not None else self.axes

    def _line(self, series: ChartSeries, look: dict[str, Any], k: int, _: int) -> None:
        x, y = _columns(series.points)
        side, dash = self._side(series), DASHES[k // len(COLOURS) % len(DASHES)]
        dots = {"marker": "o", "ms": 4} if len(x) <= 12 else {}
        side.plot(x, y, ls=dash, lw=1.7, label=series.name, zorder=4, **dots, **look)
        if series.band:
            low, high = _columns(series.band)
            side.fill_between(x, low, high, alpha=0.16, lw=0, zorder=2, **look)

    def _dots(self, series: ChartSeries, look: dict[str, Any], k: int, count: int) -> None:
        x, y = _columns(series.points)
        shift = ((k + 0.5) / count - 0.5) * 0.72 if self.chart.x.scale == "category" else 0.0
        x = [v + shift for v in x]
        size = 5.5 if len(x) <= 60 else 3
        self._with_bars(series, x, y, {"fmt": MARKERS[k % 4], "ms": size, "label": series.name, **look}, look["color"])

    def _with_bars(
        self, series: ChartSeries, x: list[float], y: list[float], about: dict[str, Any], colour: str
    ) -> None:
        spread = None
        if series.band:
            low, high = _columns(series.band)
            spread = [[max(0.0, v - b) for v, b in zip(y, low, strict=True)]]
            spread.append([max(0.0, b - v) for v, b in zip(y, high, strict=True)])
        bars = {"capsize": 2.5, "elinewidth": 1.2, "ecolor": colour, "zorder": 5}
        if self.flipped:
            self.axes.errorbar(y, x, xerr=spread, **about, **bars)
        else:
            self._side(series).errorbar(x, y, yerr=spread, **about, **bars)

    def _bars(self, series: ChartSeries, look: dict[str, Any], k: int, count: int) -> None:
        x, y = _columns(series.points)
        places = sorted(set(x))
        gap = min((b - a for a, b in pairwise(places)), default=1.0)
        unit = 0.72 if self.chart.x.scale == "category" else 0.94 * gap
        x = [v + ((k + 0.5) / count - 0.5) * unit for v in x]
        if self.flipped:
            self.axes.barh(x, y, unit / count, label=series.name, alpha=0.92, zorder=3, **look)
        else:
            self._side(series).bar(x, y, unit / count, label=series.name, alpha=0.92, zorder=3, **look)
        if series.band:
            self._with_bars(series, x, y, {"fmt": "none"}, TEXT)

    def _rule(self, series: ChartSeries) -> None:
        colour, dash = (REFERENCE, "-") if series.role == "reference" else (LIMIT, (0, (4, 3)))
        look = {"color": colour, "ls": dash, "lw": 1.4, "zorder": 3}
        x, y = _columns(series.points)
        if self.chart.kind == "lines" or self.chart.x.scale != "category":
            self._side(series).plot(x, y, label=series.name, **look)
            return
        for k, (at, value) in enumerate(zip(x, y, strict=True)):
            label = series.name if not k else None
            low, high = at - 0.42, at + 0.42
            line = ([value, value], [low, high]) if self.flipped else ([low, high], [value, value])
            self.axes.plot(*line, label=label, **look)

    def _heat(self) -> None:
        from matplotlib.colors import LinearSegmentedColormap
        from matplotlib.ticker import FuncFormatter, MaxNLocator

        known = [v for row in self.chart.cells for v in row if math.isfinite(v)]
        low, high = (min(known), max(known)) if known else (0.0, 1.0)
        low = 0.0 if low > 0 and (self.chart.cell_percent or low < 0.5 * high) else low
        colours = LinearSegmentedColormap.from_list("sordino", [PALE, HEAT])
        image = self.axes.imshow(
            [list(row) for row in self.chart.cells], aspect="auto", cmap=colours, vmin=low,
            vmax=high if high > low else low + 1, interpolation="nearest",
        )  # fmt: skip
        about = Axis(self.chart.cell_label, percent=self.chart.cell_percent)
        look = {
            "ticks": MaxNLocator(nbins=4),
            "format": FuncFormatter(lambda v, _: worded(float(f"{v:.6g}"), about, 6)),
        }
        bar = self.figure.colorbar(image, ax=self.axes, pad=0.015, aspect=25, **look)
        bar.set_label("\n".join(textwrap.wrap(self.chart.cell_label, 22)))
        bar.outline.set_visible(False)

    # --- axes and words

    def _axes(self) -> None:
        sides = ((self.axes.xaxis, self.x), (self.axes.yaxis, self.y))
        for axis, about in (*sides, *(((self.twin.yaxis, self.chart.right),) if self.twin is not None else ())):
            if about is not None:
                self._axis(axis, about)
        if self.chart.kind != "heat":
            self.axes.grid(axis="x" if self.flipped else "y")
            if self.chart.kind == "dots":
                self.axes.grid(axis="both" if self.x.scale != "category" and self.y.scale != "category" else
                               "x" if self.flipped else "y")  # fmt: skip
        if self.flipped:
            self.axes.invert_yaxis()
            self.axes.spines["left"].set_visible(True)

    def _axis(self, axis: Any, about: Axis) -> None:
        from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullLocator

        name = axis.axis_name
        side = axis.axes
        if about.scale == "category":
            labels = [_short(c) for c in about.categories]
            every = max(1, -(-len(labels) // _most(labels, name, self.figure.get_size_inches())))
            axis.set_major_locator(FixedLocator(list(range(0, len(labels), every))))
            axis.set_major_formatter(
                FuncFormatter(lambda v, _: labels[round(v)] if 0 <= round(v) < len(labels) else "")
            )
            getattr(side, f"set_{name}lim")(-0.5, max(0.5, len(labels) - 0.5))
            if self.chart.kind == "heat" and name == "y":
                side.invert_yaxis()
            return
        if about.scale == "log" and any(v > 0 for v in self._values(axis)):
            getattr(side, f"set_{name}scale")("log")
            known = [v for v in self._values(axis) if math.isfinite(v) and v > 0]
            if known and max(known) < 100 * min(known):  # powers of ten alone would be one tick or two
                axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0), numticks=12))
            axis.set_minor_locator(NullLocator())
        else:
            known = [v for v in self._values(axis) if math.isfinite(v)]
            whole = not about.percent and all(float(v).is_integer() for v in known)
            axis.set_major_locator(MaxNLocator(nbins=7 if name == "x" else 5, integer=whole, steps=[1, 2, 2.5, 5, 10]))
        axis.set_major_formatter(FuncFormatter(lambda v, _: worded(float(f"{v:.6g}"), about, 6)))
        self._limits(side, name, about)

    def _values(self, axis: Any) -> list[float]:
        down = (axis.axis_name == "y") != self.flipped
        return [p[1] if down else p[0] for s in self.chart.series for p in s.points]

    def _limits(self, side: Any, name: str, about: Axis) -> None:
        low, high = getattr(side, f"get_{name}lim")()
        if about.low is not None:
            low = about.low
        elif name == "y" and about.scale == "linear" and 0 < low < 0.45 * high:
            low = 0.0
        if about.high is not None:
            high = about.high
        if high > low and (about.scale != "log" or low > 0):
            getattr(side, f"set_{name}lim")(low, high)

    def _words(self) -> None:
        title = "\n".join(textwrap.wrap(self.chart.title, 78)) or self.chart.title
        self.figure.suptitle(title, x=0.01, ha="left", fontsize=11, fontweight="bold")
        handles: dict[str, Any] = {}
        for side in (self.axes, self.twin):
            if side is not None:
                handles |= {n: h for h, n in zip(*side.get_legend_handles_labels(), strict=True)}
        if len(handles) > 1 or any(s.role != "data" for s in self.chart.series):
            widest = max(len(n) for n in handles) if handles else 1
            columns = max(1, min(len(handles), int(WIDTH / (0.5 + LETTERS * widest))))
            names = [_short(n, 90) for n in handles]
            self.figure.legend(
                handles.values(), names, loc="outside lower left", ncols=columns, fontsize=8.5, handlelength=1.8,
                columnspacing=1.3,
            )  # fmt: skip
        self.axes.set_xlabel(self.x.label)
        self.axes.set_title(self.y.label, loc="left", fontsize=8.5, color=TEXT, pad=7)
        if self.twin is not None and self.chart.right is not None:
            self.twin.set_title(self.chart.right.label, loc="right", fontsize=8.5, color=TEXT, pad=7)


def _columns(points: Sequence[tuple[float, float]]) -> tuple[list[float], list[float]]:
    return [p[0] for p in points], [p[1] for p in points]


def _short(text: str, most: int = 34) -> str:
    clean = " ".join(text.split())
    return clean if len(clean) <= most else f"{clean[: most - 3]}..."


def _most(labels: Sequence[str], name: str, size: Sequence[float]) -> int:
    """Return how many labels fit on an axis."""
    if name == "y":
        return max(2, int(float(size[1]) / 0.19))
    return max(2, int((float(size[0]) - 1) / (LETTERS * (2 + max(map(len, labels), default=1)))))


def names(charts: Sequence[Chart], form: str) -> list[str]:
    """Return the names of the files of charts; those with the same id are numbered."""
    out: list[str] = []
    for chart in charts:
        earlier = sum(c.id == chart.id for c in charts[: len(out)])
        out.append(f"{chart.id}{f'-{number(earlier + 1)}' if earlier else ''}.{form}")
    return out
