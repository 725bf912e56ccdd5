"""The pictures of a comparison, with error bars over seeds (one sample standard deviation).

accuracy.png     accuracy against accounted epsilon, one panel per block; infinite epsilons are in a strip at the right
convergence.png  accuracy by round, one panel per epsilon and block
noise.png        noise in one client's message by round, one panel per epsilon
claims.png       claimed against accounted epsilon; they agree on the diagonal

Colours are by Okabe and Ito (2008), then by Tol, and distinguishable with colour blindness; markers and dashes repeat
the distinction. For a regression the error is drawn (rmse.png, mae.png). A claim for one round is marked as such
wherever it is drawn.
"""

from __future__ import annotations

import importlib.util
import math
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sordino.report import overplotting
from sordino.report.axes import legend, log_ticks, save
from sordino.report.curves import Floats, curve, extremes
from sordino.report.overplotting import Band
from sordino.report.panels import Panel, heading, panels
from sordino.report.summary import Line, compared_by

COLOURS = (
    "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000", "#882255", "#999933", "#332288",
    "#661100", "#44AA99",
)  # fmt: skip
MARKERS, GREY = "osD^vP*X<>", "#777777"
STYLE: Any = {"font.size": 10, "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True,
              "grid.alpha": 0.25, "grid.linewidth": 0.6, "legend.frameon": False, "errorbar.capsize": 3}  # fmt: skip
LEAST = 1e-6  # smallest noise on the logarithmic axis; smaller values are drawn there
Drawn = list[tuple[Line, Band]]  # the curves drawn in one panel


def ready() -> bool:
    """Return whether pictures can be drawn, that is, whether matplotlib is installed."""
    return importlib.util.find_spec("matplotlib") is not None


def draw(folder: Path, lines: Sequence[Line]) -> list[Path]:
    """Draw all pictures for which there are data, and return the files written."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    picture = Picture([line for line in lines if line.n])
    out = []
    with pyplot.rc_context(STYLE):
        for kind in ("scores", "convergence", "noise", "claims"):
            figure = getattr(picture, kind)(pyplot)
            if figure is None:
                continue
            path = folder / f"{picture.by if kind == 'scores' else kind}.png"
            save(pyplot, figure, path)
            out.append(path)
    return out


class Picture:
    """The pictures of one comparison, in which every method has the same look throughout."""

    def __init__(self, lines: Sequence[Line]) -> None:
        self.lines = lines
        self.reference = [line for line in lines if line.kind == "reference"]
        self.budgeted = [line for line in lines if line.kind != "reference"]
        self.methods = list(dict.fromkeys(line.method for line in self.budgeted))
        self.asked = sorted({line.asked for line in self.budgeted if line.asked is not None})
        self.by = compared_by(lines)
        self.scale = 100.0 if self.by == "accuracy" else 1.0
        self.what = "accuracy, %" if self.by == "accuracy" else self.by

    def look(self, line: Line) -> dict[str, Any]:
        """Return the colour, marker and line style of a line's method."""
        if line.kind == "reference":
            return {"color": GREY, "linestyle": ":"}
        place = self.methods.index(line.method)
        look = {"color": COLOURS[place % len(COLOURS)], "marker": MARKERS[place % len(MARKERS)]}
        if line.kind == "sound":
            return look | {"linestyle": ("-", "-.")[place // len(COLOURS) % 2]}
        return look | {"markerfacecolor": "white", "linestyle": "--"}

    def score(self, line: Line) -> tuple[float, float]:
        """Return the mean score and the half-length of its error bar."""
        spread = line.of(self.by)
        return self.scale * spread.mean, 0.0 if math.isnan(spread.deviation) else self.scale * spread.deviation

    def label(self, line: Line) -> str:
        """Return the legend label: the method, whom it protects from whom, and whether it is a printed form."""
        if line.kind == "reference":
            return f"{line.method} (no privacy)"
        how = ", as printed" if line.kind == "printed" else ""
        if line.claim is not None and line.claim.unit not in ("", line.whom.unit):
            how = f", printed for a {line.claim.unit}"
        how += ", for one round" if _for_one_round(line) else ""
        return f"{line.method} ({line.whom.unit}, {line.whom.viewer}{how})"

    # --- the four pictures

    def scores(self, pyplot: Any) -> Any:
        """Draw the score against accounted epsilon; None if there is nothing to draw."""
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
                beside = min(4.0, 14 / max(1, len(methods) - 1)) * (place - (len(methods) - 1) / 2)
                self._points(axis, [line for line in inside if line.method == method], beside)
            axis.set_xscale("log")
            axis.set_xlim(log_ticks(axis.xaxis, [line.accounted for line in inside]))
            axis.set_title(heading(whom), fontsize=10)
            axis.set_xlabel("accounted epsilon")
        if endless:
            self._strip(axes[0][-1], sorted(endless, key=lambda e: (self.methods.index(e.method), e.asked or 0)))
        for axis in axes[0]:
            self._reference(axis)
        axes[0][0].set_ylabel(self.what)
        legend(figure, axes[0])
        return figure

    def _points(self, axis: Any, lines: Sequence[Line], beside: float) -> None:
        """Draw points shifted by `beside` typographic points, so that bars at the same epsilon do not overlap."""
        from matplotlib.transforms import ScaledTranslation

        ordered = sorted(lines, key=lambda e: e.accounted)
        means, bars = zip(*(self.score(e) for e in ordered), strict=True)
        place = axis.transData + ScaledTranslation(beside / 72, 0, axis.figure.dpi_scale_trans)
        axis.errorbar([e.accounted for e in ordered], means, yerr=bars, transform=place, label=self.label(ordered[0]),
                      **self.look(ordered[0]))  # fmt: skip
        for side in (-1, 1):  # shifted artists do not extend the limits of the axes
            ends = [m + side * b for m, b in zip(means, bars, strict=True)]
            axis.plot([e.accounted for e in ordered], ends, alpha=0)

    def _strip(self, axis: Any, lines: Sequence[Line]) -> None:
        """Draw lines with infinite accounted epsilon, in one column each, labelled by claimed or requested epsilon."""
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
        """Draw the score by round; None if there is nothing to draw."""
        known = [e for e in self.lines if curve(e, self.by)[0].size]
        if not known:
            return None
        figure, blocks = panels(pyplot, known, by_whom=True)
        drawn = [p for block in blocks for p in self._bands(block, lambda line: curve(line, self.by, self.scale))]
        for block in blocks:
            block[0][0].set_ylabel(self.what)
        self._caption(figure, [axis for block in blocks for axis, _ in block], drawn)
        return figure

    def noise(self, pyplot: Any) -> Any:
        """Draw the noise in one client's message by round; None if there is nothing to draw."""
        known = [e for e in self.budgeted if curve(e, "noise")[0].size]
        if not known:
            return None
        figure, (block,) = panels(pyplot, known)
        drawn = self._bands(block, _noise, log=True)
        ends = [float(end) for panel in drawn for _, band in panel for end in (band[2].min(), band[3].max())]
        for axis, _ in block:
            axis.set_ylim(log_ticks(axis.yaxis, ends))
        where = "noise in a client's message" + (" (central noise: its part)" if self._central(known) else "")
        block[0][0].set_ylabel(f"{where},\ndeviation of a coordinate")
        unknown = [m for m in self.methods if m not in {e.method for e in known}]
        said = [f"not shown, as its noise has no single deviation: {', '.join(unknown)}"] if unknown else []
        self._caption(figure, [axis for axis, _ in block], drawn, said)
        return figure

    def _bands(self, block: Sequence[Panel], measured: Callable[[Line], Band], log: bool = False) -> list[Drawn]:
        """Draw means and spreads over seeds, and return what was drawn, panel by panel."""
        drawn = [[(line, measured(line)) for line in lines] for _, lines in block]
        seen = [[_logarithms(band) if log else band for _, band in panel] for panel in drawn]
        near = overplotting.reach([band for panel in seen for band in panel])
        for (axis, lines), panel, bands in zip(block, drawn, seen, strict=True):
            alone = [place for place, line in enumerate(lines) if line.kind == "reference"]  # dots are visible anyway
            groups = {place: group for group in overplotting.groups(bands, near, alone) for place in group}
            for place, (line, (rounds, mean, low, high)) in enumerate(panel):
                look = self.look(line) | overplotting.way(groups[place], place, len(rounds))
                axis.plot(rounds, mean, label=self.label(line), zorder=2.1 if place in alone else 2, **look)
                if not overplotting.covered(bands, groups[place], place, near):
                    axis.fill_between(rounds, low, high, facecolor=look["color"], alpha=0.12, lw=0)
                    axis.plot(rounds, np.array([low, high]).T, color=look["color"], lw=0.5, alpha=0.4, zorder=1.9)
            if log:
                axis.set_yscale("log")
        return drawn

    def _caption(self, figure: Any, axes: Sequence[Any], drawn: Sequence[Drawn], said: Sequence[str] = ()) -> None:
        """Add the legend, in which every curve has its normal look, and remarks above the panels.

        The remarks say what cannot be seen: curves that are equal, and those that are not shown."""
        legend(figure, axes)
        looks = {self.label(line): self.look(line)["linestyle"] for line in self.lines}
        for handle, text in zip(figure.legends[0].legend_handles, figure.legends[0].get_texts(), strict=True):
            handle.set(markersize=overplotting.MARKER, linestyle=looks[text.get_text()])
        same = overplotting.equals([{line.method: band for line, band in panel} for panel in drawn])
        equal = ["equal number for number: " + "; ".join(" = ".join(names) for names in same)] if same else []
        overlapping = any(line.get_gid() == overplotting.TURNS for axis in axes for line in axis.lines)
        turns = ["dashes of several colours: curves that lie on each other"] if overlapping else []
        letters = int(figure.get_size_inches()[0] / 0.075)  # inches per letter
        if words := [*said, *turns, *equal]:
            figure.suptitle(
                "\n".join(textwrap.fill(word, letters, break_on_hyphens=False) for word in words), fontsize=9
            )

    def _central(self, lines: Sequence[Line]) -> bool:
        return any(line.whom.viewer != "server" for line in lines)

    def claims(self, pyplot: Any) -> Any:
        """Draw claimed against accounted epsilon; None if no method has a claim that does not hold."""
        if not any(line.claim for line in self.budgeted):
            return None
        finite = [line for line in self.budgeted if math.isfinite(line.accounted)]
        endless = [line for line in self.budgeted if math.isinf(line.accounted)]
        names = [m for m in self.methods if any(line.method == m for line in endless)]
        heights = ([0.5 + 0.4 * len(names)] if endless else []) + ([4.4] if finite else [])
        figure, axes = pyplot.subplots(
            len(heights), 1, figsize=(6.4, 1.6 + sum(heights)), height_ratios=heights, sharex=True, squeeze=False,
            layout="constrained",
        )  # fmt: skip
        column = [axes[i][0] for i in range(len(heights))]
        for line in endless:
            place = len(names) - 1 - names.index(line.method)
            column[0].plot(_claimed(line), place, label=self.label(line), **(self.look(line) | {"linestyle": ""}))
        if endless:
            marked = {line.method: f"{line.method},\na round" for line in endless if _for_one_round(line)}
            column[0].set_yticks(range(len(names)), [marked.get(m, m) for m in reversed(names)], fontsize=8)
            column[0].set_ylim(-0.6, len(names) - 0.4)
            column[0].set_facecolor("#f3f3f3")
            column[0].set_title("accounted: infinite", fontsize=10)
        column[-1].set_xscale("log")
        ends = log_ticks(column[-1].xaxis, [_claimed(e) for e in self.budgeted] + [e.accounted for e in finite])
        column[-1].set_xlim(ends)
        of_sound = " (of sound methods: the one asked for)" if finite else ""
        of_round = ',\n"a round": for one round, not for all' if any(map(_for_one_round, self.budgeted)) else ""
        column[-1].set_xlabel(f"claimed epsilon{of_sound}{of_round}")
        if finite:
            self._agreement(column[-1], finite, ends)
        legend(figure, column[::-1])
        return figure

    def _agreement(self, axis: Any, lines: Sequence[Line], ends: tuple[float, float]) -> None:
        """Draw the finite epsilons on axes with equal limits, on whose diagonal claimed and accounted epsilon agree."""
        axis.plot(ends, ends, color=GREY, lw=1, zorder=0, label="claimed = accounted")
        for line in sorted(lines, key=lambda e: e.claim is not None):
            if line.claim:  # markers of different sizes keep coinciding points visible
                size = 10 - 1.5 * (self.methods.index(line.method) % 4)
                look = self.look(line) | {"markersize": size, "markerfacecolor": "none", "label": self.label(line)}
            else:
                look = {"color": GREY, "marker": "o", "markersize": 4, "label": "sound methods"}
            axis.plot([_claimed(line)], [line.accounted], **(look | {"linestyle": ""}))
            if _for_one_round(line):
                at = (_claimed(line), line.accounted)
                axis.annotate("a round", at, (8, 0), textcoords="offset points", va="center", fontsize=8)
        axis.set_yscale("log")
        log_ticks(axis.yaxis, ends)
        axis.set_ylim(ends)
        axis.set_ylabel("accounted epsilon")


def _logarithms(band: Band) -> Band:
    rounds, mean, low, high = band
    return rounds, _logarithm(mean), _logarithm(low), _logarithm(high)


def _logarithm(values: Floats) -> Floats:
    return np.log(np.maximum(values, LEAST))


def _noise(line: Line) -> Band:
    rounds, mean, _, _ = curve(line, "noise")
    return rounds, mean, *extremes(line, "noise", rounds)


def _claimed(line: Line) -> float:
    return line.claim.epsilon if line.claim is not None else line.asked or math.nan


def _asked(line: Line) -> str:
    return f"{_claimed(line):g}" + (" a round" if _for_one_round(line) else "")


def _for_one_round(line: Line) -> bool:
    return line.claim is not None and line.claim.scope == "round"
