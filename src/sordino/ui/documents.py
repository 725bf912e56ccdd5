"""Reports as documents for the page: of one run, and of a comparison; each is made anew only if a file has changed."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from sordino.core.parts import PRIVATE
from sordino.report.chart import Chart
from sordino.report.chart_numbers import compact
from sordino.report.document import Document, Section
from sordino.report.reading import Audience, read_run
from sordino.ui.shelf import CELLS, Shelved, mark

KEPT = 24  # documents
POINTS = 800  # of a line
FILES = 4000  # of a folder whose times are compared
NO_PRIVATE_PART = (
    "This folder has no private part, as a copy has none, so what follows is the public report although the view was "
    "started for the owner."
)


class Documents:
    """The documents that were made last."""

    def __init__(self, audience: Audience) -> None:
        self.audience = audience
        self._lock = threading.Lock()  # one report at a time: whoever watches a run must not slow it down
        self._kept: OrderedDict[str, tuple[Any, dict[str, Any]]] = OrderedDict()

    def of(self, item: Shelved) -> dict[str, Any]:
        """Return the report of a run or a comparison as JSON."""
        make = self._comparison if item.kind == "comparison" else self._run
        return self.kept(f"{item.kind} {item.id}", _mark(item.path), lambda: make(item.path))

    def kept(self, key: str, seen: Any, make: Callable[[], Document]) -> dict[str, Any]:
        """Return a document as JSON: the one that was made for what was seen, or a new one."""
        with self._lock:
            known = self._kept.pop(key, None)
            if known is None or known[0] != seen:
                known = (seen, as_json(make()))
            self._kept[key] = known
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        return known[1]

    def _run(self, path: Path) -> Document:
        from sordino.report.run.report import document

        audience, told = self.audience, False
        if audience == "owner" and not (path / PRIVATE).is_dir():
            audience, told = "public", True
        made = document(read_run(path, audience))
        return replace(made, damage=(NO_PRIVATE_PART, *made.damage)) if told else made

    def _comparison(self, path: Path) -> Document:
        from sordino.report.comparison import document

        return document(path)


def as_json(document: Document) -> dict[str, Any]:
    """Return a document as JSON, with its lines thinned for a screen."""
    sections = tuple(_thinned(section) for section in document.sections)
    return replace(document, sections=sections).to_json()


def _thinned(section: Section) -> Section:
    blocks = tuple(compact(b, POINTS) if isinstance(b, Chart) else b for b in section.blocks)
    return replace(section, blocks=blocks)


def _mark(folder: Path) -> tuple[Any, ...]:
    """Return the times and sizes of the files that a report may read; it differs once one of them changes."""
    seen = []
    for part in ("", "public", PRIVATE, f"{PRIVATE}/attacks", CELLS):
        seen += _times(folder / part)
    for cell in _names(folder / CELLS):
        seen += _times(folder / CELLS / cell / "public")
        if len(seen) > FILES:
            break
    return tuple(seen)


def _names(folder: Path) -> list[str]:
    try:
        return sorted(entry.name for entry in folder.iterdir())
    except OSError:
        return []


def _times(folder: Path) -> list[Any]:
    return [(name, mark(folder / name)) for name in _names(folder)]
