"""The pictures of an experiment as charts of a report, which show their numbers when a reader points at them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from sordino.papers.base import FORMS, Experiment, Outcome, spread
from sordino.papers.pictures import WORDS
from sordino.report.chart import Axis, Chart, ChartSeries, Point, thinned

RECORDS = "cells/*/public/records.jsonl"
BANDS = "Means over seeds, with bands of one standard deviation where there are several."
PANELS = 24


def charts(experiment: Experiment, outcomes: Sequence[Outcome]) -> list[Chart]:
    """Return the charts of an experiment; none if it is a table, or no run has ended."""
    makers = {"against-x": _against_x, "by-round": _by_round, "boxes": _boxes, "path": _paths, "points": _points}
    if experiment.kind not in makers or not outcomes:
        return []
    found = [chart for chart in makers[experiment.kind](experiment, outcomes) if any(s.points for s in chart.series)]
    return found[:PANELS]


def _word(x: float | str) -> str:
    return f"{x:g}" if isinstance(x, float | int) else x


def _axis(experiment: Experiment) -> Axis:
    return Axis(experiment.y)


def _against_x(experiment: Experiment, outcomes: Sequence[Outcome]) -> Iterator[Chart]:
    """Yield one chart per form; that of the printed form has the paper's own numbers beside ours."""
    rows = list(dict.fromkeys(o.trial.row for o in outcomes))
    xs = list(dict.fromkeys(o.trial.x for o in outcomes if o.trial.form != "reference"))
    for form in (f for f in FORMS[:3] if any(o.trial.form == f for o in outcomes)):
        series = []
        for row in rows:
            known = [(float(k), s) for k, x in enumerate(xs) if (s := spread(outcomes, row, x, form)).n]
            if known:
                half = [0.0 if math.isnan(s.deviation) else s.deviation for _, s in known]
                band = tuple((s.mean - h, s.mean + h) for (_, s), h in zip(known, half, strict=True))
                series.append(ChartSeries(row, tuple((k, s.mean) for k, s in known), band))
            said = [(float(k), experiment.paper[row, x]) for k, x in enumerate(xs) if (row, x) in experiment.paper]
            if form == "printed" and said:
                series.append(ChartSeries(f"{row}, in the paper", tuple(said)))
        for row in rows:
            each = [o.score for o in outcomes if (o.trial.row, o.trial.form) == (row, "reference")]
            known_scores = [score for score in each if not math.isnan(score)]
            if known_scores:
                level = sum(known_scores) / len(known_scores)
                places = tuple((float(k), level) for k in range(len(xs)))
                series.append(ChartSeries(f"{row}, {WORDS['reference']}", places, role="reference"))
        whose = ", claimed" if form == "printed" else ", accounted"
        yield Chart(
            f"scores-{form}",
            "dots",
            f"{experiment.title}: {WORDS[form]}",
            Axis(experiment.x + (whose if experiment.x == "epsilon" else ""), "category", tuple(map(_word, xs))),
            _axis(experiment),
            tuple(series),
            summary="Means over seeds, with bars of one standard deviation where there are several.",
            source="cells/*/public/result.json: accuracy, metrics",
        )


def _by_round(experiment: Experiment, outcomes: Sequence[Outcome]) -> Iterator[Chart]:
    """Yield one chart per x; runs without an x (no privacy) are in all of them."""
    xs = [x for x in dict.fromkeys(o.trial.x for o in outcomes) if x != "none"] or ["none"]
    log = experiment.curve == "noise" or experiment.bounds is not None
    for k, x in enumerate(xs):
        panel = [o for o in outcomes if o.trial.x in (x, "none")]
        series = []
        for row, form in dict.fromkeys((o.trial.row, o.trial.form) for o in panel):
            curves = [o.curve(experiment.curve) for o in panel if (o.trial.row, o.trial.form) == (row, form)]
            series.append(_mean(f"{row}, {WORDS[form]}", curves, form == "reference"))
        first = next(o for o in outcomes if o.trial.x == x)
        for name, values in (experiment.bounds(first) if experiment.bounds else {}).items():
            points: list[Point] = [(float(n), _finite(v)) for n, v in enumerate(values, 1)]
            series.append(ChartSeries(name, thinned(points), role="limit"))
        right = None
        printed = next((o for o in outcomes if o.trial.x == x and o.trial.form == "printed"), None)
        if experiment.beside and printed is not None:
            right = Axis(", ".join(name.replace("_", " ") for name in experiment.beside))
            for name in experiment.beside:
                series.append(ChartSeries(name.replace("_", " "), _points_of(printed.curve(name)), axis="right"))
        yield Chart(
            f"rounds-{k + 1}",
            "lines",
            experiment.title if x == "none" else f"{experiment.x} = {_word(x)}",
            Axis("round"),
            Axis(experiment.y, "log") if log else _axis(experiment),
            tuple(series),
            right=right,
            summary=BANDS,
            source=f"{RECORDS}: {experiment.curve}",
        )


def _mean(name: str, curves: Sequence[tuple[list[int], list[float]]], reference: bool) -> ChartSeries:
    length = min((len(values) for _, values in curves), default=0)
    if not length:
        return ChartSeries(name, ())
    values = np.array([v[:length] for _, v in curves])
    mean, rounds = values.mean(axis=0), curves[0][0][:length]
    half = values.std(axis=0, ddof=1) if len(curves) > 1 else np.zeros(length)
    low_high = {float(n): (m - h, m + h) for n, m, h in zip(rounds, mean.tolist(), half.tolist(), strict=True)}
    points = thinned([(float(n), m) for n, m in zip(rounds, mean.tolist(), strict=True)])
    band = tuple(low_high[n] for n, _ in points) if len(curves) > 1 else ()
    return ChartSeries(name, points, band, "reference" if reference else "data")


def _points(experiment: Experiment, outcomes: Sequence[Outcome]) -> Iterator[Chart]:
    """Yield measured values; those of theorems are drawn as limits."""
    found = experiment.points(outcomes) if experiment.points is not None else {}
    series = [
        ChartSeries(name, thinned([(float(x), _finite(y)) for x, y in points]),
                    role="limit" if name.startswith("Theorem") else "data")
        for name, points in found.items()
    ]  # fmt: skip
    yield Chart(
        "points",
        "lines",
        experiment.title,
        Axis(experiment.x),
        Axis(experiment.y, "log" if experiment.log else "linear"),
        tuple(series),
        summary="Measured values; dashed lines are what theorems say.",
        source=RECORDS,
    )


def _decided(record: Any) -> dict[str, Any]:
    return record.get("decided") or {}


def _boxes(experiment: Experiment, outcomes: Sequence[Outcome]) -> Iterator[Chart]:
    """Yield the median of one client's weights by round, with bands from 5 to 95 %, before and after truncation."""
    shown = [o for o in outcomes if o.trial.seed == 0 and o.records and _decided(o.records[0])]
    for k, outcome in enumerate(shown):
        series = []
        for name, label in (("weights_quantiles", "original"), ("truncated_quantiles", "truncated")):
            found = [(float(r["round"]), list(_decided(r).get(name) or [])) for r in outcome.records]
            known = [(n, quantiles) for n, quantiles in found if len(quantiles) == 5]
            points = thinned([(n, float(q[2])) for n, q in known])
            ends = {n: (float(q[0]), float(q[4])) for n, q in known}
            series.append(ChartSeries(label, points, tuple(ends[n] for n, _ in points)))
        yield Chart(
            f"weights-{k + 1}", "lines", f"Weights of one client: {outcome.trial.row}", Axis("round"), Axis("weight"),
            tuple(series), summary="Medians, with bands from the 5 % to the 95 % quantile.",
            source="cells/*/private/records.jsonl: decided (the data are public)",
        )  # fmt: skip


def _paths(experiment: Experiment, outcomes: Sequence[Outcome]) -> Iterator[Chart]:
    """Yield the loss along the path between two clients' models in the first, middle and last round."""
    for k, outcome in enumerate(o for o in outcomes if o.trial.seed == 0):
        known = [r for r in outcome.records if _decided(r).get("path_loss")]
        series = []
        for place in dict.fromkeys([0, len(known) // 2, len(known) - 1]) if known else ():
            for name, label in (("path_loss", "low-loss path"), ("straight_loss", "straight line")):
                values = _decided(known[place]).get(name) or ()
                ends = np.linspace(0, 1, len(values)).tolist()
                points = tuple((x, _finite(v)) for x, v in zip(ends, values, strict=True))
                series.append(ChartSeries(f"round {known[place]['round']}, {label}", points))
        yield Chart(
            f"path-{k + 1}", "lines", f"Loss between two clients' models: {outcome.trial.row}",
            Axis("along the path"), Axis("loss on the server's data"), tuple(series),
            summary="The loss on the way from one client's model to another's.",
            source="cells/*/private/records.jsonl: decided (the data are public)",
        )  # fmt: skip


def _points_of(curve: tuple[list[int], list[float]]) -> tuple[Point, ...]:
    return thinned([(float(n), _finite(v)) for n, v in zip(*curve, strict=True)])


def _finite(value: float | None) -> float:
    return math.nan if value is None else float(value)
