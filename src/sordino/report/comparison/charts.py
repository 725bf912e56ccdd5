"""The charts of a comparison page: scores against epsilon, three epsilons beside each other, curves over rounds."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from sordino.core.rounding import up
from sordino.report.chart import Axis, Chart, ChartSeries, Point, thinned
from sordino.report.comparison.tables import Evidence, full_name, name_of
from sordino.report.curves import Floats, curve, extremes
from sordino.report.summary import Line, Whom

CATEGORIES = 16  # places on the axis of epsilons; with more of them the axis is one of numbers
ROWS = 40  # lines in the chart of three epsilons
PANELS = 24  # charts of one kind
LEAST = 1e-6  # smallest value on a logarithmic axis
RESULTS = "cells/*/public/result.json"
RECORDS = "cells/*/public/records.jsonl"
NOT_TO_SCALE = "accounted epsilon, from small to large"


def scores(evidence: Evidence) -> list[Chart]:
    """Return the score against the accounted epsilon with error bars, one chart for each kind of guarantee."""
    private = [line for line in evidence.lines if line.kind != "reference" and _known(line, evidence)]
    whoms = list(dict.fromkeys(line.whom for line in private))[:PANELS]
    return [
        _score(k, whom, [e for e in private if e.whom == whom], evidence, len(whoms) > 1)
        for k, whom in enumerate(whoms)
    ]


def _known(line: Line, evidence: Evidence) -> bool:
    return line.of(evidence.measures[0]).n > 0 and not math.isnan(line.accounted)


def _score(k: int, whom: Whom, lines: Sequence[Line], evidence: Evidence, several: bool) -> Chart:
    measure = evidence.measures[0]
    words = list(dict.fromkeys(_place(e) for e in sorted(lines, key=lambda e: (e.accounted, _claimed(e)))))
    by_number = len(words) > CATEGORIES
    x = Axis("accounted epsilon", "log") if by_number else Axis(NOT_TO_SCALE, "category", tuple(words))
    drawn = [e for e in lines if not by_number or 0 < e.accounted < math.inf]
    series = []
    for name in dict.fromkeys(map(name_of, drawn)):
        mine = [e for e in drawn if name_of(e) == name]
        at = [e.accounted if by_number else float(words.index(_place(e))) for e in mine]
        spreads = [e.of(measure) for e in mine]
        half = [0.0 if math.isnan(s.deviation) else s.deviation for s in spreads]
        points = tuple((x, s.mean) for x, s in zip(at, spreads, strict=True))
        band = tuple((s.mean - h, s.mean + h) for s, h in zip(spreads, half, strict=True))
        series.append(ChartSeries(name, points, band))
    places = [p[0] for s in series for p in s.points] if by_number else [float(i) for i in range(len(words))]
    for line in evidence.lines:
        if line.kind == "reference" and _scored(line, measure) and places:
            level, ends = line.of(measure).mean, sorted({min(places), max(places)}) if by_number else places
            series.append(ChartSeries(name_of(line), tuple((end, level) for end in ends), role="reference"))
    what = f": {whom.words()}" if several else ""
    return Chart(
        f"{_id(measure)}-{k + 1}" if several else _id(measure),
        "dots",
        f"{measure.capitalize()} against accounted epsilon{what}",
        x,
        Axis(measure, percent=measure == "accuracy"),
        tuple(series),
        summary=f"Means over seeds with bars of one standard deviation. {_best(lines, measure)}",
        source=f"{RESULTS}: accuracy, metrics, guarantee",
    )


def _claimed(line: Line) -> float:
    return line.claim.epsilon if line.claim is not None else line.asked or 0.0


def _place(line: Line) -> str:
    """Return the place of a line on the axis of accounted epsilons; infinite ones stand apart by what was claimed."""
    if math.isfinite(line.accounted):
        return up(line.accounted)
    return f"infinite ({'asked' if line.claim is None else 'claimed'} {_claimed(line):g})"


def _scored(line: Line, measure: str) -> bool:
    return line.of(measure).n > 0


def _best(lines: Sequence[Line], measure: str) -> str:
    sound = [e for e in lines if e.kind == "sound" and math.isfinite(e.score)]
    if not sound:
        return "No method in this chart has a finite guarantee."
    best = max(sound, key=lambda e: e.score)
    value = best.of(measure).mean
    shown = f"{100 * value:.1f} %" if measure == "accuracy" else f"{value:.3g}"
    return f"The best mean among methods with a guarantee is {shown}, by {full_name(best)}."


def _id(text: str) -> str:
    return "".join(c if c.isascii() and c.isalnum() else "-" for c in text) or "score"


def epsilons(evidence: Evidence) -> Chart | None:
    """Return claimed, accounted and audited epsilon of every line beside each other."""
    lines = [line for line in evidence.lines if line.kind not in ("reference", "failed")]
    rows = [e for e in lines if math.isfinite(e.accounted) or e.claim is not None][:ROWS]
    if not rows or not (evidence.any_claim or evidence.any_audit):
        return None

    def of(values: Sequence[float]) -> tuple[Point, ...]:
        return tuple((float(k), v if 0 < v < math.inf else math.nan) for k, v in enumerate(values))

    claimed = [math.nan if e.claim is None else e.claim.epsilon for e in rows]
    series = [
        ChartSeries("claimed by the paper", of(claimed)),
        ChartSeries("accounted: an upper bound", of([e.accounted for e in rows])),
        ChartSeries("audited: at least", of([evidence.audited(e) for e in rows])),
    ]
    series = [s for s in series if any(not math.isnan(y) for _, y in s.points)]
    names = []
    for e in rows:
        scope = " a round" if e.claim is not None and e.claim.scope == "round" else ""
        asked = "" if e.asked is None else f", {e.asked:g}{scope}"
        names.append(f"{e.method}{asked}{' (infinite)' if math.isinf(e.accounted) else ''}")
    above = [e for e in rows if e.claim is not None and e.accounted > e.claim.epsilon]
    wrong = f"{len(above)} of {len(rows)} rows have a claim below what is accounted." if above else ""
    return Chart(
        "epsilons",
        "dots",
        "Claimed, accounted and audited epsilon",
        Axis("", "category", tuple(names)),
        Axis("epsilon", "log"),
        tuple(series),
        summary=f"Three numbers for every method: what its paper claims, what it spends at most, and what an audit has "
        f"shown at least. {wrong}".strip(),
        source=f"{RESULTS}: claim, guarantee; cells/*/public/audit.json: least",
    )


def convergence(evidence: Evidence) -> list[Chart]:
    """Return the score by round with bands over seeds: one chart per kind of guarantee and epsilon."""
    measure = evidence.measures[0]
    known = [line for line in evidence.lines if curve(line, measure)[0].size]
    if not known:
        measure = "loss"
        known = [line for line in evidence.lines if curve(line, measure)[0].size]
    reference = [line for line in known if line.kind == "reference"]
    private = [line for line in known if line.kind != "reference"]
    panels = list(dict.fromkeys((line.whom, line.asked) for line in private))[:PANELS]
    several = len({whom for whom, _ in panels}) > 1
    out = []
    for k, (whom, asked) in enumerate(panels):
        lines = [e for e in private if (e.whom, e.asked) == (whom, asked)]
        series = [_band(e, curve(e, measure)) for e in [*lines, *reference]]
        at = "" if asked is None else f" at epsilon {asked:g}"
        what = f": {whom.words()}" if several else ""
        out.append(
            Chart(
                f"convergence-{k + 1}",
                "lines",
                f"{measure.capitalize()} by round{at}{what}",
                Axis("round"),
                Axis(measure, percent=measure == "accuracy"),
                tuple(series),
                summary=f"Means over seeds, with bands of one standard deviation, of {len(lines)} "
                f"{'method' if len(lines) == 1 else 'methods'}{' and the reference' if reference else ''}.",
                source=f"{RECORDS}: {measure}",
            )
        )
    return out


def noise(evidence: Evidence) -> list[Chart]:
    """Return the noise in one client's message by round: one chart per epsilon that was asked for."""
    known = [e for e in evidence.lines if e.kind != "reference" and curve(e, "noise")[0].size]
    out = []
    for k, asked in enumerate(list(dict.fromkeys(e.asked for e in known))[:PANELS]):
        lines = [e for e in known if e.asked == asked]
        series = []
        for line in lines:
            rounds, mean, _, _ = curve(line, "noise")
            low, high = (np.maximum(v, LEAST) for v in extremes(line, "noise", rounds))
            series.append(_band(line, (rounds, np.maximum(mean, LEAST), low, high)))
        central = [e.method for e in lines if e.whom.viewer != "server"]
        part = (
            f" Where noise is added centrally ({', '.join(central)}), this is a client's part of it." if central else ""
        )
        out.append(
            Chart(
                f"noise-{k + 1}",
                "lines",
                f"Noise in a client's message by round{'' if asked is None else f', epsilon {asked:g}'}",
                Axis("round"),
                Axis("standard deviation of a coordinate", "log"),
                tuple(series),
                summary="The standard deviation that was planned for one coordinate; bands reach from the smallest to "
                f"the largest over seeds.{part}",
                source=f"{RECORDS}: noise",
            )
        )
    return out


def _band(line: Line, measured: tuple[Floats, Floats, Floats, Floats]) -> ChartSeries:
    rounds, mean, low, high = (v.tolist() for v in measured)
    places = {r: k for k, r in enumerate(rounds)}
    points = thinned(list(zip(rounds, mean, strict=True)))
    band = tuple((low[places[r]], high[places[r]]) for r, _ in points) if line.n > 1 else ()
    role = "reference" if line.kind == "reference" else "data"
    return ChartSeries(name_of(line), points, band, "reference" if role == "reference" else "data")
