"""How the model got better from round to round, beside the run without privacy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sordino.core.record import RoundRecord
from sordino.report.chart import Axis, Chart, ChartSeries, Point
from sordino.report.document import Block, Listing, Paragraph, Section
from sordino.report.run.evaluated import evaluated, kind_of
from sordino.report.run.fields import RunSources, is_number, one_line
from sordino.report.run.lines import ROUNDS, curve, finite, marks, real, series, trend
from sordino.report.run.words import capital, number_of

RECORDS, BASELINE = "public/records.jsonl", "public/baseline.json"
OTHERS = 6  # charts of metrics on scales of their own
LISTED = 5  # reasons of lost rounds that are named
GROUPS = (  # charts of several metrics on one scale
    ("convergence-shares", "Further metrics by round", "high"),
    ("convergence-gaps", "Errors and gaps by round", "low"),
)


def section(run: RunSources) -> Section | None:
    """Return the curves of loss and metrics over rounds."""
    rounds = run.records.rounds
    seen = [r for r in rounds if evaluated(r)]
    lost = _lost(rounds)
    if len(seen) < 2:
        once = (
            [Paragraph(f"The model was evaluated once, in round {seen[0].round:,}, so there is no curve.")]
            if seen
            else []
        )
        blocks: list[Block] = [*once, *lost]
        return Section("convergence", "How did training go?", tuple(blocks)) if blocks else None
    charts = _charts(run, seen)
    blocks = [Paragraph(_opening(seen)), *lost, *charts]
    return Section("convergence", "How did training go?", tuple(blocks))


def _opening(seen: Sequence[RoundRecord]) -> str:
    """Return how often the model was evaluated, and on what."""
    where = one_line(seen[-1].evaluated_on or "")
    text = f"The model was evaluated in {number_of(len(seen), 'round')}{f', on {where}' if where else ''}."
    noisy = any("charged" in (r.evaluated_on or "") for r in seen)
    return text + (" Each point has noise of its own, so small steps mean nothing." if noisy else "")


def _lost(rounds: Sequence[RoundRecord]) -> list[Block]:
    """Return which rounds released nothing, and why."""
    lost = [r for r in rounds if r.lost]
    if not lost:
        return []
    reasons: dict[str, list[int]] = {}
    for record in lost:
        reasons.setdefault(one_line(str(record.lost)), []).append(record.round)
    text = (
        f"{number_of(len(lost), 'round')} of {len(rounds):,} {'was' if len(lost) == 1 else 'were'} lost: the model did "
        "not change in them, but they are charged, since messages may have been seen."
    )
    items = [f"{why}: {_numbers(numbers)}" for why, numbers in list(reasons.items())[:LISTED]]
    if len(reasons) > LISTED:
        items.append(f"... and {number_of(len(reasons) - LISTED, 'further reason')}")
    return [Paragraph(text, "warning"), Listing(tuple(items))]


def _numbers(numbers: Sequence[int]) -> str:
    some = ", ".join(f"{n:,}" for n in numbers[:10])
    return f"round{'s' if len(numbers) > 1 else ''} {some}" + (
        f" and {len(numbers) - 10:,} more" if len(numbers) > 10 else ""
    )


# --- charts


def _charts(run: RunSources, seen: Sequence[RoundRecord]) -> list[Chart]:
    kind, names = kind_of(run), list(dict.fromkeys(name for r in seen for name in (r.metrics or {})))[:40]
    reference = _reference(run)
    out = []
    if any(r.accuracy is not None for r in seen):
        out.append(_one(run, "accuracy", curve(seen, lambda r: r.accuracy), reference))
    if any(r.loss is not None for r in seen):
        out.append(_one(run, "loss", curve(seen, lambda r: r.loss), reference))
    curves = {name: metric_curve(seen, name) for name in names}
    curves = {name: points for name, points in curves.items() if finite(points)}
    grouped: set[str] = set()
    for id, title, better in GROUPS:
        inside = {n: p for n, p in curves.items() if _between(p) and kind(n).share and kind(n).better == better}
        if len(inside) > 1:
            grouped |= set(inside)
            out.append(_several(run, id, title, inside, reference))
    rest = [n for n in curves if n not in grouped]
    out += [_one(run, name, curves[name], reference) for name in rest[:OTHERS]]
    return [chart for chart in out if chart is not None]


def metric_curve(seen: Sequence[RoundRecord], name: str) -> tuple[Point, ...]:
    """Return the curve of a metric."""
    return curve(seen, lambda r: (r.metrics or {}).get(name))


def _between(points: Sequence[Point]) -> bool:
    return all(0 <= y <= 1 for _, y in finite(points))


def _one(run: RunSources, name: str, points: Sequence[Point], reference: dict[str, tuple[Point, ...]]) -> Chart | None:
    """Return the chart of one metric; None if no value of it is known."""
    if not finite(points):
        return None
    about = kind_of(run)(name)
    share = about.share and _between(points)
    lines = [series(f"{about.label}, this run" if name in reference else about.label, points)]
    summary, source = trend(capital(about.label), points, share), f"{RECORDS}: {_field(name)}"
    if name in reference:
        lines.append(series("without privacy", reference[name], role="reference"))
        summary += f" Without privacy: {trend(about.label, reference[name], share)}"
        source += f"; {BASELINE}: curve"
    lines += _lost_marks(run, points)
    axis = Axis(about.label, percent=share, high=1.0 if share and max(y for _, y in finite(points)) > 0.95 else None)
    ids = "".join(c if c.isascii() and c.isalnum() else "-" for c in name)[:60]
    return Chart(
        f"convergence-{ids}", "lines", f"{capital(about.label)} by round", ROUNDS, axis, tuple(lines),
        summary=summary, source=source,
    )  # fmt: skip


def _several(
    run: RunSources, id: str, title: str, curves: dict[str, tuple[Point, ...]], reference: dict[str, Any]
) -> Chart:
    """Return a chart of several metrics between 0 and 1."""
    kind = kind_of(run)
    lines = tuple(series(kind(n).label, points) for n, points in curves.items())
    summary = " ".join(trend(capital(kind(n).label), points, share=True, brief=True) for n, points in curves.items())
    axis = Axis("share", percent=True)
    return Chart(id, "lines", title, ROUNDS, axis, lines, summary=summary, source=f"{RECORDS}: metrics")


def _field(name: str) -> str:
    return name if name in ("accuracy", "loss") else f"metrics.{name}"


def _lost_marks(run: RunSources, points: Sequence[Point]) -> list[ChartSeries]:
    """Return marks on the curve where rounds were lost."""
    lost = {float(r.round) for r in run.records.rounds if r.lost}
    at = [p for p in finite(points) if p[0] in lost]
    return [marks("lost rounds", at)] if at else []


def _reference(run: RunSources) -> dict[str, tuple[Point, ...]]:
    """Return the curves of the run without privacy by metric; columns that do not fit their rounds are left out."""
    held = run.baseline.part("curve")
    columns = {name: held.data.get(name) for name in ("accuracy", "loss")} | dict(held.part("metrics").data or {})
    rounds = held.data.get("round") if held else None
    if not isinstance(rounds, list) or not all(is_number(r) for r in rounds):
        return {}
    out = {}
    for name, values in columns.items():
        if isinstance(values, list) and len(values) == len(rounds):
            points = tuple((float(r), real(v)) for r, v in zip(rounds, values, strict=True) if v is not None)
            if finite(points):
                out[str(name)] = points
    return out
