"""The runs, comparisons and federations in the folders that a person named, found anew while they are shown.

A client of the server names a run by its id and never by a path, so it can reach nothing else.
"""

from __future__ import annotations

import hashlib
import os
import stat
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from sordino.core.errors import RunError
from sordino.core.parts import PRIVATE, PUBLIC
from sordino.report.reading import harmless

EVERY = 1.0  # seconds between two looks at the folders
CELLS, ROSTER = "cells", "federation.toml"
LATEST = 253_402_300_799.0  # seconds since 1970: the end of the year 9999, the last that a browser shows as a date
PLANS = (f"{PUBLIC}/plan.json", "plan.json")
RECORDS = (f"{PUBLIC}/records.jsonl", "records.jsonl")


@dataclass(frozen=True)
class Shelved:
    """A run or a comparison in one of the folders."""

    id: str
    kind: Literal["run", "comparison"]
    path: Path
    name: str
    place: str  # the folder it was found in
    changed: float  # seconds since 1970 at which something was last written

    @property
    def public(self) -> Path:
        """The folder with the public files."""
        return self.path / PUBLIC if os.path.isfile(self.path / PLANS[0]) else self.path  # noqa: PTH113


class Shelf:
    """What lies in the folders now."""

    def __init__(self, folders: Iterable[Path]) -> None:
        """Look at the folders.

        Raises:
            RunError: if one of them is not there, or has something else in it than runs.
        """
        self.folders = tuple(_whole(Path(os.path.abspath(f))) for f in folders)  # noqa: PTH100 (resolve() follows links)
        for folder in self.folders:
            _check(folder)
        self.federations = tuple(f for f in self.folders if _is_federation(f))
        self._lock = threading.Lock()
        self._looked = -EVERY
        self._items: dict[str, Shelved] = {}
        self._cells: dict[str, Shelved] = {}

    def items(self) -> list[Shelved]:
        """Return all runs and comparisons, but not the runs inside comparisons."""
        with self._lock:
            if time.monotonic() - self._looked >= EVERY:
                found = (item for folder in self.folders for item in _inside(folder))
                self._items = {item.id: item for item in found}
                self._looked = time.monotonic()
            return list(self._items.values())

    def missing(self) -> list[str]:
        """Return a sentence for every folder that is gone."""
        gone = [f for f in self.folders if not f.is_dir()]
        return [f"The folder {harmless(str(f))} is no longer there." for f in gone]

    def item(self, id: str) -> Shelved:
        """Return the run or comparison with this id.

        Raises:
            RunError: if there is none, or no longer one.
        """
        found = next((i for i in self.items() if i.id == id), None) or self._cells.get(id)
        if found is None:
            for item in self.items():
                self.cells(item)
            found = self._cells.get(id)
        if found is None:
            raise RunError("there is no such run in the folders that are shown: it was removed, or another was meant.")
        if not found.path.is_dir():
            raise RunError(f"the folder {harmless(str(found.path))} is no longer there.")
        return found

    def cells(self, comparison: Shelved) -> list[Shelved]:
        """Return the runs of a comparison."""
        if comparison.kind != "comparison":
            return []
        place = f"{comparison.name}/{CELLS}"
        found = sorted(_children(comparison.path / CELLS, place), key=lambda item: item.name)
        self._cells.update((item.id, item) for item in found)
        return found


def _whole(folder: Path) -> Path:
    """Return the run whose public part a folder is, so that it is known whether the run goes on; else the folder."""
    return folder.parent if folder.name == PUBLIC and (folder.parent / PRIVATE).is_dir() else folder


def _check(folder: Path) -> None:
    shown = harmless(str(folder))
    try:
        entries = [entry.name for entry in folder.iterdir()]
    except FileNotFoundError as error:
        raise RunError(
            f"there is no folder {shown}. Name the folder that holds your runs, such as runs, or make a first run with "
            "`sordino run`."
        ) from error
    except NotADirectoryError as error:
        raise RunError(f"{shown} is a file. Name the folder that holds your runs, such as runs.") from error
    except OSError as error:
        raise RunError(f"the folder {shown} cannot be read ({error.strerror}).") from error
    if not os.access(folder, os.X_OK):
        raise RunError(f"the folder {shown} cannot be read (it may be listed, and not entered).")
    if entries and not _is_federation(folder) and not any(True for _ in _inside(folder)):
        raise RunError(
            f"{shown} holds no runs: of its {len(entries)} entries none is the folder of a run, a comparison or a "
            "federation. Name the folder that holds your runs, such as runs."
        )


def _is_federation(folder: Path) -> bool:
    return os.path.isfile(folder / ROSTER)  # noqa: PTH113 (never raises)


def _inside(folder: Path) -> Iterator[Shelved]:
    """Yield what one of the named folders holds: itself, if it is a run or a comparison, else what lies in it."""
    whole = _shelved(folder, harmless(str(folder.parent)))
    if whole is not None:
        yield whole
        return
    yield from _children(folder / "server" / "runs" if _is_federation(folder) else folder, harmless(folder.name))


def _children(folder: Path, place: str) -> Iterator[Shelved]:
    try:
        with os.scandir(folder) as entries:
            names = [e.name for e in entries if not e.name.startswith(".") and not _leads_out(folder / e.name)]
    except OSError:
        return
    for name in names:
        if (found := _shelved(folder / name, place)) is not None:
            yield found


def _leads_out(path: Path) -> bool:
    """Return whether a path is a link out of its folder; it is not followed, as the folder may be a stranger's."""
    return os.path.islink(path) and not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(path.parent))  # noqa: PTH114 (never raises)


def _shelved(path: Path, place: str) -> Shelved | None:
    if _leads_out(path / PUBLIC) or _leads_out(path / CELLS):
        return None
    kind: Literal["run", "comparison"] = "run"
    times = [t for plan in PLANS if (t := _written(path / plan)) is not None]
    if times:
        times += [t for file in RECORDS if (t := _written(path / file)) is not None]
    elif (t := _written(path / CELLS, stat.S_ISDIR)) is not None:
        kind, times = "comparison", [t]
        if (table := _written(path / PUBLIC / "results.csv")) is not None:
            times.append(table)
    else:
        return None
    copied = path.name == PUBLIC
    name = path.parent.name if copied else path.name
    key = hashlib.blake2b(os.fsencode(path), digest_size=9).hexdigest()
    return Shelved(key, kind, path, harmless(name), place, min(max(times), LATEST))


def mark(path: Path) -> tuple[int, ...]:
    """Return what differs once a file has changed; () if there is none."""
    try:
        found = path.stat()
    except (OSError, ValueError):
        return ()
    return found.st_ino, found.st_size, found.st_mtime_ns


def _written(path: Path, is_kind: Callable[[int], bool] = stat.S_ISREG) -> float | None:
    """Return when a plain file, or what `is_kind` asks for, was last written to; None if there is none."""
    try:
        found = path.stat()
    except (OSError, ValueError):
        return None
    return found.st_mtime if is_kind(found.st_mode) else None
