"""The page of a reproduced figure or table: what the paper has, as printed, sound, each with an honest epsilon."""

from __future__ import annotations

import math
from collections.abc import Sequence

from sordino.core.rounding import up
from sordino.papers import settings
from sordino.papers.base import FORMS, Experiment, Outcome, honest, spread
from sordino.papers.charts import charts
from sordino.papers.page import HEADS, Provenance
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
from sordino.report.summary import Spread

ENDLESS = 1e300  # what an infinite epsilon is sorted by
COLUMNS = (
    "Accounted epsilon is an upper bound on what the runs spend in total, the largest over the seeds. A claimed one "
    "is what the paper says of the printed form; where it is below the accounted one, the row is marked."
)
Cell = tuple[str, float | str]  # text, and what it is sorted by


def document(experiment: Experiment, outcomes: Sequence[Outcome], how: Provenance, paper: str) -> Document:
    """Return the page of an experiment.

    Args:
        experiment: the figure or table.
        outcomes: the results of its finished runs.
        how: how the runs were made.
        paper: the name of the paper.
    """
    drawn = charts(experiment, outcomes)
    sections = [
        Section("result", "What comes out", tuple(_first(experiment, outcomes, how))),
        Section("figures", "Figures", tuple(drawn)),
        Section("further", "Further numbers", tuple(_extra(experiment, outcomes))),
        Section("settings", "Settings", tuple(_settings(outcomes)), folded=True),
        Section("runs", "How it was made", tuple(_made(outcomes, how)), folded=True),
    ]
    missing = how.wanted - len(outcomes)
    damage = (f"So far {len(outcomes):,} of {how.wanted:,} runs are finished.",) if missing > 0 else ()
    facts = {"experiment": experiment.name, "runs": len(outcomes), "wanted": how.wanted, "command": how.command}
    return Document(
        experiment.title, paper, "public", tuple(s for s in sections if s.blocks), damage, facts
    )  # fmt: skip


def _first(experiment: Experiment, outcomes: Sequence[Outcome], how: Provenance) -> list[Block]:
    said = verdict(outcomes)
    if experiment.verdict and how.complete(outcomes):
        said = [f"{experiment.verdict}", *said]
    out: list[Block] = [Paragraph(said[0], "lead")] if said else [Paragraph("No run has ended yet.", "lead")]
    out += [Listing(tuple(said[1:]))] if said[1:] else []
    out.append(_tiles(experiment, outcomes, how))
    out.append(Paragraph(experiment.about))
    if how.scale != 1:
        text = f"Run at scale {how.scale:g}: fewer rounds, clients and seeds than in the paper's setting."
        out.append(Paragraph(text, "warning"))
    if how.changed:
        compared = ", so nothing here compares with the paper's numbers" if experiment.paper else ""
        out.append(Paragraph(f"Changed by hand: {', '.join(how.changed)}{compared}.", "warning"))
    if lost := list(dict.fromkeys(f"{o.trial.row} at {o.trial.x}" for o in outcomes if o.diverged)):
        out.append(
            Paragraph(f"Diverged, so that the loss is no finite number at the end: {', '.join(lost)}.", "warning")
        )
    if how.failures:
        out.append(Paragraph("These runs failed:", "warning"))
        out.append(Listing(tuple(f"{trial}: {reason}" for trial, reason in how.failures.items())))
    if (found := table(experiment, outcomes)) is not None:
        out += [found, Paragraph(COLUMNS, "quiet")]
    return out


def _tiles(experiment: Experiment, outcomes: Sequence[Outcome], how: Provenance) -> Tiles:
    seeds = len({o.trial.seed for o in outcomes})
    tiles = [FigureTile(f"{len(outcomes):,} of {max(how.wanted, len(outcomes)):,}", "runs finished")]
    tiles.append(FigureTile(str(seeds), "seed" if seeds == 1 else "seeds"))
    if experiment.paper:
        tiles.append(FigureTile(str(len(experiment.paper)), "numbers of the paper"))
    return Tiles(tuple(tiles), "cells/*/public/result.json")


def verdict(outcomes: Sequence[Outcome]) -> list[str]:
    """Return for every printed method whether its claim holds, in sentences."""
    out = []
    for row in dict.fromkeys(o.trial.row for o in outcomes if o.trial.form == "printed"):
        mine = [o for o in outcomes if (o.trial.row, o.trial.form) == (row, "printed")]
        claims = [(o, value) for o in mine if (value := claimed(o)) is not None]
        broken = [(o, value) for o, value in claims if o.honest > value * (1 + 1e-9)]
        if not broken:
            continue
        spent = sorted({o.honest for o, _ in broken})
        least = "infinite" if math.isinf(spent[0]) else f"{up(spent[0])}"
        most = "infinite" if math.isinf(spent[-1]) else f"{up(spent[-1])}"
        range_ = least if least == most else f"{least} to {most}"
        why = next((str(o.result["claim"].get("why_not") or "") for o, _ in broken), "").rstrip(".")
        because = f": {why}" if why else ""
        some = f"does not hold in {len(broken)} of {len(mine)} runs"
        holds = "holds in no run" if len(broken) == len(mine) else some
        out.append(f"The claim of {row} as printed {holds}; accounted is epsilon = {range_}{because}.")
    if not out and outcomes:
        out.append("The accounted epsilon of every run stands beside its score.")
    return out


def claimed(outcome: Outcome) -> float | None:
    """Return the epsilon that a paper claims for a run."""
    value = (outcome.result.get("claim") or {}).get("epsilon")
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def table(experiment: Experiment, outcomes: Sequence[Outcome]) -> DataTable | None:
    """Return one row per method and x: the paper's number, and ours in every form with its accounted epsilon."""
    forms = [f for f in FORMS if any(o.trial.form == f for o in outcomes)]
    if not forms:
        return None
    claims = any(claimed(o) is not None for o in outcomes)
    head = ["method", experiment.x] + (["in the paper"] if experiment.paper else [])
    for form in forms:
        head.append(HEADS[form])
        if form == "printed" and claims:
            head.append("claimed epsilon")
        if form != "reference":
            head.append(f"accounted epsilon, {form}")
    rows, caution = [], []
    for place, (row, x) in enumerate(dict.fromkeys((o.trial.row, o.trial.x) for o in outcomes)):
        cells: list[Cell] = [(row, row), (f"{x:g}", x) if isinstance(x, float | int) else (x, x)]
        if experiment.paper:
            number = experiment.paper.get((row, x))
            cells.append(("-", "") if number is None else (f"{number:g}", number))
        for form in forms:
            here = [o for o in outcomes if (o.trial.row, o.trial.x, o.trial.form) == (row, x, form)]
            value = spread(outcomes, row, x, form)
            cells.append((_shown(value), "" if math.isnan(value.mean) else value.mean))
            epsilon = honest(outcomes, row, x, form)
            said = max((c for o in here if (c := claimed(o)) is not None), default=None)
            if form == "printed" and claims:
                cells.append(("-", "") if said is None else (f"{said:g}{_scope(here)}", said))
            if form != "reference":
                cells.append(("-", "") if epsilon is None else (up(epsilon), min(epsilon, ENDLESS)))
            if said is not None and epsilon is not None and epsilon > said * (1 + 1e-9):
                caution.append(place)
        rows.append(cells)
    return DataTable(
        experiment.title,
        tuple(head),
        tuple(tuple(text for text, _ in cells) for cells in rows),
        tuple(tuple(key for _, key in cells) for cells in rows),
        f"Scores: {experiment.y}.",
        "cells/*/public/result.json: accuracy, metrics, guarantee, claim",
        tuple(dict.fromkeys(caution)),
    )


def _scope(outcomes: Sequence[Outcome]) -> str:
    return " a round" if any((o.result.get("claim") or {}).get("scope") == "round" for o in outcomes) else ""


def _shown(value: Spread) -> str:
    if not value.n:
        return "-"
    text = f"{value.mean:.2f}" if abs(value.mean) >= 1 or value.mean == 0 else f"{value.mean:.4f}"
    if value.n == 1:
        return f"{text} (one seed)"
    return f"{text} ± {value.deviation:.2f} ({value.n} seeds)"


def _extra(experiment: Experiment, outcomes: Sequence[Outcome]) -> list[Block]:
    """Return the further lines of an experiment, which are Markdown: sentences and tables."""
    lines = experiment.extra(outcomes) if experiment.extra is not None else []
    out: list[Block] = []
    rows: list[tuple[str, ...]] = []
    title = "Further numbers"
    for line in [*lines, ""]:
        if line.startswith("|"):
            rows.append(tuple(cell.strip() for cell in line.strip().strip("|").split("|")))
            continue
        if rows:
            body = tuple(row for row in rows[1:] if not all(set(cell) <= set("-: ") and cell for cell in row))
            out.append(DataTable(title, rows[0], tuple(row for row in body if len(row) == len(rows[0]))))
            rows = []
        if line.strip():
            out.append(Paragraph(line.strip()))
            title = line.strip().rstrip(":.")[:80]
    return out


def _settings(outcomes: Sequence[Outcome]) -> list[Block]:
    lines = [line for line in settings.lines(outcomes) if line]
    shared = [Paragraph(line) for line in lines if not line.startswith("- ")]
    own = tuple(line.removeprefix("- ").replace("*", "") for line in lines if line.startswith("- "))
    return [*shared, *([Listing(own)] if own else [])]


def _made(outcomes: Sequence[Outcome], how: Provenance) -> list[Block]:
    out: list[Block] = [FactSheet((("Command", how.command), ("Scale", f"{how.scale:g}")))]
    rows = []
    for o in outcomes:
        trial, score = o.trial, _shown(Spread.of([o.score])).removesuffix(" (one seed)")
        rows.append(
            (trial.name, str(trial.keys.get("method", "")), trial.form, str(trial.seed), score, up(o.honest), o.whom)
        )
    if rows:
        head = ("run", "method", "form", "seed", "score", "accounted epsilon", "for whom, against whom")
        out.append(DataTable("Every run", head, tuple(rows), (), "", "cells/*/public/result.json"))
    return out
