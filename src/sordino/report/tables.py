"""The tables of a comparison, as results.csv, summary.csv, table.md and for a terminal."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sordino.core.rounding import up
from sordino.report.cells import CellResult
from sordino.report.summary import Line, RankedGroup, Spread, blocks, compared_by

ACROSS = (
    "The blocks differ in what is protected (unit, relation) or from whom (viewer, channel), so their epsilons mean "
    "different things: methods of different blocks must not be ranked against each other."
)
PRINTED = "As printed: run at the same claim, which does not hold"
SPENT = 0.98  # share of the largest accounted epsilon at the same request below which a method is mentioned


ERRORS = ("rmse", "mae")  # measures of a regression
COSTS = ("rounds", "seconds", "sent up")


@dataclass(frozen=True)
class Table:
    """A table of text with a title and a note."""

    title: str
    note: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def tables(results: Sequence[Line]) -> list[Table]:
    """Return the tables for readers: rankings by block, then printed forms, references, failures and remarks."""
    parts: dict[str, list[Line]] = {}
    for line in results:
        parts.setdefault(line.kind, []).append(line)
    by = measures_of(results)
    out = _ranked(blocks(results), by)
    if lines := parts.get("printed"):
        out.append(_printed(lines, by))
    if lines := parts.get("open"):
        out.append(_plain("Without a guarantee", "Not ranked.", lines, by))
    if lines := parts.get("reference"):
        out.append(_plain("Reference: without privacy", "", lines, by))
    if lines := [line for line in results if line.errors]:
        out.append(_failed(lines))
    if rows := remarks(results):
        out.append(Table("Remarks from the runs", "", ("method", "remark"), rows))
    return out


def remarks(results: Sequence[Line]) -> tuple[tuple[str, str], ...]:
    """Return each remark of the runs once, with the methods that made it."""
    who: dict[str, dict[str, None]] = {}
    for line in results:
        for note in dict.fromkeys(n for cell in line.cells for n in cell.notes):
            who.setdefault(note, {})[line.method] = None
    methods = {line.method for line in results if line.cells}
    return tuple(("all" if len(m) == len(methods) > 1 else ", ".join(m), note) for note, m in who.items())


def unspent(block: RankedGroup) -> str:
    """Return a note on methods ranked with a smaller accounted epsilon than others; empty if there are none."""
    out = []
    for asked in dict.fromkeys(e.asked for _, e in block.ranked):
        same = [e for _, e in block.ranked if e.asked == asked]
        most = max(e.accounted for e in same)
        less = [f"{e.method} {up(e.accounted)}" for e in same if e.accounted < SPENT * most]
        if less:
            out.append(f"asked for {_epsilon(asked)}, where others spent {up(most)}: {', '.join(less)}")
    if not out:
        return ""
    return (
        f"Not at the same epsilon ({'; '.join(out)}): some noise is for a client that takes part in every round, which "
        "none did. Bound that with max_participations, or draw all clients."
    )


def measures_of(results: Sequence[Line]) -> tuple[str, ...]:
    """Return the measures to show, first the one that lines are compared by; for a regression those that are known."""
    first = compared_by(results)
    if first == "loss":
        return ("accuracy",)
    return tuple(m for m in ERRORS if any(line.of(m).n for line in results)) if first in ERRORS else (first,)


def _heads(measures: Sequence[str]) -> tuple[str, ...]:
    return (*("accuracy, %" if m == "accuracy" else m for m in measures), "n", "loss")


def _ranked(groups: Sequence[RankedGroup], by: Sequence[str]) -> list[Table]:
    out: list[Table] = []
    for block in groups:
        words = block.whom.words()
        rows = tuple(
            (_epsilon(e.asked), str(rank), e.method, *_scores(e, by), up(e.accounted), *_costs(e))
            for rank, e in block.ranked
        )
        note = " ".join(filter(None, (ACROSS if len(groups) > 1 and not out else "", unspent(block))))
        header = ("epsilon", "rank", "method", *_heads(by), "accounted", *COSTS)
        out.append(Table(words[0].upper() + words[1:], note, header, rows))
    return out


def _printed(lines: Sequence[Line], by: Sequence[str]) -> Table:
    header = (
        "method",
        "claimed epsilon",
        "accounted",
        *_heads(by),
        "claimed for",
        "unit",
        "relation",
        "viewer",
        *COSTS,
    )
    rows = tuple(
        (e.method, claimed(e), up(e.accounted), *_scores(e, by), claimed_for(e), *e.whom[:3], *_costs(e)) for e in lines
    )
    reasons = dict.fromkeys(f"{e.method}: {why}." for e in lines if (why := why_not(e)))
    return Table(PRINTED, " ".join(["Not ranked.", *reasons]), header, rows)


def _plain(title: str, note: str, lines: Sequence[Line], by: Sequence[str]) -> Table:
    header = ("method", "epsilon", *_heads(by), "accounted", "reason", *COSTS)
    rows = tuple(
        (e.method, _epsilon(e.asked), *_scores(e, by), up(e.accounted), e.reason or "-", *_costs(e)) for e in lines
    )
    return Table(title, note, header, rows)


def _failed(lines: Sequence[Line]) -> Table:
    rows = tuple(
        (e.method, _epsilon(e.asked), f"{len(e.errors)} of {e.n + len(e.errors)}", "; ".join(dict.fromkeys(e.errors)))
        for e in lines
    )
    return Table("Cells that failed", "", ("method", "epsilon", "cells", "reason"), rows)


def _scores(line: Line, measures: Sequence[str]) -> tuple[str, ...]:
    loss = line.loss
    return *(_score(line.of(m), m) for m in measures), str(line.n), "-" if not loss.n else f"{loss.mean:.3g}"


def _score(value: Spread, measure: str) -> str:
    scale, how, spread = (100, ".2f", ".2f") if measure == "accuracy" else (1, ".3g", ".2g")
    if not value.n:
        return "-"
    text = f"{scale * value.mean:{how}}"
    return text if value.n == 1 else f"{text} ± {scale * value.deviation:{spread}}"


def _costs(line: Line) -> tuple[str, ...]:
    private = math.isnan(line.seconds)  # unknown for private data
    return f"{line.rounds:g}", "" if private else f"{line.seconds:.3g}", "" if private else size(line.bytes_up)


def claimed(line: Line) -> str:
    """Return the claimed epsilon as text."""
    if line.claim is None:
        return "-"
    return f"{line.claim.epsilon:g}" + (" a round" if line.claim.scope == "round" else "")


def claimed_for(line: Line) -> str:
    """Return the unit and viewer of the paper's claim; other columns have those of the accounted guarantee."""
    if line.claim is None:
        return "-"
    viewer = line.claim.viewer
    whom = "another client" if viewer == "client" else f"the {viewer}"
    return (line.claim.unit or "-") + (f" against {whom}" if viewer else "")


def why_not(line: Line) -> str:
    """Return why the claim does not hold, or why there is no guarantee; empty if neither applies."""
    text = (line.claim.why_not if line.claim is not None else "") or line.reason
    return text.rstrip(".")


def _epsilon(value: float | None) -> str:
    return "-" if value is None else f"{value:g}"


def size(count: float) -> str:
    """Return a number of bytes as text with a decimal unit."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def markdown(title: str, about: str, results: Sequence[Line]) -> str:
    """Return all tables as a Markdown page."""
    out = [f"# {title}", "", about, ""]
    for table in tables(results):
        out += [f"## {table.title}", ""]
        if table.note:
            out += [table.note, ""]
        out.append("| " + " | ".join(table.header) + " |")
        out.append("|" + " --- |" * len(table.header))
        out += ["| " + " | ".join(c.replace("|", "\\|") for c in row) + " |" for row in table.rows]
        out.append("")
    return "\n".join(out)


# --- for programs


def cell_row(cell: CellResult) -> dict[str, Any]:
    """Return a cell as a row of results.csv."""
    claim = cell.claim
    done = not cell.error
    return {
        "cell": cell.name,
        "method": cell.method,
        "epsilon": cell.asked,
        "seed": cell.seed,
        "status": "done" if done else "failed",
        "accuracy": cell.accuracy,
        "loss": cell.loss,
        "rmse": cell.rmse,
        "mae": cell.mae,
        "accounted_epsilon": cell.accounted,
        "delta": cell.delta,
        "unit": cell.unit,
        "relation": cell.relation,
        "viewer": cell.viewer,
        "channel": cell.channel,
        "claimed_epsilon": None if claim is None else claim.epsilon,
        "claimed_delta": None if claim is None else claim.delta,
        "claim_scope": None if claim is None else claim.scope,
        "claim_unit": None if claim is None else claim.unit,
        "claim_viewer": None if claim is None else claim.viewer,
        "rounds": cell.rounds if done else None,
        "bytes_up": cell.bytes_up if done else None,
        "reason": cell.error or cell.reason,
        "seconds": cell.seconds if done else None,
    }


def line_row(line: Line, rank: int | None) -> dict[str, Any]:
    """Return a line as a row of summary.csv."""
    claim, whom = line.claim, line.whom
    return {
        "method": line.method,
        "epsilon": line.asked,
        "kind": line.kind,
        "rank": rank,
        "n": line.n,
        "failed": len(line.errors),
        "accuracy_mean": line.accuracy.mean,
        "accuracy_std": line.accuracy.deviation,
        "loss_mean": line.loss.mean,
        "loss_std": line.loss.deviation,
        **{f"{m}_{k}": v for m in ERRORS for k, v in (("mean", line.of(m).mean), ("std", line.of(m).deviation))},
        "accounted_epsilon": line.accounted,
        "delta": line.cells[0].delta if line.cells else None,
        "claimed_epsilon": None if claim is None else claim.epsilon,
        "claim_scope": None if claim is None else claim.scope,
        "claim_unit": None if claim is None else claim.unit,
        "claim_viewer": None if claim is None else claim.viewer,
        "claim_source": None if claim is None else claim.source,
        "unit": whom.unit,
        "relation": whom.relation,
        "viewer": whom.viewer,
        "channel": whom.channel,
        "rounds": line.rounds,
        "bytes_up": line.bytes_up,
        "reason": "; ".join(dict.fromkeys(line.errors)) or why_not(line),
        "seconds": line.seconds,
    }


def line_rows(results: Sequence[Line]) -> list[dict[str, Any]]:
    """Return one row per line; ranks hold within one kind of guarantee and epsilon, and are empty elsewhere."""
    ranks = {(e.method, e.asked): rank for block in blocks(results) for rank, e in block.ranked}
    return [line_row(e, ranks.get((e.method, e.asked))) for e in results]


def to_csv(rows: Sequence[dict[str, Any]]) -> str:
    """Return rows as CSV: numbers in full precision, infinity as "infinite", unknown values empty.

    Columns of errors appear only for a regression, bytes and seconds only for public data."""
    out = io.StringIO()
    texts = [{k: _text(v) for k, v in row.items()} for row in rows]
    optional = (*ERRORS, "bytes", "seconds")
    wanted = [k for k in texts[0] if k.partition("_")[0] not in optional or any(text[k] != "" for text in texts)]
    writer = csv.DictWriter(out, wanted, lineterminator="\n", extrasaction="ignore")
    writer.writeheader()
    writer.writerows(texts)
    return out.getvalue()


def _text(value: Any) -> Any:
    if isinstance(value, float) and math.isinf(value):
        return "infinite"
    return "" if value is None or (isinstance(value, float) and math.isnan(value)) else value
