"""For the owner: what attacks on this run found, beside what its guarantee allows."""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence

from sordino.report.chart import Axis, Chart, ChartSeries, Point
from sordino.report.document import Block, DataTable, Paragraph, PictureFile, Section
from sordino.report.growing import opened
from sordino.report.run.fields import Fields, RunSources, is_number, one_line
from sordino.report.run.pricing import AttackBound, attack_bound, priced
from sordino.report.run.promise import by_viewer, stated
from sordino.report.run.words import figures, percent, percent_up

FOLDER = "private/attacks"
MOST, PICTURES = 50, 6  # attacks and pictures that are shown
LARGEST = 400_000  # bytes of a picture
FLOOR = 1e-4  # least rate on the axes of a ROC curve
PNG = b"\x89PNG\r\n\x1a\n"
KINDS = {
    "membership": "Whether a record was trained on",
    "reconstruction": "What records look like",
    "inference": "What can be inferred of records",
}


def section(run: RunSources) -> Section | None:
    """Return the figures of all attacks, for the owner alone."""
    owner = run.records.owner
    if owner is None or not run.owners or not owner.attacks:
        return None
    found = [Fields(one_line(str(data.get("file", FOLDER))), data, run.damage) for data in owner.attacks[:MOST]]
    note = "What follows depends on private records and is covered by no epsilon: do not pass it on."
    blocks: list[Block] = [Paragraph(note, "warning")]
    blocks += [Paragraph(text) for text in _sentences(found)]
    table = _table(found)
    if table is None and len(blocks) < 2:
        return None
    blocks += [table] if table is not None else []
    for k, attack in enumerate(found):
        blocks += _roc(run, attack, k)
    blocks += _pictures(run, found)
    return Section("attacks", "What did attacks find?", tuple(blocks))


def _sentences(found: Sequence[Fields]) -> list[str]:
    out = []
    for attack in found:
        text = " ".join(filter(None, (attack.text(name) for name in ("sentence", "limit", "warning", "note"))))
        if text:
            out.append(f"{_name(attack)}: {text}")
    return out


def _name(attack: Fields) -> str:
    view = attack.text("view")
    return f"{attack.text('attack') or 'an attack'}{f' by {view}' if view else ''}"[:100]


def amount(value: float | None, unit: str) -> str:
    """Return a figure of an attack in words."""
    if value is None:
        return "-"
    return percent(value) if unit == "share" and 0 <= value <= 1 else figures(value)


def _cell(figure: Fields | None) -> str:
    """Return a figure with its interval."""
    if figure is None or (value := figure.number("value")) is None:
        return "-"
    unit, low, high = figure.text("unit"), figure.number("low"), figure.number("high")
    text = amount(value, unit)
    return text if low is None or high is None else f"{text} ({amount(low, unit)} to {amount(high, unit)})"


def _table(found: Sequence[Fields]) -> DataTable | None:
    rows: list[tuple[str, ...]] = []
    keys: list[tuple[float | str, ...]] = []
    for attack in found:
        twin = {f.text("metric"): f for f in attack.parts("twin")}
        for figure in attack.parts("figures")[:20]:
            name, kind = figure.text("metric"), attack.text("kind")
            other = twin.get(name)
            chance = amount(figure.number("chance"), figure.text("unit"))
            rows.append((_name(attack), KINDS.get(kind, kind)[:60], name[:60], _cell(figure), _cell(other), chance))
            numbers = [math.nan if f is None else f.number("value") for f in (figure, other)]
            known = [math.nan if v is None else v for v in (*numbers, figure.number("chance"))]
            keys.append((_name(attack), kind, name, *known))
    if not rows:
        return None
    head = ("attack", "what it asks", "metric", "this run", "without privacy", "by chance")
    note = "In brackets the interval that the attack states, of 95 % unless it says otherwise."
    return DataTable(
        "Figures of attacks", head, tuple(rows), tuple(keys), note=note, source=f"{FOLDER}/*.json: figures"
    )


# --- ROC curves


def _points(roc: Fields, name: str) -> tuple[Point, ...]:
    """Return a ROC curve as (false alarms, share found), without the points below the least rate that is drawn."""
    pair = roc.data.get(name) if isinstance(roc.data, dict) else None
    if not isinstance(pair, list) or len(pair) != 2 or not all(isinstance(v, list) for v in pair):
        return ()
    false, true = pair
    if len(false) != len(true) or not 2 <= len(false) <= 10_000:
        return ()
    if not all(is_number(v) and 0 <= v <= 1 for v in (*false, *true)):
        return ()
    return tuple((float(x), float(y)) for x, y in zip(false, true, strict=True) if x >= FLOOR and y >= FLOOR)


def _roc(run: RunSources, attack: Fields, k: int) -> list[Block]:
    """Return the ROC curve of a membership attack, beside guessing and what the guarantee allows."""
    roc = attack.part("roc")
    curves = {name: points for name in ("this run", "without privacy") if (points := _points(roc, name))}
    if "this run" not in curves:
        return []
    low = min(x for points in curves.values() for x, _ in points)
    grid = [low * (1 / low) ** (i / 99) for i in range(100)] if low < 1 else [1.0]
    lines = [ChartSeries(name, points) for name, points in curves.items()]
    lines.append(ChartSeries("guessing", tuple((x, x) for x in grid), role="reference"))
    summary = f"{_name(attack)}: " + _at_one_percent(curves)
    bound = _bound(run, attack.text("view"))
    if bound is not None:
        above = any(y > bound.found(x) + 1e-9 for x, y in curves["this run"])
        lines.append(
            ChartSeries("most that the guarantee allows", tuple((x, bound.found(x)) for x in grid), role="limit")
        )
        summary += f" The guarantee allows at most {percent_up(bound.found(max(0.01, low)))} there."
        if above and not attack.text("warning"):
            summary += " Where the curve lies above that, it may do so by chance: too few records were tried to tell."
    return [
        Chart(
            f"attacks-roc-{k + 1}", "lines", f"Records found for false alarms: {_name(attack)}",
            Axis("share of other records that raise a false alarm", "log", percent=True),
            Axis("share of training records that are found", "log", percent=True), tuple(lines), summary=summary,
            source=f"{attack.file}: roc",
        )
    ]  # fmt: skip


def _at_one_percent(curves: dict[str, tuple[Point, ...]]) -> str:
    rate = max(0.01, min(x for x, _ in curves["this run"]))
    found = {name: max((y for x, y in points if x <= rate), default=0.0) for name, points in curves.items()}
    text = f"at {percent(rate)} false alarms it finds {percent(found['this run'])} of the training records"
    if "without privacy" in found:
        text += f", {percent(found['without privacy'])} without privacy"
    return f"{text}."


def _bound(run: RunSources, view: str) -> AttackBound | None:
    """Return what the guarantee for a record allows whoever has this view; None if there is no such guarantee."""
    main, where = stated(run)
    known = by_viewer(run)
    guarantee = known.get(view) or main
    if guarantee is None or guarantee.unit != "record" or math.isinf(guarantee.epsilon):
        return None
    return attack_bound(guarantee, priced(run, guarantee), where)


# --- pictures


def _pictures(run: RunSources, found: Sequence[Fields]) -> list[Block]:
    """Return the pictures that reconstructions were written as, beside their originals."""
    out: list[Block] = []
    for attack in found:
        name = attack.file.rpartition("/")[2].removesuffix(".json")
        if attack.text("kind") != "reconstruction" or not name or len(out) == PICTURES:
            continue
        path = run.records.path / FOLDER / f"{name}.png"
        try:
            with opened(path, run.records.path / FOLDER) as file:
                data = file.read(LARGEST + 1)
        except (OSError, ValueError):
            continue
        if data.startswith(PNG) and len(data) <= LARGEST:
            text = f"Originals in the first row, and what {_name(attack)} made of what was seen below them."
            source = f"{FOLDER}/{name}.png"
            out.append(PictureFile(f"Reconstructions: {_name(attack)}", base64.b64encode(data).decode(), text, source))
    return out
