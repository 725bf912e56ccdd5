"""The page of a comparison: what was compared, which method is ahead where, and what the numbers may not be used for.

It is made of the public files of the cells alone. Lines with different units, relations, viewers or channels stand in
different tables and different charts, so that no sorting can rank them against each other.
"""

from __future__ import annotations

import math
from pathlib import Path

from sordino.core.record import plain
from sordino.report import tables as texts
from sordino.report.comparison import charts, settings, tables, verdict
from sordino.report.comparison.sources import ComparisonRecords, read
from sordino.report.comparison.tables import Evidence
from sordino.report.document import (
    Block,
    DataTable,
    Document,
    FactSheet,
    FigureTile,
    Listing,
    Paragraph,
    Section,
    Tiles,
)
from sordino.report.run import words
from sordino.report.summary import RankedGroup, blocks, lines

FEW = 12  # charts of one kind that are open at once; more are folded
NOTES = (
    "Accuracy and errors are means over seeds with one sample standard deviation. The accounted epsilon is an upper "
    "bound for the whole run, the largest over the seeds. Ranks hold within one table and one epsilon."
)
COLUMNS = (
    "Asked for, claimed, accounted and audited are values of epsilon: what the run was to spend, what a paper says, "
    "what is spent at most, and what an audit has shown at least. A dash: not claimed, or not measured."
)
AUDITS = (
    "An audited epsilon is a lower bound that an audit has shown, the largest over the runs that were audited; each "
    "holds with the confidence of its own audit."
)


def document(folder: Path) -> Document:
    """Return the page of a comparison: of a finished one, one that goes on or died, or a copy.

    Args:
        folder: the folder of the comparison, its public part, or a copy of either.

    Raises:
        RunError: if there is no comparison.
    """
    records = read(folder)
    evidence = Evidence.of(records, lines(records.results))
    groups = blocks(evidence.lines)
    sections = [
        _first(records, groups, evidence),
        Section("results", "Results", tuple(_results(groups, evidence))),
        *_pictures(evidence),
        _cost(records),
        _every_run(records, evidence),
        _settings(records),
    ]
    return Document(
        records.name,
        _subtitle(records, evidence),
        "public",
        tuple(s for s in sections if s is not None and s.blocks),
        (*_state(records), *records.damage),
        _facts(records, evidence),
    )


def _subtitle(records: ComparisonRecords, evidence: Evidence) -> str:
    methods = len({c.cell.method for c in records.cells})
    data = _data(records)
    parts = [f"comparison of {words.number_of(methods, 'method')}{f' on {data}' if data else ''}"]
    parts.append(words.number_of(len(records.cells), "run"))
    return words.capital(", ".join(parts))


def _data(records: ComparisonRecords) -> str:
    names = dict.fromkeys(run.spec.text("dataset") for run in records.runs)
    return words.joined([n for n in names if n][:4])


def _state(records: ComparisonRecords) -> list[str]:
    """Return what is missing, in sentences."""
    waiting = len(records.waiting())
    if not waiting:
        return []
    finished = sum(not c.cell.error for c in records.cells)
    of = f"{finished:,} of {len(records.cells):,} runs are finished"
    if records.state == "running":
        return [f"The comparison goes on: {of}. What is shown here was read while it ran."]
    if records.state == "stopped":
        again = "The command that began it continues it; `sordino compare` needs the same --name for that."
        return [f"The comparison was stopped: {of}. {again}"]
    return [f"The comparison was not finished when it was copied: {of}."]


def _first(records: ComparisonRecords, groups: list[RankedGroup], evidence: Evidence) -> Section:
    said = verdict.sentences(groups, evidence)
    page: list[Block] = []
    if len(groups) > 1:
        many = f"The methods make {len(groups)} different kinds of promise, so there are {len(groups)} rankings."
        page += [Paragraph(many, "lead"), Listing(tuple(said))]
    elif said:
        page.append(Paragraph(said[0], "lead"))
        page += [Listing(tuple(said[1:]))] if said[1:] else []
    elif any(not c.cell.error for c in records.cells):
        page.append(Paragraph("No method of this comparison has a finite guarantee, so nothing is ranked.", "lead"))
    else:
        page.append(Paragraph("No run of this comparison has a result yet.", "lead"))
    if same := verdict.protected(groups):
        page.append(Paragraph(same))
    page.append(_tiles(records, evidence))
    page += [Paragraph(text, "warning") for text in verdict.warnings(records, groups, evidence)]
    if (missing := tables.failed(records)) is not None:
        count = words.number_of(len(missing.rows), "run")
        page.append(Paragraph(f"{count} failed; the reasons are below the results.", "warning"))
    if any(run.plan.text("mode") == "research" for run in records.runs):
        page.append(Paragraph(verdict.SEEDED, "quiet"))
    scores = charts.scores(evidence)
    page += scores if len(scores) <= 4 else scores[:4]
    page += [Paragraph(NOTES, "quiet")]
    waits = tables.unfinished(records)
    page += [b for b in (waits, missing) if b is not None]
    return Section("comparison", "What was compared", tuple(page))


def _tiles(records: ComparisonRecords, evidence: Evidence) -> Tiles:
    finished = sum(not c.cell.error for c in records.cells)
    seeds = sorted({line.n for line in evidence.lines if line.n})
    asked = sorted({line.asked for line in evidence.lines if line.asked is not None})
    deltas = {c.delta for line in evidence.lines for c in line.cells if not math.isnan(c.delta)}
    tiles = [FigureTile(f"{finished:,} of {len(records.cells):,}", "runs finished")]
    if asked:
        shown = f"{asked[0]:g}" if len(asked) == 1 else f"{asked[0]:g} to {asked[-1]:g}"
        tiles.append(FigureTile(shown, "epsilon asked for, a run"))
    if len(deltas) == 1:
        tiles.append(FigureTile(f"{next(iter(deltas)):g}", "delta"))
    if seeds:
        count = str(seeds[0]) if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
        detail = "a difference may be chance" if seeds[0] == 1 else ""
        tiles.append(FigureTile(count, "seeds per method" if count != "1" else "seed per method", detail))
    index = "public/cells.json, " if records.index else ""
    return Tiles(tuple(tiles), f"{index}cells/*/public/result.json")


def _results(groups: list[RankedGroup], evidence: Evidence) -> list[Block]:
    found = tables.all_of(groups, evidence)
    out: list[Block] = [Paragraph(COLUMNS, "quiet")] if found else []
    out += found
    if evidence.any_audit:
        out.append(Paragraph(AUDITS, "quiet"))
    if (chart := charts.epsilons(evidence)) is not None:
        out.append(chart)
    if rows := texts.remarks(evidence.lines):
        out.append(DataTable("Remarks from the runs", ("method", "remark"), rows, (), "", "cells/*/public/result.json"))
    return out


def _pictures(evidence: Evidence) -> list[Section]:
    scores = charts.scores(evidence)[4:]
    parts = (
        ("scores", "Further kinds of guarantee", scores),
        ("convergence", "Convergence", charts.convergence(evidence)),
        ("noise", "Noise", charts.noise(evidence)),
    )
    return [Section(name, title, tuple(found), len(found) > FEW) for name, title, found in parts if found]


def _cost(records: ComparisonRecords) -> Section | None:
    said = verdict.bill(records)
    if not said:
        return None
    source = "public/cells.json: charged" if records.index.has("charged") else "cells/*/public/plan.json: promise"
    return Section("cost", "What the comparison cost", (Paragraph(said), Paragraph(f"Source: {source}.", "quiet")))


def _every_run(records: ComparisonRecords, evidence: Evidence) -> Section | None:
    table = tables.every_cell(records, evidence)
    return Section("runs", "Every run", (table,), folded=True) if table.rows else None


def _settings(records: ComparisonRecords) -> Section:
    same, different = settings.tables(records)
    software = settings.environment(records)
    page: list[Block] = []
    if different is not None:
        page.append(different)
    if same is not None:
        page += [Paragraph("The same for all runs:"), same]
    if isinstance(software, FactSheet):
        page += [Paragraph("Software and data:"), software]
    return Section("settings", "Settings", tuple(page), folded=True)


def _facts(records: ComparisonRecords, evidence: Evidence) -> dict[str, object]:
    rows = []
    for row, line in zip(texts.line_rows(evidence.lines), evidence.lines, strict=True):
        rows.append(row | {"audited_epsilon": evidence.audited(line)})
    finished = sum(not c.cell.error for c in records.cells)
    facts: dict[str, object] = plain(
        {"state": records.state, "runs": len(records.cells), "finished": finished, "results": rows}
    )
    return facts
