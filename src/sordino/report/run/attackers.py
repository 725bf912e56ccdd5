"""What the guarantee leaves to an attacker: the trade-off curve, how sure an attacker becomes, and rates of success.

All of it follows from `pricing.attack_bound`: the smallest share of misses that a test with a given share of false
alarms can have. Nothing here was tried on the run; what attacks really did stands in sections of their own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from sordino.core.rounding import down, up
from sordino.privacy.guarantee import Guarantee, who
from sordino.report.chart import Axis, Chart, ChartSeries, Point
from sordino.report.document import Block, DataTable, Paragraph, Section
from sordino.report.run.fields import RunSources
from sordino.report.run.first_page import bound_of
from sordino.report.run.guarantee_words import Statement, statement
from sordino.report.run.pricing import AttackBound, attack_bound, priced
from sordino.report.run.words import capital, percent, percent_up, question

RATES = (0.001, 0.01, 0.1)  # shares of false alarms of the table
PRIORS = (0.01, 0.5)  # beliefs before, of the table
POINTS = 61  # of a curve


@dataclass(frozen=True)
class _Curve:
    """A bound on what an attacker may achieve, with its name in the charts."""

    name: str
    bound: AttackBound


def section(run: RunSources) -> Section | None:
    """Return the section on what an attacker may achieve; None where nothing is promised."""
    said = statement(run)
    main, bound = said.main, bound_of(said)
    if main is None or bound is None or math.isinf(main.epsilon):
        return None
    alone = attack_bound(main, None, bound.source)
    asked = question(main.unit, main.relation)
    text = (
        f"An attacker, in the place of {who(main.viewer, main.channel)}, asks {asked}. It knows everything else: all "
        "other data, and how the noise is made. A false alarm says yes where the truth is no, a miss no where it is "
        f"yes. If both are equally likely beforehand, at most {percent_up(bound.right())} of all answers are right."
    )
    blocks: list[Block] = [
        Paragraph(text),
        _trade_off(said, main, bound, alone),
        _posterior(main, bound, alone),
        _rates(main, bound, alone),
    ]
    if (others := _by_viewer(run, said)) is not None:
        blocks.append(others)
    title = "What an attacker may achieve" + (", if the promise is kept" if said.standing == "promise" else "")
    return Section("attackers", title, tuple(blocks))


def _alone(main: Guarantee) -> str:
    return f"epsilon = {up(main.epsilon)}, delta = {main.delta:g} alone"


def _rate(share: float) -> str:
    return f"{100 * share:g} %"


def _own(bound: AttackBound) -> bool:
    """Return whether a bound is the run's own curve, and not only what (epsilon, delta) implies."""
    return len(bound.lines) > 1


# --- false alarms and misses


def _trade_off(said: Statement, main: Guarantee, bound: AttackBound, alone: AttackBound) -> Chart:
    curves = [_Curve(_alone(main), alone)]
    if _own(bound):
        curves = [_Curve("this run", bound), *curves]
    series = [ChartSeries("guessing", ((0.0, 1.0), (1.0, 0.0)), role="reference")]
    for number, curve in enumerate(curves):
        series.append(ChartSeries(curve.name, missed(curve.bound), role="limit" if number else "data"))
    summary = (
        "An attacker's errors lie on the curve of the run or above it; the nearer the curve is to guessing, the less "
        f"can be learnt. With 1 % false alarms at least {percent(_floor(bound.missed(0.01)))} are missed."
    )
    source = f"{bound.source} ({bound.formula})"
    if (audit := said.audit) is not None and audit.unit == main.unit and 0 < audit.least < math.inf:
        shown = AttackBound(((audit.least, main.delta),), "", audit.source)
        series.append(ChartSeries(f"audited: epsilon is at least {down(audit.least)}", missed(shown)))
        summary += " With an epsilon below the audited curve, the attack of the audit would not succeed so often."
        source += f"; {audit.source}"
    return Chart(
        "trade-off", "lines", "False alarms and misses",
        Axis("false alarms, at most", low=0.0, high=1.0, percent=True),
        Axis("misses, at least", low=0.0, high=1.0, percent=True, rounded="down"),
        tuple(series), summary=summary, source=source,
    )  # fmt: skip


def missed(bound: AttackBound) -> tuple[Point, ...]:
    """Return the smallest share of misses by the share of false alarms, with more points where the curve is steep."""
    near = np.linspace(0.0, 1.0, POINTS) ** 2 / 2  # up to the middle; then the same from the other end
    corner = 1 - bound.right()  # of the two lines that one (epsilon, delta) allows
    grid = np.unique(np.clip(np.concatenate([near, 1 - near, [corner, bound.missed(0.0)]]), 0.0, 1.0))
    return tuple((float(x), bound.missed(float(x))) for x in grid)


def _floor(share: float) -> float:
    return math.floor(1000 * share + 1e-9) / 1000


# --- how sure an attacker becomes


def after_alarm(prior: float, bound: AttackBound, false_alarms: float) -> float:
    """Return how sure the best test with so many false alarms makes an attacker who believed `prior` before it."""
    found = prior * bound.found(false_alarms)
    wrong = (1 - prior) * false_alarms
    return found / (found + wrong) if found + wrong else prior


def _posterior(main: Guarantee, bound: AttackBound, alone: AttackBound) -> Chart:
    grid = [float(x) for x in np.linspace(0.0, 1.0, POINTS)]
    series = [ChartSeries("nothing learnt", ((0.0, 0.0), (1.0, 1.0)), role="reference")]
    for rate in RATES:
        points = tuple((x, after_alarm(x, bound, rate)) for x in grid)
        series.append(ChartSeries(f"at {_rate(rate)} false alarms", points))
    if _own(bound):
        points = tuple((x, after_alarm(x, alone, 0.01)) for x in grid)
        series.append(ChartSeries(f"{_alone(main)}, at 1 % false alarms", points, role="limit"))
    summary = (
        "After an alarm of a test with 1 % false alarms, a belief of 50 % becomes "
        f"{percent_up(after_alarm(0.5, bound, 0.01))} at most, and a belief of 1 % becomes "
        f"{percent_up(after_alarm(0.01, bound, 0.01))} at most."
    )
    return Chart(
        "posterior", "lines", "How sure an alarm makes an attacker",
        Axis("belief before", low=0.0, high=1.0, percent=True),
        Axis("certainty after an alarm, at most", low=0.0, high=1.0, percent=True, rounded="up"),
        tuple(series), summary=summary, source=f"{bound.source} ({bound.formula})",
    )  # fmt: skip


# --- rates


def _rates(main: Guarantee, bound: AttackBound, alone: AttackBound) -> DataTable:
    noun = "records with the label" if main.unit == "label" else f"{main.unit}s in the data"
    header = ["false alarms", f"{noun} recognised, at most", "by guessing"]
    header += [f"by {_alone(main)}"] if _own(bound) else []
    header += [f"certainty from {percent(p, 0)} before, at most" for p in PRIORS]
    rows = []
    for rate in RATES:
        row = [_rate(rate), percent_up(bound.found(rate)), _rate(rate)]
        row += [percent_up(alone.found(rate))] if _own(bound) else []
        rows.append((*row, *(percent_up(after_alarm(p, bound, rate)) for p in PRIORS)))
    note = f"Upper bounds, rounded up, from {bound.formula}."
    return DataTable("Best possible rates of success", tuple(header), tuple(rows), note=note, source=bound.source)


def _by_viewer(run: RunSources, said: Statement) -> DataTable | None:
    """Return the rates against every viewer; None if all of them are promised the same."""
    if len({(g.epsilon, g.unit) for g in said.viewers}) < 2:
        return None
    rows: list[tuple[str, ...]] = []
    for g in said.viewers:
        if math.isinf(g.epsilon):
            rows.append((capital(who(g.viewer, g.channel)), g.unit, "infinite", "no limit", "no limit"))
            continue
        bound = attack_bound(g, priced(run, g), said.source)
        shares = (bound.found(0.01), after_alarm(0.5, bound, 0.01))
        rows.append((capital(who(g.viewer, g.channel)), g.unit, up(g.epsilon), *map(percent_up, shares)))
    header = (
        "viewer",
        "whose data",
        "epsilon",
        "recognised at 1 % false alarms, at most",
        "certainty from 50 %, at most",
    )
    source = f"{said.source}; public/accounting.json"
    return DataTable("The same against every viewer", header, tuple(rows), source=source)
