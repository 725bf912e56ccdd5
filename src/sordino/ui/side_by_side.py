"""Several runs beside each other: claimed, accounted and audited epsilon, and their curves in one picture."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sordino.core.rounding import up
from sordino.report.chart import Axis, Chart, ChartSeries
from sordino.report.document import Block, DataTable, Document, Paragraph, Section
from sordino.report.reading import amount_at, mapping_at, number_at, object_in, text_at
from sordino.report.run.words import figures, joined, percent
from sordino.ui.live import RunCurves
from sordino.ui.overview import SCORES, RunLine, short
from sordino.ui.shelf import Shelved

MOST = 8  # runs in one picture
DIFFERENT = (  # part of a guarantee, and why epsilons that differ in it are not comparable
    ("unit", "what they protect differs ({})"),
    ("relation", "their relation differs ({}), and replacing a unit moves a sum twice as far as removing it"),
    ("viewer", "they hold against different viewers ({})"),
    ("delta", "their delta differs ({}), and an epsilon has a meaning only together with its delta"),
    ("channel", "their channels hide different things ({})"),
)  # fmt: skip
HEADER = (
    "run", "method", "state", "unit", "relation", "viewer", "delta", "claimed", "accounted", "audited", "score",
    "rounds",
)  # fmt: skip
NOTE = (
    "Claimed: what the paper of the method promises, where that does not hold. Accounted: what Sordino promises. "
    "Audited: an attack has shown that no epsilon below this one holds."
)
CURVES = (
    ("epsilon", "Epsilon by round", Axis("epsilon", low=0.0), "Against the viewer of each run's guarantee."),
    ("accuracy", "Accuracy by round", Axis("accuracy", percent=True), "On the data that the records of each run name."),
    ("rmse", "RMSE by round", Axis("RMSE", low=0.0), "On the data that the records of each run name."),
    ("loss", "Loss by round", Axis("loss", low=0.0), "On the data that the records of each run name."),
)


@dataclass(frozen=True)
class ComparedRun:
    """What a run brings to the comparison."""

    name: str
    line: RunLine
    live: RunCurves
    plan: dict[str, Any]
    result: dict[str, Any]
    audit: dict[str, Any]
    damage: tuple[str, ...]

    @property
    def guarantee(self) -> dict[str, Any]:
        """The guarantee, or what was promised if the run has not ended."""
        return mapping_at(self.result, "guarantee") or mapping_at(self.plan, "promise")

    def said(self, part: str) -> str:
        """Return a part of the guarantee as text."""
        if part == "delta":
            value = amount_at(self.guarantee, "delta")
            return "" if value is None else f"{value:g}"
        return short(text_at(self.guarantee, part) or ("direct" if part == "channel" else ""))

    @property
    def epsilons(self) -> tuple[float | None, float | None, float | None]:
        """The epsilon that was claimed, the one that was accounted, and the one that an audit has shown."""
        accounted = math.inf if self.line.unbounded else self.line.total
        claim = mapping_at(self.result, "claim") or mapping_at(self.plan, "claim")
        return amount_at(claim, "epsilon"), accounted, amount_at(self.audit, "least")


def read(item: Shelved, live: RunCurves, name: str) -> ComparedRun:
    """Return what is known about a run.

    Args:
        item: the run.
        live: its curves.
        name: its name, which no other run beside it has.
    """
    damage: list[str] = []
    plan, result, audit = (_file(live.run.public, part, damage) for part in ("plan", "result", "audit"))
    if number_at(audit, "least") is not None and amount_at(audit, "least") is None:
        damage.append(f"{live.run.public.name}/audit.json: least is not a number of at least 0; it is left out.")
    return ComparedRun(name, live.line(item), live, plan, result, audit, tuple(damage))


def _file(public: Path, name: str, damage: list[str]) -> dict[str, Any]:
    return object_in(public / f"{name}.json", public, damage)


def document(runs: Sequence[ComparedRun]) -> Document:
    """Return the runs beside each other."""
    first: list[Block] = [Paragraph(text, "warning") for text in warnings(runs)]
    charts = tuple(_charts(runs))  # which reads the records, and finds what is damaged
    sections = [Section("runs", "Claimed, accounted and audited", (*first, _table(runs)))]
    sections += [Section("curves", "Curves", charts)] if charts else []
    damage = [f"{run.name}: {text}" for run in runs for text in dict.fromkeys((*run.damage, *run.live.damage()))]
    return Document(joined([run.name for run in runs]), "", "public", tuple(sections), tuple(damage))


def warnings(runs: Sequence[ComparedRun]) -> list[str]:
    """Return sentences on what differs between the guarantees, so that nobody compares their epsilons unawares."""
    out = []
    for part, why in DIFFERENT:
        values = list(dict.fromkeys(v for run in runs if (v := run.said(part))))
        if len(values) > 1:
            out.append(why.format(joined(values)))
    said = [f"The epsilons of these runs cannot be compared as they stand: {'; '.join(out)}."] if out else []
    refuted = [
        run.name for run in runs if run.epsilons[2] is not None and run.epsilons[2] > (run.epsilons[1] or math.inf)
    ]
    if refuted:
        said.append(f"The audit of {joined(refuted)} has shown more than was accounted: that guarantee does not hold.")
    return said


def _table(runs: Sequence[ComparedRun]) -> DataTable:
    rows, keys = [], []
    for run in runs:
        line, words = run.line, [run.name, run.line.method, str(run.line.state)]
        words += [run.said(part) for part in ("unit", "relation", "viewer", "delta")]
        score = scored(line)
        rounds = "" if line.rounds is None else f"{line.rounds:,}"
        rows.append((*words, *map(_epsilon, run.epsilons), score, rounds))
        keys.append((*words, *map(_key, run.epsilons), _key(line.score), _key(line.rounds)))
    caution = tuple(k for k, run in enumerate(runs) if run.epsilons[0] is not None)
    source = "public/plan.json, public/result.json, public/records.jsonl: metrics; public/audit.json: least"
    return DataTable("Runs", HEADER, tuple(rows), tuple(keys), NOTE, source, caution)


def _charts(runs: Sequence[ComparedRun]) -> list[Chart]:
    out = []
    for name, title, axis, text in CURVES:
        series = []
        for run in runs:
            points = run.live.points(name, run.said("viewer"))
            if any(math.isfinite(y) for _, y in points):
                series.append(ChartSeries(run.name, points))
        if series:
            source = f"public/records.jsonl: {name}"
            rounds = Axis("round")
            out.append(
                Chart(f"compare-{name}", "lines", title, rounds, axis, tuple(series), summary=text, source=source)
            )
    return out


def scored(line: RunLine) -> str:
    """Return the score of a run with its name, unless it is an accuracy."""
    if line.score is None:
        return ""
    return percent(line.score) if line.measure == "accuracy" else f"{SCORES[line.measure]} {figures(line.score)}"


def _epsilon(value: float | None) -> str:
    return "" if value is None or math.isnan(value) else up(value)


def _key(value: float | None) -> float | str:
    return "" if value is None or math.isnan(value) else min(value, 1e300)
