"""The pictures of experiments: scores against x, curves by round, boxes of parameters, loss along a path."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sordino.papers.base import Experiment, Outcome, spread
from sordino.report.axes import legend, save
from sordino.report.figures import COLOURS, GREY, MARKERS, STYLE

LINES = {"printed": "--", "sound": "-", "features": "-.", "reference": ":"}
WORDS = {"printed": "as printed", "sound": "sound", "features": "sound, fixed features", "reference": "no privacy"}


def draw(path: Path, experiment: Experiment, outcomes: Sequence[Outcome]) -> bool:
    """Draw the experiment's picture into a file, and return whether there was anything to draw."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    makers = {"against-x": _against_x, "by-round": _by_round, "boxes": _boxes, "path": _path, "points": _points}
    if experiment.kind not in makers or not outcomes:
        return False
    with pyplot.rc_context(STYLE):
        figure = makers[experiment.kind](pyplot, experiment, outcomes)
        if figure is None:
            return False
        save(pyplot, figure, path, dpi=130)
    return True


def _look(rows: Sequence[str], row: str, form: str) -> dict[str, Any]:
    place = rows.index(row)
    look = {"color": COLOURS[place % len(COLOURS)], "marker": MARKERS[place % len(MARKERS)], "linestyle": LINES[form]}
    return look | ({"markerfacecolor": "white"} if form == "printed" else {})


def _against_x(pyplot: Any, experiment: Experiment, outcomes: Sequence[Outcome]) -> Any:
    """Draw one panel per form; crosses are the paper's numbers."""
    rows = list(dict.fromkeys(o.trial.row for o in outcomes))
    forms = [f for f in ("printed", "sound", "features") if any(o.trial.form == f for o in outcomes)]
    xs = list(dict.fromkeys(o.trial.x for o in outcomes if o.trial.form != "reference"))
    words = any(isinstance(x, str) for x in xs)
    figure, axes = pyplot.subplots(
        1, max(1, len(forms)), figsize=(1.2 + 4.4 * max(1, len(forms)), 4.2), sharey=True, squeeze=False,
        layout="constrained",
    )  # fmt: skip
    for axis, form in zip(axes[0], forms, strict=False):
        for row in rows:
            known = [(xs.index(x) if words else float(x), s) for x in xs if (s := spread(outcomes, row, x, form)).n]
            if known:
                bars = [0.0 if math.isnan(s.deviation) else s.deviation for _, s in known]
                at, means = [x for x, _ in known], [s.mean for _, s in known]
                axis.errorbar(at, means, yerr=bars, label=row, **_look(rows, row, form))
            said = [(x, v) for (r, x), v in experiment.paper.items() if r == row and x in xs]
            if form == "printed" and said:
                look = {"color": _look(rows, row, form)["color"], "marker": "x", "linestyle": "", "markersize": 8}
                axis.plot([xs.index(x) if words else float(x) for x, _ in said], [v for _, v in said], **look)
        for row in rows:
            level = _reference(outcomes, row)
            if level is not None:
                colour = _look(rows, row, "reference")["color"]
                axis.axhline(level, color=colour, linestyle=":", lw=1, label=f"{row}, {WORDS['reference']}")
        axis.set_title(WORDS[form] + (" (x: the paper's numbers)" if form == "printed" and experiment.paper else ""))
        if words:
            axis.set_xticks(range(len(xs)), [str(x) for x in xs], rotation=30, fontsize=8)
        whose = ", claimed" if form == "printed" else ", accounted"
        axis.set_xlabel(experiment.x + (whose if experiment.x == "epsilon" else ""))
    axes[0][0].set_ylabel(experiment.y)
    legend(figure, axes[0])
    return figure


def _reference(outcomes: Sequence[Outcome], row: str) -> float | None:
    each = [o.score for o in outcomes if o.trial.row == row and o.trial.form == "reference" and not math.isnan(o.score)]
    return sum(each) / len(each) if each else None


def _by_round(pyplot: Any, experiment: Experiment, outcomes: Sequence[Outcome]) -> Any:
    """Draw one panel per x, averaged over seeds; runs without an x (x = "none": no privacy) appear in all of them."""
    rows = list(dict.fromkeys(o.trial.row for o in outcomes))
    xs = [x for x in dict.fromkeys(o.trial.x for o in outcomes) if x != "none"] or ["none"]
    columns = min(3, len(xs))
    lines = -(-len(xs) // columns)
    figure, axes = pyplot.subplots(
        lines, columns, figsize=(1.0 + 4.2 * columns, 0.8 + 3.2 * lines), squeeze=False, layout="constrained"
    )
    for axis, x in zip(axes.flat, xs, strict=False):
        panel = [o for o in outcomes if o.trial.x in (x, "none")]
        for row, form in dict.fromkeys((o.trial.row, o.trial.form) for o in panel):
            here = [o.curve(experiment.curve) for o in panel if (o.trial.row, o.trial.form) == (row, form)]
            length = min((len(v) for _, v in here), default=0)
            if not length:
                continue
            mean = np.mean([v[:length] for _, v in here], axis=0)
            look = _look(rows, row, form) | {"markevery": max(1, length // 8), "markersize": 5}
            axis.plot(here[0][0][:length], mean, label=f"{row}, {WORDS[form]}", **look)
        axis.set_title(f"{experiment.x} = {x:g}" if isinstance(x, float | int) else str(x), fontsize=10)
        axis.set_xlabel("round")
        first = next(o for o in outcomes if o.trial.x == x)
        for place, (label, values) in enumerate((experiment.bounds(first) if experiment.bounds else {}).items()):
            axis.plot(
                range(1, len(values) + 1), values, color=GREY, linestyle=("--", ":", "-.")[place % 3], label=label
            )
        if experiment.curve == "noise" or experiment.bounds:
            axis.set_yscale("log")
        if experiment.beside:
            _beside(axis, experiment, next(o for o in outcomes if o.trial.x == x and o.trial.form == "printed"))
    for axis in list(axes.flat)[len(xs) :]:
        axis.set_visible(False)
    axes[0][0].set_ylabel(experiment.y)
    legend(figure, list(axes.flat)[: len(xs)])
    return figure


def _beside(axis: Any, experiment: Experiment, outcome: Outcome) -> None:
    """Draw the experiment's further curves on a second axis."""
    other = axis.twinx()
    words = []
    ways = ((":", "dotted"), ("-.", "dash-dotted"))
    for name, (line, word) in zip(experiment.beside, ways[: len(experiment.beside)], strict=True):
        other.plot(*outcome.curve(name), color=GREY, linestyle=line)
        words.append(f"{name.replace('_', ' ')} ({word})")
    other.set_ylabel("\n".join(words), color=GREY, fontsize=8)
    other.spines["right"].set_visible(True)


def _points(pyplot: Any, experiment: Experiment, outcomes: Sequence[Outcome]) -> Any:
    """Draw measured values, and in grey those of theorems."""
    curves = experiment.points(outcomes) if experiment.points is not None else {}
    if not any(curves.values()):
        return None
    figure, axes = pyplot.subplots(1, 1, figsize=(5.6, 4.2), squeeze=False, layout="constrained")
    for place, (label, points) in enumerate(curves.items()):
        said = label.startswith("Theorem")
        look = {"color": GREY if said else COLOURS[place % len(COLOURS)], "linestyle": "--" if said else "-"}
        look["marker"] = MARKERS[place % len(MARKERS)]
        axes[0][0].plot([x for x, _ in points], [y for _, y in points], label=label, markersize=5, **look)
    if experiment.log:
        axes[0][0].set_yscale("log")
    axes[0][0].set_xlabel(experiment.x)
    axes[0][0].set_ylabel(experiment.y)
    legend(figure, axes[0])
    return figure


def _boxes(pyplot: Any, experiment: Experiment, outcomes: Sequence[Outcome]) -> Any:
    """Draw quantiles of the raw and the truncated weights in about ten evenly spaced rounds; one panel per run."""
    shown = [o for o in outcomes if o.trial.seed == 0 and o.records and (o.records[0].get("decided") or {})]
    if not shown:
        return None
    figure, axes = pyplot.subplots(
        1, len(shown), figsize=(1.0 + 3.4 * len(shown), 3.6), squeeze=False, layout="constrained"
    )
    for axis, outcome in zip(axes[0], shown, strict=True):
        every = max(1, len(outcome.records) // 10)
        some = [r for i, r in enumerate(outcome.records) if i % every == 0]
        for side, (name, label) in enumerate((("weights_quantiles", "original"), ("truncated_quantiles", "truncated"))):
            stats = [
                {"med": q[2], "q1": q[1], "q3": q[3], "whislo": q[0], "whishi": q[4], "fliers": []}
                for q in (r["decided"][name] for r in some)
            ]
            places = [i + 0.35 * side for i in range(len(stats))]
            box = axis.bxp(stats, positions=places, widths=0.3, patch_artist=True, showfliers=False)
            for patch in box["boxes"]:
                patch.set(facecolor=COLOURS[side], alpha=0.7)
            axis.plot([], [], color=COLOURS[side], lw=6, alpha=0.7, label=label)
        axis.set_xticks([i + 0.17 for i in range(len(some))], [str(r["round"]) for r in some], fontsize=8)
        axis.set_title(outcome.trial.row)
        axis.set_xlabel("round")
    axes[0][0].set_ylabel("weights of one client (5 to 95 %)")
    legend(figure, axes[0])
    return figure


def _path(pyplot: Any, experiment: Experiment, outcomes: Sequence[Outcome]) -> Any:
    """Draw the loss on the server's data along the path between two client models in the first, middle and last round.

    One panel per run."""
    shown = [
        o for o in outcomes if o.trial.seed == 0 and any((r.get("decided") or {}).get("path_loss") for r in o.records)
    ]
    if not shown:
        return None
    figure, axes = pyplot.subplots(
        1, len(shown), figsize=(1.0 + 4.0 * len(shown), 3.6), squeeze=False, layout="constrained"
    )
    for axis, outcome in zip(axes[0], shown, strict=True):
        known = [r for r in outcome.records if (r.get("decided") or {}).get("path_loss")]
        for place, record in enumerate(dict.fromkeys([0, len(known) // 2, len(known) - 1])):
            chosen = known[record]["decided"]
            ends, name = np.linspace(0, 1, len(chosen["path_loss"])), f"round {known[record]['round']}"
            axis.plot(ends, chosen["path_loss"], color=COLOURS[place], label=name)
            axis.plot(ends, chosen["straight_loss"], color=COLOURS[place], linestyle=":", label=f"{name}, straight")
        axis.set_title(outcome.trial.row)
        axis.set_xlabel("along the path")
    axes[0][0].set_ylabel("loss on the server's data")
    legend(figure, axes[0])
    return figure
