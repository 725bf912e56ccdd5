"""What an audit found: the smallest epsilon that is consistent with attacks on made-up records."""

from __future__ import annotations

import math

from sordino.core.rounding import down, up
from sordino.report.chart import Axis, Chart, ChartSeries
from sordino.report.document import Block, DataTable, FactSheet, FigureTile, Listing, Paragraph, Section, Tiles
from sordino.report.run.fields import Fields, RunSources
from sordino.report.run.words import figures, number_of

PLACES = {
    "apart": "many canaries in one run, far apart",
    "coordinates": "canaries on axes of their own",
    "runs": "whole runs with and without a canary",
}
STATISTICS = {
    "shown": "without assumptions",
    "gaussian": "if the noise is Gaussian",
    "one_run": "one run, many canaries",
}


def section(run: RunSources) -> Section | None:
    """Return the audit that the reader may see: what was accounted against what attacks show."""
    audit = run.audit
    if not audit:
        return None
    blocks: list[Block] = _verdict(audit)
    blocks += _bounds(audit)
    blocks += _moves(audit)
    if notes := audit.texts("notes"):
        blocks.append(Listing(notes[:50]))
    blocks.append(_facts(audit))
    if audit.file.startswith("private"):
        text = (
            "This audit looked through the eyes of a viewer whom the guarantee does not name: it is the owner's alone."
        )
        blocks.insert(0, Paragraph(text, "warning"))
    return Section("audit", "Was the guarantee tested?", tuple(blocks))


def _verdict(audit: Fields) -> list[Block]:
    alarm, sentence = audit.flag("alarm"), audit.text("sentence")
    out: list[Block] = []
    if alarm:
        out.append(
            Paragraph(
                "The audit refutes the guarantee: what was seen cannot come from a run with so small an epsilon. Do "
                "not rely on this run.",
                "warning",
            )
        )
    text = sentence
    if alarm is False:
        text += (
            " The audit found nothing against the guarantee. It bounds epsilon from below only: it proves no privacy."
        )
    if text.strip():
        out.append(Paragraph(text.strip()))
    tiles = []
    for name, label in (("claimed", "claimed"), ("accounted", "accounted"), ("least", "audited at least")):
        if (value := audit.number(name, 0.0)) is not None:
            tiles.append(FigureTile(down(value) if name == "least" else up(value), f"epsilon {label}"))
    if "accounted" not in (names := set(audit.names())) and "least" in names:
        tiles.append(FigureTile("infinite", "epsilon accounted"))
    if tiles:
        out.append(Tiles(tuple(tiles), f"{audit.file}: claimed, accounted, least"))
    return out


def _named(audit: Fields) -> list[tuple[str, str, Fields, int | None]]:
    """Return all lower bounds: how canaries were placed, which statistic, the bound, the number of trials."""
    out = []
    for trial in audit.parts("trials")[:20]:
        place = trial.text("placement")
        for key, name in STATISTICS.items():
            if part := trial.part(key):
                out.append((PLACES.get(place, place or "canaries"), name, part, trial.count("trials")))
    if part := audit.part("planted"):
        out.append(("canaries planted in this very run", "planted in this run", part, None))
    return out


def _bounds(audit: Fields) -> list[Block]:
    """Return all lower bounds as a table and bars, beside what was accounted."""
    rows: list[tuple[str, ...]] = []
    keys: list[tuple[float | str, ...]] = []
    bars = []
    for place, name, part, trials in _named(audit):
        value, ceiling, sure = part.number("epsilon", 0.0), part.number("ceiling", 0.0), part.share("confidence")
        if value is None:
            continue
        cells = (
            f"{trials:,}" if trials is not None else "-",
            down(value),
            "-" if ceiling is None else figures(ceiling),
        )
        rows.append((place, name, *cells, "-" if sure is None else f"{down(100 * sure, 2)} %"))
        known = [math.nan if v is None else float(v) for v in (trials, value, ceiling, sure)]
        keys.append((place, name, *known))
        bars.append((place, name, value))
    if not rows:
        return []
    note = (
        "A trial plays one run with a canary and one without. The ceiling is the most that so many trials could have "
        "shown of any mechanism."
    )
    head = ("canaries", "statistic", "trials", "epsilon at least", "ceiling", "confidence")
    source = f"{audit.file}: trials, planted"
    several = len({place for place, name, _ in bars if name in STATISTICS.values()}) > 1
    names = tuple(f"{name}: {place}" if several else name for place, name, _ in bars)
    values = [value for *_, value in bars]
    lines = [ChartSeries("audited at least", tuple((float(k), v) for k, v in enumerate(values)))]
    accounted = audit.number("accounted", 0.0)
    summary = f"The largest lower bound is epsilon = {down(max(values))}"
    if accounted is not None:
        lines.append(ChartSeries("accounted", tuple((float(k), accounted) for k in range(len(bars))), role="limit"))
        summary += f", below the accounted {up(accounted)}" if not audit.flag("alarm") else f" against {up(accounted)}"
    chart = Chart(
        "audit-bounds", "bars", "Epsilon that the audit shows at least",
        Axis("statistic", "category", names), Axis("epsilon", low=0.0), tuple(lines),
        summary=f"{summary}.", source=f"{source}, accounted",
    )  # fmt: skip
    return [chart, DataTable("Lower bounds of epsilon", head, tuple(rows), tuple(keys), note=note, source=source)]


def _moves(audit: Fields) -> list[Block]:
    """Return how far one record moves what each outlet lets out."""
    rows, wrong = [], []
    for k, move in enumerate(audit.parts("moves")[:100]):
        moved, allowed = move.number("moved", 0.0), move.number("allowed", 0.0)
        fails = move.flag("fails")
        state = "yes" if fails is False else "no" if fails else "-"
        texts = [move.text(name)[:80] for name in ("outlet", "canary", "change")]
        rows.append((*texts, *("-" if v is None else figures(v) for v in (moved, allowed)), state))
        if fails:
            wrong.append(k)
    if not rows:
        return []
    head = ("outlet", "canary", "change", "moved by", "allowed", "within")
    title = "How far one unit moves what is released, in clip bounds"
    return [DataTable(title, head, tuple(rows), source=f"{audit.file}: moves", caution=tuple(wrong))]


def _facts(audit: Fields) -> FactSheet:
    rows = [
        (label, audit.text(name))
        for name, label in (("viewer", "through the eyes of"), ("unit", "unit"), ("relation", "relation"))
        if audit.text(name)
    ]
    if (rounds := audit.count("rounds")) is not None:
        rows.append(("played", number_of(rounds, "round")))
    if (sure := audit.share("confidence")) is not None:
        rows.append(("confidence of the largest bound", f"{down(100 * sure, 2)} %"))
    if (delta := audit.number("delta", 0.0, 1.0)) is not None:
        rows.append(("delta", f"{delta:g}"))
    return FactSheet(tuple(rows), audit.file)
