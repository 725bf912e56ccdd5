"""What the run has spent of its privacy budget: by round, by viewer, by accountant, by client."""

from __future__ import annotations

import math
from collections.abc import Sequence

from sordino.core.rounding import small_up, up
from sordino.privacy.accountants import gdp
from sordino.privacy.algebra import alternatives, gdp_mu_squared
from sordino.privacy.guarantee import Guarantee
from sordino.report.chart import Axis, Chart, ChartSeries, Point
from sordino.report.document import Block, DataTable, Paragraph, Section
from sordino.report.run.client_budgets import client_budgets
from sordino.report.run.fields import RunSources, one_line
from sordino.report.run.lines import ROUNDS, constant, curve, finite, marks, series, trend
from sordino.report.run.pricing import (
    FAULTS,
    Priced,
    SpentEvent,
    attack_bound,
    by_accountant,
    deltas_by_accountant,
    priced,
    spent,
)
from sordino.report.run.promise import by_viewer, stated
from sordino.report.run.words import capital, joined, number_of, small

RECORDS, ACCOUNTING = "public/records.jsonl", "public/accounting.json"
VIEWERS = 12  # most viewers that are shown
SETTINGS = 20  # most settings of a search that are named
NEGLIGIBLE = 1e-6  # share of the guarantee's delta from which delta is drawn
SEEN_BY = {"server": "the server", "public": "the public", "client": "another client", "wire": "the wire"}
ACCOUNTANTS = {
    "exact": "the exact formula for Gaussian noise",
    "PLD": "PLD (privacy loss distributions)",
    "RDP": "RDP (Renyi differential privacy)",
}


def viewer_name(viewer: str) -> str:
    """Return a viewer in words."""
    return one_line(SEEN_BY.get(viewer, viewer))[:60]


def section(run: RunSources) -> Section | None:
    """Return epsilon over rounds by viewer and by accountant, the privacy curve, and the budgets of clients."""
    main, where = stated(run)
    over = _over_rounds(run, main)
    clients = client_budgets(run)
    if main is None and not over and not clients:
        return None
    blocks: list[Block] = [Paragraph(_lead(run, main))] if main is not None else []
    blocks += over
    if main is not None:
        blocks += [*_by_accountant(run, main), *_privacy_curve(run, main, where), *_evaluation(run), *_search(run)]
    blocks += clients
    return Section("budget", "What was spent of the privacy budget?", tuple(blocks))


def _lead(run: RunSources, main: Guarantee) -> str:
    if math.isinf(main.epsilon):
        why = f": {main.reason}" if main.reason else ""
        return f"There is no budget to spend: epsilon is infinite against {viewer_name(main.viewer)}{why}."
    done = max((r.round for r in run.records.rounds), default=0)
    verb = "has cost" if run.finished else "may cost at most"
    text = (
        f"Against {viewer_name(main.viewer)} the run {verb} epsilon = {up(main.epsilon)} at delta = {main.delta:g} "
        f"({small(main.delta)}) over {number_of(main.rounds, 'round')}."
    )
    if not run.finished:
        text += f" {capital(number_of(done, 'round'))} {'is' if done == 1 else 'are'} on record."
    return text + " Every epsilon here is the bound that was planned: none depends on which clients were drawn."


# --- epsilon over rounds


def _over_rounds(run: RunSources, main: Guarantee | None) -> list[Block]:
    rounds = run.records.rounds
    names = list(dict.fromkeys(viewer for r in rounds[:: max(1, len(rounds) // 50)] for viewer in r.epsilon))[:VIEWERS]
    curves = {v: epsilons(run, v) for v in names}
    shown = {v: points for v, points in curves.items() if finite(points)}
    out: list[Block] = []
    if shown:
        lines = [series(f"against {viewer_name(v)}", points) for v, points in _merged(shown)]
        limit = run.plan.part("promise").number("epsilon", 0.0)
        last = max(x for points in shown.values() for x, _ in points)
        if limit is not None and last > 1:
            lines.append(ChartSeries("promised before the run", ((1.0, limit), (last, limit)), role="limit"))
        lost = {float(r.round) for r in rounds if r.lost}
        first = next(iter(shown.values()))
        if at := [p for p in finite(first) if p[0] in lost]:
            lines.append(marks("lost rounds, charged as well", at))
        summary = " ".join(trend(f"Epsilon against {viewer_name(v)}", points, words=up) for v, points in shown.items())
        out.append(
            Chart(
                "budget-rounds", "lines", "Epsilon spent, by round", ROUNDS, Axis("epsilon", low=0.0, rounded="up"),
                tuple(lines), summary=summary, source=f"{RECORDS}: epsilon; public/plan.json: promise.epsilon",
            )
        )  # fmt: skip
        if len(finite(first)) > 1 and constant(first):
            text = (
                "Epsilon is the same after every round: the budget of the whole run is charged from the first one on."
            )
            out.append(Paragraph(text, "quiet"))
    unbounded = main is not None and math.isinf(main.epsilon) and not shown  # as the first sentence says
    if (infinite := [v for v in names if v not in shown]) and not unbounded:
        whom = joined([viewer_name(v) for v in infinite])
        reasons = [g.reason for v, g in by_viewer(run).items() if v in infinite and g.reason]
        why = f": {reasons[0]}" if reasons else ""
        out.append(Paragraph(f"Against {whom} epsilon is infinite, so there is no curve{why}.", "warning"))
    return out


def epsilons(run: RunSources, viewer: str) -> tuple[Point, ...]:
    """Return epsilon by round against a viewer, as planned; infinite ones are gaps."""
    return curve(run.records.rounds, lambda r: r.epsilon.get(viewer))


def _merged(curves: dict[str, tuple[Point, ...]]) -> list[tuple[str, tuple[Point, ...]]]:
    """Return the curves; of viewers with one and the same curve only the first, named for all of them."""
    out: list[tuple[str, tuple[Point, ...]]] = []
    for viewer, points in curves.items():
        same = next((k for k, (_, other) in enumerate(out) if _equal(other, points)), None)
        if same is None:
            out.append((viewer_name(viewer), points))
        else:
            out[same] = (f"{out[same][0]} and {viewer_name(viewer)}", points)
    return out


def _equal(one: Sequence[Point], other: Sequence[Point]) -> bool:
    return len(one) == len(other) and all(
        a == b or (math.isnan(a[1]) and math.isnan(b[1])) for a, b in zip(one, other, strict=True)
    )


# --- by accountant


def accountants(event: SpentEvent, delta: float) -> dict[str, float]:
    """Return the epsilon of an event by accountant, the exact formula among them where there is one."""
    out = by_accountant(event.event, delta)
    try:
        if gdp_mu_squared(event.event) is not None:
            out["exact"] = max(gdp.epsilon(e, delta) for e in alternatives(event.event))
    except FAULTS:
        pass
    return {name: value for name, value in out.items() if math.isfinite(value)}


def _by_accountant(run: RunSources, main: Guarantee) -> list[Block]:
    delta = run.accounting.number("spendable", 0.0, 1.0)
    events = spent(run, main.viewer) if delta else []
    if not events or not delta or math.isinf(main.epsilon):
        return _no_accountants(run, main)
    priced_events = [(event.round, accountants(event, delta)) for event in events]
    names = [n for n in ACCOUNTANTS if n in priced_events[-1][1]]
    if not names:
        return []
    source = f"{ACCOUNTING}: viewers.{one_line(main.viewer)}.spent, spendable; priced again for this report"
    out: list[Block] = []
    final = priced_events[-1][1]
    least = min(names, key=lambda n: final[n])
    summary = (
        f"After round {priced_events[-1][0]:,}, "
        + joined([f"{ACCOUNTANTS[n]} gives epsilon = {up(final[n])}" for n in names])
        + "."
    )
    if len(priced_events) > 1:
        lines = tuple(
            ChartSeries(ACCOUNTANTS[n], tuple((float(t), e[n]) for t, e in priced_events if n in e)) for n in names
        )
        unit = Axis(f"epsilon at delta = {small_up(delta)}", low=0.0, rounded="up")
        out.append(
            Chart(
                "budget-accountants", "lines", f"Epsilon against {viewer_name(main.viewer)}, by accountant", ROUNDS,
                unit, lines, summary=summary, source=source,
            )
        )  # fmt: skip
    times = {n: final[n] / final[least] if final[least] else math.nan for n in names}
    above = {n: f"{100 * (ratio - 1):+.1f} %" if math.isfinite(ratio) else "-" for n, ratio in times.items()}
    rows = tuple((ACCOUNTANTS[n], up(final[n]), above[n]) for n in names)
    out.append(
        DataTable(
            "Epsilon at the end, by accountant",
            ("accountant", f"epsilon at delta = {small_up(delta)}", "above the smallest"), rows,
            tuple((ACCOUNTANTS[n], final[n], times[n]) for n in names),
            note="Every accountant gives an upper bound, so the smallest one counts.", source=source,
        )
    )  # fmt: skip
    return [*out, *_deltas(events, main, source)] if len(events) > 1 else out


def _deltas(events: list[SpentEvent], main: Guarantee, source: str) -> list[Block]:
    """Return delta by round at the epsilon of the guarantee, from where it is no longer negligible."""
    least, rounds = main.delta * NEGLIGIBLE, [float(event.round) for event in events]
    each = [deltas_by_accountant(event.event, main.epsilon) for event in events]
    curves = {
        n: tuple((t, d[n]) for t, d in zip(rounds, each, strict=True) if d.get(n, 0.0) >= least) for n in ACCOUNTANTS
    }
    shown = {n: points for n, points in curves.items() if points and points[-1][0] == rounds[-1]}
    if not shown:
        return []
    gives = joined([f"{ACCOUNTANTS[n]} gives delta = {small_up(points[-1][1])}" for n, points in shown.items()])
    summary = f"At epsilon = {up(main.epsilon)}, after round {rounds[-1]:,.0f}, {gives}."
    if min(t for points in shown.values() for t, _ in points) > rounds[0]:
        summary += f" Before the curves begin, delta is below {small_up(least)}."
    return [
        Chart(
            "budget-deltas", "lines", f"Delta against {viewer_name(main.viewer)}, by accountant", ROUNDS,
            Axis(f"delta at epsilon = {up(main.epsilon)}", "log", rounded="up"),
            tuple(ChartSeries(ACCOUNTANTS[n], points) for n, points in shown.items()), summary=summary, source=source,
        )
    ]  # fmt: skip


def _no_accountants(run: RunSources, main: Guarantee) -> list[Block]:
    """Return why epsilon was not priced again."""
    if math.isinf(main.epsilon) or not run.finished or not run.accounting:
        return []
    why = run.accounting.part("viewers").part(main.viewer).text("left_out")
    reason = f": {why}" if why else ": its releases are of a kind that takes long to price"
    return [Paragraph(f"The events of this run were not priced again for this report{reason}.", "quiet")]


# --- delta over epsilon


def _privacy_curve(run: RunSources, main: Guarantee, where: str) -> list[Block]:
    """Return delta as a function of epsilon at the end of the run."""
    price: Priced | None = priced(run, main)
    if price is None:
        return []
    lines = attack_bound(main, price, where).lines
    points = tuple(sorted({(e, d) for e, d in lines[:-1] if d > 0}))
    if len(points) < 3:
        return []
    at = (main.epsilon, main.delta)
    curves = (
        ChartSeries("this run", points),
        ChartSeries("the guarantee", (at,), role="limit"),
    )
    low = min(d for _, d in points)
    summary = (
        f"The same run keeps (epsilon, delta) for every point of the curve: delta is {small_up(points[0][1])} at "
        f"epsilon = {up(points[0][0])} and falls to {small_up(low)} at epsilon = {up(points[-1][0])}; the "
        f"guarantee names epsilon = {up(main.epsilon)} at delta = {main.delta:g}."
    )
    return [
        Chart(
            "budget-privacy-curve", "lines", "Delta for every epsilon, at the end", Axis("epsilon", low=0.0),
            Axis("delta", "log", rounded="up"), curves, summary=summary, source=price.source,
        )
    ]  # fmt: skip


# --- what lies outside the rounds


def _evaluation(run: RunSources) -> list[Block]:
    """Return what releases outside the rounds cost."""
    part = run.plan.part("evaluation")
    releases, epsilon, delta = part.count("releases", 1), part.number("epsilon", 0.0), part.number("delta", 0.0, 1.0)
    if releases is None or epsilon is None or delta is None:
        return []
    what = "Evaluations and statistics outside the training rounds"
    if part.flag("apart"):
        text = (
            f"{what}, {number_of(releases, 'release')} in all, use records that no round touches. They cost these "
            f"records epsilon = {up(epsilon)} at delta = {delta:g}, and nobody else anything: the total is the "
            "larger of the two costs."
        )
    else:
        text = (
            f"{what}, {number_of(releases, 'release')} in all, are part of the total. Alone they would cost epsilon = "
            f"{up(epsilon)} at delta = {delta:g}."
        )
    if why := part.text("text"):
        text += f" {capital(why)}."
    return [Paragraph(text)]


def _search(run: RunSources) -> list[Block]:
    """Return what the search cost that chose the settings of the run."""
    if not (sentence := run.tune.text("sentence")):
        return []
    chosen = run.tune.part("settings")
    values = {key: chosen.data[key] for key in chosen.names() if isinstance(chosen.data[key], int | float | str)}
    winner = joined([one_line(f"{key} = {value}")[:80] for key, value in list(values.items())[:SETTINGS]])
    lead = f"A search chose {winner}. " if winner else "A search chose the settings of this run. "
    return [Paragraph(lead + one_line(sentence)), Paragraph("Source: public/tune.json: settings, sentence", "quiet")]
