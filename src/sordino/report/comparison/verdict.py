"""What a comparison shows in sentences: which method is ahead where, by how much, and what must not be concluded."""

from __future__ import annotations

import math
from collections.abc import Sequence

from sordino.core.rounding import up
from sordino.report import tables as texts
from sordino.report.comparison.sources import ComparisonRecords
from sordino.report.comparison.tables import Evidence, full_name, score_text
from sordino.report.run import words
from sordino.report.summary import Line, RankedGroup

SENTENCES = 12  # on the first page; the tables have all
LISTED = 8  # names in a sentence
SEEDED = (
    "All noise came from seeds, so that every method meets the same clients and the same first model. These runs are "
    "experiments: their guarantees are void against anyone who knows the seeds."
)


def sentences(groups: Sequence[RankedGroup], evidence: Evidence) -> list[str]:
    """Return which method is ahead, for every kind of guarantee and every epsilon that was asked for."""
    out = []
    several = len(groups) > 1
    for group in groups:
        for asked in dict.fromkeys(line.asked for _, line in group.ranked):
            lines = [line for _, line in group.ranked if line.asked == asked]
            where = f"At epsilon {asked or 0:g}" + (f" ({group.whom.words()})" if several else "")
            out.append(_ahead(where, lines, evidence.measures[0]))
    more = len(out) - SENTENCES
    return out if more <= 0 else [*out[:SENTENCES], f"{words.number_of(more, 'further ranking')}: see the tables."]


def protected(groups: Sequence[RankedGroup]) -> str:
    """Return what all ranked methods protect; "" if they do not protect the same."""
    if len(groups) != 1:
        return ""
    return f"All ranked methods protect the same against the same viewer: {groups[0].whom.words()}."


def _ahead(where: str, lines: Sequence[Line], measure: str) -> str:
    """Return one sentence on the methods at one epsilon; `lines` are sorted, the best first."""
    best, rest = lines[0], lines[1:]
    shown = score_text(best.of(measure), measure)
    if not best.of(measure).n:
        return f"{where}, no {measure} is known."
    if not rest:
        return f"{where}, {best.method} reaches {measure} {shown}; no other method was run with this promise."
    equal = [e.method for e in rest if e.score == best.score]
    if len(equal) == len(rest):
        names = words.joined([e.method for e in lines[:LISTED]])
        return f"{where}, {names} have the same mean {measure}: {shown}."
    behind = next(e for e in rest if e.score < best.score)
    names = words.joined([best.method, *equal][:LISTED])
    first = f"{where}, {names} {'have' if equal else 'has'} the best mean {measure} of {len(lines)} methods: {shown}."
    gap = abs(best.of(measure).mean - behind.of(measure).mean)
    if math.isnan(gap):
        return f"{first} The next, {behind.method}, diverged."
    spreads = [s for s in (best.of(measure).deviation, behind.of(measure).deviation) if not math.isnan(s)]
    if not spreads:
        return f"{first} {_by(behind, gap, measure)}; with one seed that may be chance."
    most = max(spreads)
    beyond = "more than" if gap > most else "no more than"
    return f"{first} {_by(behind, gap, measure)}, {beyond} what one standard deviation over seeds is."


def _by(behind: Line, gap: float, measure: str) -> str:
    amount = f"{100 * gap:.2f} percentage points" if measure == "accuracy" else f"{gap:.3g}"
    return f"The next, {behind.method}, is behind by {amount}"


def warnings(records: ComparisonRecords, groups: Sequence[RankedGroup], evidence: Evidence) -> list[str]:
    """Return what a reader must know before comparing rows."""
    out = [_differing(groups), *_mixed(evidence.lines)]
    out += _claims([line for line in evidence.lines if line.kind == "printed"])
    deltas = {
        c.delta for line in evidence.lines for c in line.cells if line.kind == "sound" and not math.isnan(c.delta)
    }
    if len(deltas) > 1:
        values = words.joined([f"{d:g}" for d in sorted(deltas)][:LISTED])
        out.append(f"The runs were made at different deltas ({values}), so equal epsilons are not equal guarantees.")
    out += _different_code(records)
    refuted = [
        full_name(e) for e in evidence.lines if evidence.audited(e) > e.accounted * (1 + 1e-9) and e.kind != "reference"
    ]
    if refuted:
        out.append(
            f"An audit has shown more than what is accounted of {words.joined(refuted[:LISTED])}: what is accounted "
            "there cannot be right."
        )
    return [text for text in out if text]


def _claims(lines: Sequence[Line]) -> list[str]:
    """Return one sentence for every method whose claim does not hold."""
    out = []
    for method in dict.fromkeys(e.method for e in lines):
        mine = [e for e in lines if e.method == method]
        claimed = words.joined([texts.claimed(e) for e in mine][:LISTED])
        totals = list(dict.fromkeys(up(e.accounted) for e in mine))
        spent = f"accounted is epsilon = {words.joined(totals[:LISTED])}"
        spent += ", in this order" if len(totals) > 1 else ""
        if totals == ["infinite"]:
            spent = "no finite epsilon can be accounted"
        out.append(
            f"The claim of {method} does not hold: its paper claims epsilon = {claimed}; {spent} "
            f"({mine[0].whom.words()}). It was run as printed, and is not ranked."
        )
    more = len(out) - LISTED
    return (
        out if more <= 0 else [*out[:LISTED], f"{words.number_of(more, 'further claim')} do not hold: see the tables."]
    )


def _differing(groups: Sequence[RankedGroup]) -> str:
    """Return in which respects the kinds of guarantee differ; "" if there is one kind."""
    if len(groups) < 2:
        return ""
    parts = []
    for field, noun in (("unit", "unit"), ("relation", "relation"), ("viewer", "viewer"), ("channel", "channel")):
        values = list(dict.fromkeys(getattr(g.whom, field) for g in groups))
        if len(values) > 1:
            parts.append(f"{noun} ({', '.join(values[:LISTED])})")
    return f"The methods differ in {words.joined(parts)}. {texts.ACROSS.replace('The blocks', 'The tables', 1)}"


def _mixed(lines: Sequence[Line]) -> list[str]:
    """Return lines whose seeds do not have the same kind of guarantee, which only foreign records can show."""
    out = []
    for line in lines:
        whoms = {(c.unit, c.relation, c.viewer, c.channel) for c in line.cells}
        if len(whoms) > 1:
            out.append(
                f"The runs of {full_name(line)} do not all protect the same unit in the same relation against the same "
                "viewer. Their mean has no meaning; the table of every run shows them one by one."
            )
    return out


def _different_code(records: ComparisonRecords) -> list[str]:
    versions = {run.seal.text("code") for run in records.runs} - {""}
    if len(versions) < 2:
        return []
    return ["The runs were made by different versions of the code (their seals name different hashes)."]


def bill(records: ComparisonRecords) -> str:
    """Return what all runs cost together in privacy, in a sentence; "" if nothing can be said."""
    if said := records.index.part("charged").text("sentence"):
        return said
    runs = records.runs
    if runs and all(run.plan.flag("public_data") for run in runs):
        return "The data are a public benchmark, so nobody's budget was charged."
    sums: dict[tuple[str, str, str], list[float]] = {}
    endless = 0
    for cell in records.cells:
        whom = cell.cell.unit, cell.cell.relation, cell.cell.viewer
        if cell.run is not None and not cell.cell.unit:
            promise = cell.run.plan.part("promise")
            whom = promise.text("unit"), promise.text("relation"), promise.text("viewer")
        if math.isinf(cell.promised):
            endless += 1
        elif whom[0] and not math.isnan(cell.promised):
            sums.setdefault(whom, []).append(cell.promised)
    parts = [
        f"{words.number_of(len(each), 'run')} with epsilon = {up(math.fsum(each))} in total (a plain sum) for unit "
        f"{unit} ({relation}) against the {viewer}"
        for (unit, relation, viewer), each in sums.items()
    ]
    if endless:
        parts.append(f"{words.number_of(endless, 'run')} without any guarantee")
    return f"If all runs used the same people's data, they cost together: {'; '.join(parts)}." if parts else ""
