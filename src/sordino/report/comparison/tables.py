"""The tables of a comparison page: one for each kind of guarantee, which a reader may sort, and those of all others."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sordino.core.rounding import down, up
from sordino.report import tables as texts
from sordino.report.comparison.sources import CellRecords, ComparisonRecords
from sordino.report.curves import curve
from sordino.report.document import DataTable
from sordino.report.run import words
from sordino.report.summary import Line, RankedGroup, Spread

SOURCE = "cells/*/public: result.json, records.jsonl, audit.json; public/results.csv"
ENDLESS = 1e300  # what an infinite epsilon is sorted by
Key = float | str


@dataclass(frozen=True)
class Evidence:
    """The lines of a comparison with what stands beside them: audits, and how scores are shown."""

    lines: tuple[Line, ...]
    cells: dict[str, CellRecords]
    measures: tuple[str, ...]  # the measures that are shown, first the one that lines are compared by

    @staticmethod
    def of(records: ComparisonRecords, lines: Sequence[Line]) -> Evidence:
        """Return the evidence of a comparison."""
        return Evidence(tuple(lines), {c.cell.name: c for c in records.cells}, texts.measures_of(lines))

    def audited(self, line: Line) -> float:
        """Return the largest lower bound on epsilon that an audit of one of the runs has shown; nan without one."""
        found = [self.cells[c.name].audited for c in line.cells if c.name in self.cells]
        return max((a for a in found if not math.isnan(a)), default=math.nan)

    @property
    def any_audit(self) -> bool:
        """Whether any run was audited."""
        return any(not math.isnan(self.audited(line)) for line in self.lines)

    @property
    def any_claim(self) -> bool:
        """Whether any paper claims an epsilon that does not hold."""
        return any(line.claim is not None for line in self.lines)


def name_of(line: Line) -> str:
    """Return the name of a line: the method, and whether it is a printed form or the reference."""
    kinds = {"printed": ", as printed", "reference": ", no privacy", "open": ", no guarantee"}
    return f"{line.method}{kinds.get(line.kind, '')}"


def full_name(line: Line) -> str:
    """Return the name of a line with the epsilon that was asked for."""
    return name_of(line) + ("" if line.asked is None else f", epsilon {line.asked:g}")


def score_text(value: Spread, measure: str) -> str:
    """Return the mean of a measure with its standard deviation over seeds, in words if it is known of one seed."""
    if not value.n:
        return "not known"
    share = measure == "accuracy"
    mean = f"{100 * value.mean:.2f} %" if share else f"{value.mean:.4g}"
    if value.n == 1:
        return f"{mean} (one seed)"
    return f"{mean} ± {100 * value.deviation:.2f}" if share else f"{mean} ± {value.deviation:.2g}"


def seeds_text(line: Line) -> str:
    """Return how many seeds a line has; that one seed has no error bar is said in words."""
    lost = f", {len(line.errors)} failed" if line.errors else ""
    return ("one seed, so no error bar" if line.n == 1 else str(line.n)) + lost


def epsilon_text(value: float) -> str:
    """Return an upper bound on epsilon as text."""
    return "-" if math.isnan(value) else up(value)


def audited_text(value: float) -> str:
    """Return a lower bound on epsilon as text, rounded down."""
    return "-" if math.isnan(value) else f"at least {down(value, 2)}"


def noise_text(line: Line) -> str:
    """Return the noise in a client's message in the first and in the last round."""
    _, mean, _, _ = curve(line, "noise")
    if not mean.size:
        return "-"
    ends = (words.figures(float(mean[0])), words.figures(float(mean[-1])))
    return ends[0] if ends[0] == ends[1] else f"{ends[0]} to {ends[1]}"


@dataclass(frozen=True)
class Column:
    """A column of a table of lines."""

    head: str
    text: str
    key: Key


def _score_columns(line: Line, measures: Sequence[str]) -> list[Column]:
    out = []
    for measure in measures:
        spread = line.of(measure)
        out.append(Column(measure, score_text(spread, measure), _key(spread.mean)))
    out.append(Column("seeds", seeds_text(line), float(line.n)))
    loss = line.loss
    return [*out, Column("loss", words.figures(loss.mean) if loss.n else "-", _key(loss.mean))]


def _privacy_columns(line: Line, evidence: Evidence) -> list[Column]:
    claim, accounted, audited = line.claim, line.accounted, evidence.audited(line)
    out = []
    if evidence.any_claim:
        out.append(Column("claimed", texts.claimed(line), "" if claim is None else claim.epsilon))
    out.append(Column("accounted", epsilon_text(accounted), _key(accounted)))
    if evidence.any_audit or evidence.any_claim:
        out.append(Column("audited", audited_text(audited), _key(audited)))
    return out


def _cost_columns(line: Line) -> list[Column]:
    _, noise, _, _ = curve(line, "noise")
    out = [
        Column("rounds", f"{line.rounds:,.4g}", _key(line.rounds)),
        Column("noise", noise_text(line), _key(float(np.mean(noise))) if noise.size else ""),
    ]
    if not math.isnan(line.bytes_up):
        out.append(Column("sent up", texts.size(line.bytes_up), _key(line.bytes_up)))
    if not math.isnan(line.seconds):
        out.append(Column("seconds", words.figures(line.seconds), _key(line.seconds)))
    return out


def _key(value: float) -> Key:
    if math.isnan(value):
        return ""
    return ENDLESS if math.isinf(value) else value


def _table(title: str, rows: Sequence[Sequence[Column]], note: str = "", caution: bool = False) -> DataTable:
    """Return a table of rows whose columns may differ; what a row does not have is empty."""
    heads: dict[str, None] = {}
    for row in rows:
        heads |= dict.fromkeys(c.head for c in row)
    by_head = [{c.head: c for c in row} for row in rows]
    blank = Column("", "", "")
    return DataTable(
        title,
        tuple(heads),
        tuple(tuple(row.get(h, blank).text for h in heads) for row in by_head),
        tuple(tuple(row.get(h, blank).key for h in heads) for row in by_head),
        note,
        SOURCE,
        tuple(range(len(rows))) if caution else (),
    )


def ranked(group: RankedGroup, evidence: Evidence) -> DataTable:
    """Return the table of the methods with one kind of guarantee; a rank holds at one epsilon that was asked for."""
    rows = []
    for rank, line in group.ranked:
        asked = line.asked or 0.0
        first = [
            Column("method", line.method, line.method),
            Column("asked for", f"{asked:g}", asked),
            Column("rank", str(rank), float(rank)),
        ]
        rows.append(
            [*first, *_score_columns(line, evidence.measures), *_privacy_columns(line, evidence), *_cost_columns(line)]
        )
    return _table(words.capital(group.whom.words()), rows, texts.unspent(group))


def printed(lines: Sequence[Line], evidence: Evidence) -> DataTable:
    """Return the table of printed forms whose claim does not hold; every row is marked."""
    rows = []
    for line in lines:
        columns = [Column("method", line.method, line.method), *_privacy_columns(line, evidence)]
        columns += _score_columns(line, evidence.measures)
        columns += [
            Column("claimed for", texts.claimed_for(line), texts.claimed_for(line)),
            Column("accounted for", line.whom.words(), line.whom.words()),
            *_cost_columns(line),
        ]
        rows.append(columns)
    reasons = dict.fromkeys(f"{e.method}: {why}." for e in lines if (why := texts.why_not(e)))
    note = "Not ranked: these runs were made at the epsilon that their papers claim, which is not what they spend."
    return _table(texts.PRINTED, rows, " ".join([note, *reasons]), caution=True)


def plain(title: str, lines: Sequence[Line], evidence: Evidence, note: str, caution: bool = False) -> DataTable:
    """Return a table of lines without a guarantee, which are not ranked."""
    rows = []
    for line in lines:
        columns = [Column("method", line.method, line.method)]
        if any(other.asked is not None for other in lines):
            asked = line.asked
            columns.append(Column("asked for", "-" if asked is None else f"{asked:g}", asked or ""))
        columns += [*_score_columns(line, evidence.measures), *_privacy_columns(line, evidence)]
        why = texts.why_not(line)
        rows.append([*columns, Column("reason", why, why), *_cost_columns(line)])
    return _table(title, rows, note, caution)


def all_of(groups: Sequence[RankedGroup], evidence: Evidence) -> list[DataTable]:
    """Return all tables of results: rankings first, then the lines that must not be ranked."""
    kinds: dict[str, list[Line]] = {}
    for line in evidence.lines:
        kinds.setdefault(line.kind, []).append(line)
    out = [ranked(group, evidence) for group in groups]
    if lines := kinds.get("printed"):
        out.append(printed(lines, evidence))
    if lines := kinds.get("open"):
        note = "Not ranked: nothing is promised to anybody, for the reason beside."
        out.append(plain("Without a guarantee", lines, evidence, note, caution=True))
    if lines := kinds.get("reference"):
        note = "What is reached without noise, and without any promise. Nothing is ranked against it."
        out.append(plain("Reference: without privacy", lines, evidence, note))
    return out


def failed(records: ComparisonRecords) -> DataTable | None:
    """Return the cells that failed, with the public part of their reasons."""
    rows = tuple(
        (
            c.cell.name,
            c.cell.method,
            "-" if c.cell.asked is None else f"{c.cell.asked:g}",
            f"{c.cell.seed}",
            c.cell.error,
        )
        for c in records.cells
        if c.state == "failed"
    )
    if not rows:
        return None
    note = "A cell that failed counts in no mean. Reasons that might tell of a record are kept for the owner."
    return DataTable("Runs that failed", ("run", "method", "epsilon", "seed", "reason"), rows, (), note,
                     "public/results.csv", tuple(range(len(rows))))  # fmt: skip


def unfinished(records: ComparisonRecords) -> DataTable | None:
    """Return the cells that are running, were stopped or have not begun."""
    said = {
        "running": "running",
        "stopped": "stopped",
        "unknown": "not finished when it was copied",
        "waiting": "waits",
    }
    rows = tuple(
        (
            c.cell.name,
            c.cell.method,
            "-" if c.cell.asked is None else f"{c.cell.asked:g}",
            str(c.cell.seed),
            said.get(c.state, c.state),
            f"{c.done:,} of {c.planned:,}" if c.planned else "-",
        )
        for c in records.waiting()
    )
    if not rows:
        return None
    return DataTable("Runs that are not finished", ("run", "method", "epsilon", "seed", "state", "rounds"), rows, (),
                     "They count in no mean yet.", "cells/*/public/records.jsonl")  # fmt: skip


def every_cell(records: ComparisonRecords, evidence: Evidence) -> DataTable:
    """Return one row per run, which a reader may sort."""
    rows = []
    for c in records.cells:
        if c.cell.error:
            continue
        line = Line(c.cell.method, c.cell.asked, (c.cell,), ())
        asked = c.cell.asked
        columns = [
            Column("run", c.cell.name, c.cell.name),
            Column("method", c.cell.method, c.cell.method),
            Column("asked for", "-" if asked is None else f"{asked:g}", asked if asked is not None else ""),
            Column("seed", str(c.cell.seed), float(c.cell.seed)),
        ]
        for measure in evidence.measures:
            value = line.of(measure)
            shown = score_text(value, measure).removesuffix(" (one seed)")
            columns.append(Column(measure, shown, _key(value.mean)))
        rows.append([*columns, *_privacy_columns(line, evidence), *_cost_columns(line)])
    return _table("Every run", rows)
