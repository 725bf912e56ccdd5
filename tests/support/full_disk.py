"""A disk that is full for some files: SQLite and plain writes fail there as they do on a real one."""

from __future__ import annotations

import errno
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest


class FullDisk:
    """Lets writes fail with ENOSPC in some files, in SQLite at statements that begin with `stage`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.places: tuple[str, ...] | None = None  # parts of the path
        self.stage = ""
        self.hits = 0
        disk, connect, opened = self, sqlite3.connect, Path.open

        class Connection(sqlite3.Connection):
            where = ""

            def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
                if disk.full(self.where) and sql.lstrip().startswith(disk.stage):
                    disk.hits += 1
                    raise sqlite3.OperationalError("database or disk is full")
                return super().execute(sql, *values)

            def executemany(self, sql: str, *values: Any) -> sqlite3.Cursor:
                if disk.full(self.where) and sql.lstrip().startswith(disk.stage):
                    disk.hits += 1
                    raise sqlite3.OperationalError("database or disk is full")
                return super().executemany(sql, *values)

        def connected(path: Any, *words: Any, **options: Any) -> sqlite3.Connection:
            made = connect(path, *words, **{"factory": Connection} | options)
            if isinstance(made, Connection):
                made.where = str(path)
            return made

        def plain(path: Path, mode: str = "r", *words: Any, **options: Any) -> Any:
            if disk.full(str(path)) and set(mode) & set("wax+"):
                disk.hits += 1
                raise OSError(errno.ENOSPC, "No space left on device", str(path))
            return opened(path, mode, *words, **options)

        monkeypatch.setattr(sqlite3, "connect", connected)
        monkeypatch.setattr(Path, "open", plain)

    def full(self, path: str) -> bool:
        return self.places is not None and all(part in path for part in self.places)

    @contextmanager
    def at(self, place: str, stage: str = "", file: str = "") -> Iterator[None]:
        """Be full within the block for a file at a place; something must be written there."""
        self.places, self.stage, self.hits = (place, file), stage, 0
        try:
            yield
        finally:
            self.places = None
        assert self.hits, f"nothing was written to {place}{file}"
