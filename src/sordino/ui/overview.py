"""The list of runs: one line for each, read from the plan, the result and the end of the records, and kept until one
of these files changes."""

from __future__ import annotations

import os
import threading
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sordino.core.errors import RunError
from sordino.core.record import RoundRecord
from sordino.report.growing import DAMAGE, opened, public_record
from sordino.report.reading import State, harmless, held, mapping_at, number_at, object_in, text_at, text_in
from sordino.ui.shelf import Shelf, Shelved, mark

END = 64 * 2**10  # bytes at the end of the records that are looked at first; more if the last line is longer
MOST = 64 * 2**20
PAGE, LARGEST_PAGE = 25, 100
LONGEST = 200  # letters of a name that are shown
FILES = ("plan.json", "result.json", "records.jsonl", "audit.json")
COLUMNS = ("name", "state", "method", "data", "epsilon", "accuracy", "rounds", "changed")


@dataclass(frozen=True)
class RunLine:
    """What the list says about a run; None where the records do not say it."""

    id: str
    kind: str
    name: str
    place: str
    changed: float
    state: State | str = "unknown"
    method: str = ""
    data: str = ""
    epsilon: float | None = None  # spent so far, against the viewer of the guarantee
    total: float | None = None
    unbounded: bool = False  # whether there is no guarantee: epsilon is infinite
    delta: float | None = None
    unit: str = ""
    relation: str = ""
    viewer: str = ""
    accuracy: float | None = None
    rounds: int | None = None
    planned: int | None = None
    damaged: bool = False


class Overview:
    """The lines of all runs."""

    def __init__(self, shelf: Shelf) -> None:
        self.shelf = shelf
        self._lock = threading.Lock()
        self._lines: dict[str, tuple[tuple[Any, ...], RunLine]] = {}

    def line(self, item: Shelved) -> RunLine:
        """Return the line of a run, read anew if one of its files has changed."""
        if item.kind == "comparison":
            return RunLine(item.id, item.kind, item.name, item.place, item.changed, "")
        seen = (item, *(mark(item.public / name) for name in FILES))
        with self._lock:
            known = self._lines.get(item.id)
        if known is not None and known[0] == seen and known[1].state == "finished":
            return known[1]
        line = _line(item)
        with self._lock:
            self._lines[item.id] = (seen, line)
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
        value = getattr(line, column)
        return value.casefold() or None if isinstance(value, str) else value

    return key


def _has(line: RunLine, words: list[str]) -> bool:
    text = " ".join((line.name, line.place, line.method, line.data, line.state, line.kind)).casefold()
    return all(word in text for word in words)


def _line(item: Shelved) -> RunLine:
    public, damage = item.public, list[str]()
    locked = held(item.path)  # before the result is read: a run that ends in between has written it
    plan, result = object_in(public / "plan.json", public, damage), object_in(public / "result.json", public, damage)
    state = state_of(locked, bool(result))
    spec = _spec(public, damage)
    last, torn = last_record(public)
    promise = mapping_at(result, "guarantee") or mapping_at(plan, "promise")
    total, rounds, planned = number_at(promise, "epsilon"), number_at(result, "rounds"), number_at(spec, "rounds")
    viewer, unbounded = text_at(promise, "viewer"), promise.get("infinite") is True
    spent = total if state == "finished" else None
    accuracy = number_at(result, "accuracy")
    if last is not None:
        rounds = last.round if rounds is None else rounds
        accuracy = last.accuracy if accuracy is None else accuracy
        spent = last.epsilon.get(viewer) if spent is None else spent
    cut = state == "finished" and (last is None or last.round < (rounds or 0))
    return RunLine(
        item.id, item.kind, item.name, item.place, item.changed, state,
        short(text_at(plan, "method") or text_at(spec, "method")), short(text_at(spec, "dataset")),
        spent, total, unbounded, number_at(promise, "delta"),
        short(text_at(promise, "unit")), short(text_at(promise, "relation")), short(viewer),
        accuracy, _whole(rounds), _whole(planned), damaged=bool(damage) or torn or cut,
    )  # fmt: skip


def state_of(locked: bool | None, finished: bool) -> State:
    """Return the state of a run, given whether a process holds its lock and whether it has a result."""
    if finished:
        return "finished"
    return "unknown" if locked is None else "running" if locked else "stopped"


def _spec(public: Path, damage: list[str]) -> dict[str, Any]:
    try:
        return tomllib.loads(text_in(public / "spec.toml", public, damage))
    except (ValueError, RecursionError) as error:
        damage.append(f"public/spec.toml is damaged ({harmless(str(error))[:120]}).")
        return {}


def short(text: str) -> str:
    """Return a text of a record as the list shows it."""
    return harmless(text[:LONGEST])


def _whole(value: float | None) -> int | None:
    return int(value) if value is not None and 0 <= value < 2**53 else None


def last_record(public: Path) -> tuple[RoundRecord | None, bool]:
    """Return the last whole line of the records of a run, and whether it is damaged."""
    try:
        with opened(public / "records.jsonl", public) as file:
            size, length = os.fstat(file.fileno()).st_size, END
            while True:
                file.seek(max(0, size - length))
                lines = file.read(length).split(b"\n")
                whole = lines[:-1] if length >= size else lines[1:-1]
                if whole or length >= min(size, MOST):
                    break
                length *= 8
    except OSError:
        return None, False
    try:
        return (public_record(whole[-1]), False) if whole else (None, False)
    except DAMAGE:
        return None, True
