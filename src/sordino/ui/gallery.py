"""The attack gallery: what `sordino attack` found on the runs, with its pictures. It is for the owner alone."""

from __future__ import annotations

import base64
import math
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from sordino.core.errors import RunError
from sordino.core.parts import PRIVATE
from sordino.report.document import Block, DataTable, Document, Paragraph, PictureFile, Section
from sordino.report.growing import opened
from sordino.report.reading import Audience, list_at, number_at, object_in, text_at
from sordino.report.run.words import figures, percent
from sordino.ui.overview import short
from sordino.ui.shelf import Shelf, Shelved

FOLDER = "attacks"
PAGE = 8  # runs on a page
MOST = 24  # attacks of a run, pictures of an attack
LARGEST = 4 * 2**20  # bytes of a picture
PNG = b"\x89PNG\r\n\x1a\n"
CLOSED = (
    "What attacks found is for the owner of the data: it tells of single records. Start the view with "
    "`sordino ui --for owner` on the machine where the runs took place."
)
NOTHING = "No run in these folders was attacked yet. `sordino attack RUN --attack loss-threshold` attacks one."


def attacked(shelf: Shelf) -> list[Shelved]:
    """Return the runs that were attacked, the newest first."""
    found = [item for item in shelf.items() if item.kind == "run" and any(True for _ in _files(item.path, ".json"))]
    return sorted(found, key=lambda item: (-item.changed, item.name))


def document(shelf: Shelf, audience: Audience, page: int) -> tuple[Document, int, int]:
    """Return a page of the gallery, its number and how many pages there are."""
    if audience != "owner":
        return Document("Attacks", "", audience, (Section("closed", "For the owner", (Paragraph(CLOSED),)),)), 1, 1
    runs = attacked(shelf)
    pages = max(1, -(-len(runs) // PAGE))
    page = min(max(page, 1), pages)
    damage: list[str] = []
    sections = [
        Section(item.id, item.name, tuple(_of_run(item, damage))) for item in runs[(page - 1) * PAGE : page * PAGE]
    ]
    if not runs:
        sections = [Section("nothing", "Nothing yet", (Paragraph(NOTHING),))]
    return Document("Attacks", "", audience, tuple(sections), tuple(damage)), page, pages


def _files(run: Path, ending: str) -> Iterator[str]:
    try:
        with os.scandir(run / PRIVATE / FOLDER) as entries:
            names = sorted(entry.name for entry in entries if entry.name.endswith(ending))
    except OSError:
        return
    yield from names


def _of_run(item: Shelved, damage: list[str]) -> Iterator[Block]:
    root, pictures = item.path / PRIVATE, list(_files(item.path, ".png"))
    stems = [name.removesuffix(".json") for name in _files(item.path, ".json")]
    for stem in stems[:MOST]:
        found = object_in(root / FOLDER / f"{stem}.json", root, damage)
        if not found:
            continue
        viewer = short(text_at(found, "view")) or "attacker"
        title = f"{short(text_at(found, 'attack')) or short(stem)}, seen by the {viewer}"
        yield Paragraph(short_text(text_at(found, "sentence")) or "This attack left no sentence.", "lead")
        for key, tone in (("warning", "warning"), ("limit", "plain"), ("note", "quiet")):
            if text := short_text(text_at(found, key)):
                yield Paragraph(text, tone)  # type: ignore[arg-type]
        rows = list(_rows(list_at(found, "figures"), list_at(found, "twin")))
        source = f"{PRIVATE}/{FOLDER}/{short(stem)}.json"
        if rows:
            header = ("figure", "with privacy", "without privacy", "guessing")
            yield DataTable(title, header, tuple(rows), source=source)
        longer = [other for other in stems if other != stem and other.startswith(stem)]
        for name in [p for p in pictures if p.startswith(stem) and not any(p.startswith(o) for o in longer)][:MOST]:
            if (png := _picture(root, name, damage)) is not None:
                yield PictureFile(
                    title, png, f"Picture of the attack {short(stem)}.", f"{PRIVATE}/{FOLDER}/{short(name)}"
                )


def short_text(text: str) -> str:
    """Return a sentence of a record on one line, no longer than a page can show."""
    return " ".join(short(part) for part in text[:2000].split()) if text else ""


def _rows(measured: Sequence[Any], twin: Sequence[Any]) -> Iterator[tuple[str, ...]]:
    beside = {text_at(f, "metric"): f for f in twin}
    for figure in measured:
        if name := text_at(figure, "metric"):
            other = beside.get(name, {})
            yield short(name), _told(figure), _told(other), _value(number_at(figure, "chance"), text_at(figure, "unit"))


def _told(figure: Any) -> str:
    unit = text_at(figure, "unit")
    value, low, high = (_value(number_at(figure, key), unit) for key in ("value", "low", "high"))
    return f"{value} ({low} to {high})" if value and low and high else value


def _value(value: float | None, unit: str) -> str:
    if value is None or not math.isfinite(value):
        return ""
    return percent(value) if unit == "share" and 0 <= value <= 1 else figures(value)


def _picture(root: Path, name: str, damage: list[str]) -> str | None:
    where = f"{PRIVATE}/{FOLDER}/{short(name)}"
    try:
        with opened(root / FOLDER / name, root) as file:
            data = file.read(LARGEST + 1)
    except OSError as error:
        damage.append(f"{where} cannot be read ({error.strerror or error}).")
        return None
    if len(data) > LARGEST or not data.startswith(PNG):
        damage.append(f"{where} is not a picture of an attack, or it is too large.")
        return None
    return base64.b64encode(data).decode()


def of_run(item: Shelved, audience: Audience) -> Document:
    """Return the attacks on one run."""
    if audience != "owner":
        raise RunError(CLOSED)
    damage: list[str] = []
    blocks = tuple(_of_run(item, damage)) or (Paragraph(NOTHING),)
    return Document(item.name, "", audience, (Section("attacks", "Attacks", blocks),), tuple(damage))
