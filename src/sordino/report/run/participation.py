"""For the owner: which clients took part when, how often, and how many answered."""

from __future__ import annotations

import math
from collections.abc import Sequence

from sordino.core.record import OwnerRecord
from sordino.report.chart import Axis, Chart, ChartSeries
from sordino.report.document import Block, Paragraph, Section
from sordino.report.run.fields import Fields, RunSources
from sordino.report.run.lines import ROUNDS, constant, curve, finite, mean, series, stretches, trend
from sordino.report.run.words import figures, number_of, percent

FILE, OWNERS = "private/participation.json", "private/records.jsonl"
ROWS, COLUMNS = 100, 60  # most cells of a heat map
BARS = 24  # most bars


def section(run: RunSources) -> Section | None:
    """Return the heat map of participation, for the owner alone."""
    owner = run.records.owner
    if owner is None or not run.owners:
        return None
    held = run.owner("participation")
    blocks: list[Block] = [*_heat(held), *_often(held), *_cohorts(owner.rounds)]
    if not blocks:
        return None
    note = "Who took part was not released: this page is for the owner alone."
    if run.plan.part("promise").number("epsilon", 0.0) is not None and (run.spec.number("client_rate") or 0.0) < 1:
        note = "Who takes part is the secret draw that the guarantee relies on: this page is for the owner alone."
    return Section("participation", "Who took part?", (Paragraph(note, "warning"), *blocks))


def _heat(held: Fields) -> list[Block]:
    counts, firsts = held.matrix("counts"), held.row("rounds", 1.0)
    last, together, clients = held.count("last", 1), held.count("together", 1), held.count("clients", 1)
    if not counts or last is None or together is None or clients is None or len(firsts) != len(counts[0]):
        return []
    ends = [*(f - 1 for f in firsts[1:]), float(last)]
    lengths = [end - first + 1 for first, end in zip(firsts, ends, strict=True)]  # rounds of every column
    if min(lengths) < 1:
        return []
    rows, columns = stretches(len(counts), ROWS), stretches(len(firsts), COLUMNS)
    cells, names = [], []
    for low, high in rows:
        inside = max(1, min(clients, high * together) - low * together)  # clients of the row
        cells.append(
            tuple(
                math.fsum(v for row in counts[low:high] for v in row[a:b]) / (inside * sum(lengths[a:b]))
                for a, b in columns
            )
        )
        first, final = low * together, min(clients, high * together) - 1
        names.append(f"{first}" if first >= final else f"{first} to {final}")
    share = mean(v for row in cells for v in row)
    if all(v == 1 for row in cells for v in row):
        return [Paragraph(f"All {number_of(clients, 'client')} took part in every one of {number_of(last, 'round')}.")]
    busiest, rarest = (pick(range(len(cells)), key=lambda k: mean(cells[k])) for pick in (max, min))
    group = "client" if len(cells) == clients else "group of clients"
    summary = (
        f"On average a client takes part in {percent(min(1.0, share))} of the rounds; the busiest {group} "
        f"({names[busiest]}) in {percent(min(1.0, mean(cells[busiest])))}, the rarest ({names[rarest]}) in "
        f"{percent(min(1.0, mean(cells[rarest])))}."
    )
    return [
        Chart(
            "participation-map", "heat", "Participation by client and round",
            Axis("round", "category", tuple(f"{firsts[a]:.0f}" for a, _ in columns)),
            Axis("client", "category", tuple(names)), cells=tuple(cells), cell_label="share of rounds",
            cell_percent=True, summary=summary, source=f"{FILE}: counts, rounds",
        ),
    ]  # fmt: skip


def _often(held: Fields) -> list[Block]:
    """Return how many clients took part how often."""
    numbers = held.row("by_number", 0.0)
    if sum(map(bool, numbers)) < 2:  # all took part equally often, as the map says
        return []
    clients = math.fsum(numbers)
    taken = [k for k, n in enumerate(numbers) if n]
    average = math.fsum(k * n for k, n in enumerate(numbers)) / clients
    summary = f"Clients took part {taken[0]:,} to {taken[-1]:,} times, {figures(average)} times on average."
    if numbers[0]:
        summary += f" {number_of(int(numbers[0]), 'client')} of {clients:,.0f} never did."
    shown = numbers[taken[0] :]
    parts = stretches(len(shown), BARS)
    names = [(taken[0] + a, taken[0] + b - 1) for a, b in parts]
    bars = tuple((float(k), math.fsum(shown[a:b])) for k, (a, b) in enumerate(parts))
    labels = tuple(f"{a}" if a == b else f"{a} to {b}" for a, b in names)
    return [
        Chart(
            "participation-often", "bars", "How often clients took part",
            Axis("rounds that a client took part in", "category", labels), Axis("clients", low=0.0),
            (ChartSeries("clients", bars),), summary=summary, source=f"{FILE}: by_number",
        )
    ]  # fmt: skip


def _cohorts(rounds: Sequence[OwnerRecord]) -> list[Block]:
    """Return the sizes of cohorts by round, and how many of them answered."""
    drawn, answered = curve(rounds, lambda r: r.clients), curve(rounds, lambda r: r.answers)
    if len(finite(drawn)) < 2 or (constant(drawn) and not finite(answered)):
        return []
    lines, summary = [series("drawn, and charged", drawn)], trend("The number of clients drawn", drawn)
    if finite(answered):
        lines.append(series("answered", answered))
        gone = math.fsum(y for _, y in finite(drawn)) - math.fsum(y for _, y in finite(answered))
        if gone > 0:
            summary += f" {gone:,.0f} answers of clients that were drawn and charged did not arrive."
    return [
        Chart(
            "participation-cohorts", "lines", "Clients by round", ROUNDS, Axis("clients", low=0.0), tuple(lines),
            summary=summary, source=f"{OWNERS}: clients, answers",
        )
    ]  # fmt: skip
