"""For the owner: what the method chose in every round. Systems with choices of their own have pages of their own.

What a method decided stands in the owner's record of a round (`decided`). Its fields say which page fits: scores of
mechanisms (UDP-FL), shares of groups (FedSDP), scales of noise (adaptive noise). All other numbers are drawn by round,
so that a method of one's own needs no page.
"""

from __future__ import annotations

from collections.abc import Sequence

from sordino.report.chart import Axis, Chart
from sordino.report.document import Block, Paragraph, Section
from sordino.report.run import fedsdp_choices, harmonizer_choices, noise_choices
from sordino.report.run.decided import Decision, column, decisions
from sordino.report.run.fields import RunSources, is_number, one_line
from sordino.report.run.lines import ROUNDS, finite, series, trend
from sordino.report.run.words import capital

SOURCE = "private/records.jsonl: decided"
OTHERS = 8  # charts of numbers that no page knows


def section(run: RunSources) -> Section | None:
    """Return what the method chose, round by round."""
    found = decisions(run)
    before = harmonizer_choices.before_the_run(run)
    if not found:
        return Section("choices", "What did the method choose?", tuple(before)) if before else None
    note = "What the method chose follows from who was drawn, so it is the owner's alone."
    blocks: list[Block] = [*before]
    used: set[str] = set()
    for page in (harmonizer_choices, fedsdp_choices, noise_choices):
        made, fields = page.blocks(run, found)
        blocks += made
        used |= fields
    blocks += _others(found, used)
    if len(blocks) == len(before):
        return Section("choices", "What did the method choose?", tuple(before)) if before else None
    blocks.insert(len(before), Paragraph(note, "quiet"))
    return Section("choices", "What did the method choose?", tuple(blocks))


def _others(found: Sequence[Decision], used: set[str]) -> list[Block]:
    """Return a chart for every number that no page has shown."""
    some = found[:: max(1, len(found) // 50)]
    names = list(dict.fromkeys(str(k) for d in some for k, v in d.fields.items() if is_number(v)))
    out: list[Block] = []
    for place, name in enumerate(n for n in names if n not in used):
        points = column(found, name)
        if place < OTHERS and finite(points):
            label, source = one_line(name.replace("_", " "))[:60], f"{SOURCE}.{one_line(name)[:60]}"
            out.append(
                Chart(
                    f"choices-other-{place + 1}", "lines", f"{capital(label)}, by round", ROUNDS, Axis(label),
                    (series(label, points),), summary=trend(capital(label), points), source=source,
                )
            )  # fmt: skip
    return out
