"""The list of runs: one line for each, read from the plan, the result and the end of the records, and kept until one
of these files changes."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sordino.core.errors import RunError
from sordino.report.live import LiveRow, LiveRun
from sordino.report.reading import harmless
from sordino.ui.shelf import Shelf, Shelved, mark

PAGE, LARGEST_PAGE = 25, 100
LONGEST = 200  # letters of a name that are shown
FILES = ("plan.json", "result.json", "records.jsonl", "spec.toml")
COLUMNS = ("name", "state", "method", "data", "epsilon", "score", "rounds", "changed")
SCORES = {"accuracy": "accuracy", "rmse": "RMSE", "mae": "mean absolute error", "loss": "loss"}


@dataclass(frozen=True)
class RunLine:
    """What the list says about a run; None where the records do not say it."""

    id: str
    kind: str
    name: str
    place: str
    changed: float
    state: str = "unknown"
    method: str = ""
    data: str = ""
    epsilon: float | None = None  # spent so far, against the viewer of the guarantee
    total: float | None = None
    unbounded: bool = False  # whether there is no guarantee: epsilon is infinite
    delta: float | None = None
    unit: str = ""
    relation: str = ""
    viewer: str = ""
    measure: str = ""  # what the score is: one of SCORES
    score: float | None = None
    rounds: int | None = None
    planned: int | None = None
    damaged: bool = False


class Overview:
    """The lines of all runs."""

    def __init__(self, shelf: Shelf) -> None:
        self.shelf = shelf
        self._lock = threading.Lock()
        self._lines: dict[str, tuple[tuple[Any, ...], RunLine]] = {}
        self._runs: dict[str, LiveRun] = {}  # those that have not finished

    def line(self, item: Shelved) -> RunLine:
        """Return the line of a run, read anew if one of its files has changed."""
        if item.kind == "comparison":
            return RunLine(item.id, item.kind, item.name, item.place, item.changed, "")
        seen = (item, *(mark(item.public / name) for name in FILES))
        with self._lock:
            known = self._lines.get(item.id)
            if known is not None and known[0] == seen and known[1].state == "finished":
                return known[1]
            run = self._runs.pop(item.id, None) or LiveRun(item.path)
            run.look()
            run.glance()
            line = line_of(item, run.row())
            self._lines[item.id] = (seen, line)
            if line.state != "finished":
                self._runs[item.id] = run
        return line

    def page(self, page: int, size: int, sort: str, find: str) -> dict[str, Any]:
        """Return one page of the list.

        Args:
            page: its number, from 1; a number behind the last page is taken as the last.
            size: runs on a page.
            sort: one of COLUMNS, with a minus for the largest first.
            find: words, all of which a run's name, folder, method, data or state must contain.
        """
        items, words = self.shelf.items(), find.casefold().split()
        down, column = sort.startswith("-"), sort.removeprefix("-")
        if column not in COLUMNS:
            raise RunError(f"the list cannot be sorted by {harmless(column)[:40]!r}.")
        size = min(max(size, 1), LARGEST_PAGE)
        quick = not words and column in ("name", "changed")  # nothing needs to be read for it
        lines: Sequence[Any] = items if quick else [self.line(item) for item in items]
        if words:
            lines = [line for line in lines if _has(line, words)]
        lines = _ordered(lines, _key(column), down)
        pages = max(1, -(-len(lines) // size))
        page = min(max(page, 1), pages)
        shown = lines[(page - 1) * size : page * size]
        rows = [asdict(self.line(r) if isinstance(r, Shelved) else r) for r in shown]
        return {
            "rows": rows, "page": page, "pages": pages, "found": len(lines), "all": len(items), "sort": sort,
            "missing": self.shelf.missing(),
        }  # fmt: skip


def _ordered(lines: Sequence[Any], key: Callable[[Any], Any], down: bool) -> list[Any]:
    """Return the lines in order; those without a value come last either way, and equal ones are sorted by name."""
    named = sorted(lines, key=lambda line: line.name)
    known = [line for line in named if key(line) is not None]
    return sorted(known, key=key, reverse=down) + [line for line in named if key(line) is None]


def _key(column: str) -> Callable[[Any], Any]:
    def key(line: Any) -> Any:
        if column == "score":  # errors have other scales
            return line.score if line.measure == "accuracy" else None
        value = getattr(line, column)
        return value.casefold() or None if isinstance(value, str) else value

    return key


def _has(line: RunLine, words: list[str]) -> bool:
    text = " ".join((line.name, line.place, line.method, line.data, line.state, line.kind)).casefold()
    return all(word in text for word in words)


def line_of(item: Shelved, row: LiveRow) -> RunLine:
    """Return the line of a run of which this is known."""
    unbounded = row.total == math.inf
    return RunLine(
        item.id, item.kind, item.name, item.place, item.changed, row.state, row.method, row.data,
        None if unbounded else row.epsilon, None if unbounded else row.total, unbounded, row.delta,
        row.unit, row.relation, row.viewer, row.measure, row.value, row.round or None, row.planned or None,
        damaged=bool(row.damage),
    )  # fmt: skip


def short(text: str) -> str:
    """Return a text of a record as the list shows it."""
    return harmless(text[:LONGEST])
