"""The pictures of a comparison, with error bars over seeds (one standard deviation of a sample).

accuracy.png     accuracy against accounted epsilon, one panel a block; what is infinite stands in a strip at the right
convergence.png  accuracy by round, one panel an epsilon
noise.png        noise in one client's message by round, one panel an epsilon
claims.png       claimed against accounted epsilon; on the diagonal they agree

Colours by Okabe and Ito (2008), told apart by all eyes; markers and dashes repeat what colours say. Where there is no
accuracy (a regression), the loss is drawn instead.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sordino.core.errors import RunError
from sordino.report.axes import legend, log_ticks
from sordino.report.curves import Floats, curve, extremes
from sordino.report.summary import Line

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
MARKERS, GREY = "osD^vP*X<>", "#777777"
STYLE: Any = {"font.size": 10, "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True,
              "grid.alpha": 0.25, "grid.linewidth": 0.6, "legend.frameon": False, "errorbar.capsize": 3}  # fmt: skip
COLUMNS = 3  # panels beside each other


def ready() -> bool:
    """Whether pictures can be drawn here."""
    return importlib.util.find_spec("matplotlib") is not None


def draw(folder: Path, lines: Sequence[Line]) -> list[Path]:
    """Whatever there is data for; the files that were written."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    picture = Picture([line for line in lines if line.n])
    out = []
    with pyplot.rc_context(STYLE):
        for name in ("accuracy", "convergence", "noise", "claims"):
            figure = getattr(picture, name)(pyplot)
            if figure is None:
                continue
            path = folder / f"{name}.png"
            try:
                figure.savefig(path, dpi=150)
            except OSError as error:
                raise RunError(f"cannot write {path}: {error.strerror or error}") from error
            finally:
                pyplot.close(figure)
            out.append(path)
    return out


class Picture:
    """What all pictures of one comparison share: a look for every method."""

    def __init__(self, lines: Sequence[Line]) -> None:
        self.lines = lines
        self.reference = [line for line in lines if line.kind == "reference"]
        self.budgeted = [line for line in lines if line.kind != "reference"]
        self.methods = list(dict.fromkeys(line.method for line in self.budgeted))
        self.asked = sorted({line.asked for line in self.budgeted if line.asked is not None})
        self.by_loss = not any(line.accuracy.n for line in lines)
        self.what = "loss" if self.by_loss else "accuracy, %"

    def look(self, line: Line) -> dict[str, Any]:
        if line.kind == "reference":
            return {"color": GREY, "linestyle": ":"}
        place = self.methods.index(line.method)
        look = {"color": COLOURS[place % len(COLOURS)], "marker": MARKERS[place % len(MARKERS)]}
        if line.kind == "sound":
            return look | {"linestyle": ("-", "-.")[place // len(COLOURS) % 2]}
        return look | {"markerfacecolor": "white", "linestyle": "--"}

    def score(self, line: Line) -> tuple[float, float]:
        """Mean and half a bar."""
        found = line.loss if self.by_loss else line.accuracy
        scale = 1.0 if self.by_loss else 100.0
        return scale * found.mean, 0.0 if math.isnan(found.deviation) else scale * found.deviation

    def label(self, line: Line) -> str:
        if line.kind == "reference":
            return f"{line.method} (no privacy)"
        how = ", as printed" if line.kind == "printed" else ""
        return f"{line.method} ({line.whom.unit}, {line.whom.viewer}{how})"

    # --- the four

    def accuracy(self, pyplot: Any) -> Any:
        finite = [line for line in self.budgeted if math.isfinite(line.accounted)]
        endless = [line for line in self.budgeted if math.isinf(line.accounted)]
        whoms = list(dict.fromkeys(line.whom for line in finite))
        if not self.lines or not (whoms or endless):
            return None
        widths = [3.0 if len(whoms) < 4 else 2.2] * len(whoms) + ([max(1.2, 0.35 * len(endless))] if endless else [])
        figure, axes = pyplot.subplots(
            1, len(widths), figsize=(1.6 + 1.35 * sum(widths), 4.8), width_ratios=widths, sharey=True, squeeze=False,
            layout="constrained",
        )  # fmt: skip
        for axis, whom in zip(axes[0], whoms, strict=False):
            inside = [line for line in finite if line.whom == whom]
            methods = list(dict.fromkeys(line.method for line in inside))
            for place, method in enumerate(methods):
                beside = min(2.0, 6 / max(1, len(methods) - 1)) * (place - (len(methods) - 1) / 2)
                self._points(axis, [line for line in inside if line.method == method], beside)
            axis.set_xscale("log")
            axis.set_xlim(log_ticks(axis.xaxis, [line.accounted for line in inside]))
            hidden = "" if whom.channel == "direct" else f",\n{whom.channel}"
            axis.set_title(f"{whom.unit} ({whom.relation}),\nagainst the {whom.viewer}{hidden}", fontsize=10)
            axis.set_xlabel("accounted epsilon")
        if endless:
            self._strip(axes[0][-1], sorted(endless, key=lambda e: (self.methods.index(e.method), e.asked or 0)))
        for axis in axes[0]:
            self._reference(axis)
        axes[0][0].set_ylabel(self.what)
        legend(figure, axes[0])
        return figure

    def _points(self, axis: Any, lines: Sequence[Line], beside: float) -> None:
        """Drawn so many typographic points beside their epsilon, so that bars at one epsilon can be told apart."""
        from matplotlib.transforms import ScaledTranslation

        ordered = sorted(lines, key=lambda e: e.accounted)
        means, bars = zip(*(self.score(e) for e in ordered), strict=True)
        place = axis.transData + ScaledTranslation(beside / 72, 0, axis.figure.dpi_scale_trans)
        axis.errorbar([e.accounted for e in ordered], means, yerr=bars, transform=place, label=self.label(ordered[0]),
                      **self.look(ordered[0]))  # fmt: skip
        axis.plot([e.accounted for e in ordered], means, alpha=0)  # what is moved does not count for the axes' ends

    def _strip(self, axis: Any, lines: Sequence[Line]) -> None:
        """No place on an axis of epsilons: one column each, named by what was claimed or asked for."""
        for place, line in enumerate(lines):
            mean, bar = self.score(line)
            axis.errorbar([place], [mean], yerr=[bar], label=self.label(line), **(self.look(line) | {"linestyle": ""}))
        axis.set_xticks(range(len(lines)), [_asked(line) for line in lines], rotation=90, fontsize=8)
        axis.set_xlim(-0.7, len(lines) - 0.3)
        axis.set_facecolor("#f3f3f3")
        axis.set_title("accounted:\ninfinite", fontsize=10)
        axis.set_xlabel("claimed epsilon" if any(e.claim for e in lines) else "asked epsilon")

    def _reference(self, axis: Any) -> None:
        for line in self.reference:
            mean, bar = self.score(line)
            axis.axhline(mean, label=self.label(line), **self.look(line))
            axis.axhspan(mean - bar, mean + bar, color=GREY, alpha=0.12, lw=0)

    def convergence(self, pyplot: Any) -> Any:
        name = "loss" if self.by_loss else "accuracy"
        figure, axes = self._panels(pyplot, [e for e in self.lines if curve(e, name)[0].size])
        if figure is None:
            return None
        for axis, lines in axes:
            for line in lines:
                rounds, mean, low, high = curve(line, name, 1.0 if self.by_loss else 100.0)
                self._band(axis, line, rounds, mean, low, high)
        axes[0][0].set_ylabel(self.what)
        legend(figure, [axis for axis, _ in axes])
        return figure

    def noise(self, pyplot: Any) -> Any:
        figure, axes = self._panels(pyplot, [e for e in self.budgeted if curve(e, "noise")[0].size])
        if figure is None:
            return None
        for axis, lines in axes:
            for line in lines:
                rounds, mean, _, _ = curve(line, "noise")
                low, high = extremes(line, "noise", rounds)
                self._band(axis, line, rounds, mean, low, high)
            axis.set_yscale("log")
        axes[0][0].set_ylabel("noise in a client's message\n(deviation, a coordinate)")
        legend(figure, [axis for axis, _ in axes])
        return figure

    def _panels(self, pyplot: Any, lines: Sequence[Line]) -> tuple[Any, list[tuple[Any, list[Line]]]]:
        """One panel an epsilon, the reference in all of them; no figure where there is nothing to draw."""
        if not lines:
            return None, []
        asked: list[float | None] = [e for e in self.asked if any(line.asked == e for line in lines)]
        asked = asked or [None]
        columns = min(COLUMNS, len(asked))
        rows = -(-len(asked) // columns)
        figure, axes = pyplot.subplots(
            rows, columns, figsize=(1.4 + 4.0 * columns, 1.2 + 3.4 * rows), sharey=True, squeeze=False,
            layout="constrained",
        )  # fmt: skip
        out = []
        for axis, epsilon in zip(axes.flat, asked, strict=False):
            axis.set_title("" if epsilon is None else f"epsilon asked for: {epsilon:g}", fontsize=10)
            axis.set_xlabel("round")
            axis.xaxis.set_major_locator(pyplot.MaxNLocator(6, integer=True))
            out.append((axis, [e for e in lines if e.asked == epsilon or e.kind == "reference"]))
        for axis in axes.flat[len(asked) :]:
            axis.remove()
        return figure, out

    def _band(self, axis: Any, line: Line, rounds: Floats, mean: Floats, low: Floats, high: Floats) -> None:
        look = self.look(line) | {"markevery": max(1, len(rounds) // 8), "markersize": 4}
        axis.plot(rounds, mean, label=self.label(line), **look)
        axis.fill_between(rounds, low, high, color=look["color"], alpha=0.15, lw=0)

    def claims(self, pyplot: Any) -> Any:
        if not any(line.claim for line in self.budgeted):
            return None
        finite = [line for line in self.budgeted if math.isfinite(line.accounted)]
        endless = [line for line in self.budgeted if math.isinf(line.accounted)]
        names = [m for m in self.methods if any(line.method == m for line in endless)]
        heights = ([0.5 + 0.4 * len(names)] if endless else []) + ([4.0] if finite else [])
        figure, axes = pyplot.subplots(
            len(heights), 1, figsize=(6.4, 1.6 + sum(heights)), height_ratios=heights, sharex=True, squeeze=False,
            layout="constrained",
        )  # fmt: skip
        column = [axes[i][0] for i in range(len(heights))]
        for line in endless:
            place = len(names) - 1 - names.index(line.method)
            column[0].plot(_claimed(line), place, label=self.label(line), **(self.look(line) | {"linestyle": ""}))
        if endless:
            column[0].set_yticks(range(len(names)), list(reversed(names)), fontsize=8)
            column[0].set_ylim(-0.6, len(names) - 0.4)
            column[0].set_facecolor("#f3f3f3")
            column[0].set_title("accounted: infinite", fontsize=10)
        column[-1].set_xscale("log")
        ends = log_ticks(column[-1].xaxis, [_claimed(line) for line in self.budgeted])
        column[-1].set_xlim(ends)
        column[-1].set_xlabel("claimed epsilon" + (" (of sound methods: the one asked for)" if finite else ""))
        if finite:
            self._agreement(column[-1], finite, ends)
        legend(figure, column)
        return figure

    def _agreement(self, axis: Any, lines: Sequence[Line], ends: tuple[float, float]) -> None:
        axis.plot(ends, ends, color=GREY, lw=1, zorder=0, label="claimed = accounted")
        for line in lines:
            if line.claim:  # equal points of different methods lie inside each other
                size = 10 - 1.5 * (self.methods.index(line.method) % 4)
                look = self.look(line) | {"markersize": size, "markerfacecolor": "none", "label": self.label(line)}
            else:
                look = {"color": GREY, "marker": "o", "markersize": 4, "label": "sound methods"}
            axis.plot([_claimed(line)], [line.accounted], **(look | {"linestyle": ""}))
        axis.set_yscale("log")
        axis.set_ylim(log_ticks(axis.yaxis, [line.accounted for line in lines]))
        axis.set_ylabel("accounted epsilon")


def _claimed(line: Line) -> float:
    return line.claim.epsilon if line.claim is not None else line.asked or math.nan


def _asked(line: Line) -> str:
    per = " a round" if line.claim is not None and line.claim.scope == "round" else ""
    return f"{_claimed(line):g}{per}"
