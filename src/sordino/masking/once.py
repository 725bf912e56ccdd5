"""A durable register of answers: each name is claimed once, for one value, also across restarts.

A client that answered a step of a round must not answer it again with something else, even if its process died or its
state was put back to an earlier copy, and a shuffler must not mix a second batch. Both claim a name here before
anything leaves them.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from contextlib import closing
from pathlib import Path

from sordino.masking.errors import MaskingError, RegisterError

SECONDS = 10.0  # how long another process may hold the file


class Once:
    """Names that were claimed, each with the one value it stands for."""

    def __init__(self, path: Path | None = None) -> None:
        """Open the register in a file, or in memory if there is no path: for simulations within one process."""
        self._path = path
        self._values: dict[str, bytes] = {}
        self._lock = threading.Lock()
        if path is not None:
            try:
                os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
                with closing(self._opened()) as file:
                    file.execute("CREATE TABLE IF NOT EXISTS claims (name TEXT PRIMARY KEY, value BLOB NOT NULL)")
            except (OSError, sqlite3.Error) as error:
                raise RegisterError(f"cannot use {path} as a register of answers: {error}.") from error

    def claim(self, name: str, value: bytes, again: bool = True) -> None:
        """Claim a name for a value, durably, or raise an error if it stands for another value.

        Args:
            name: what happens once.
            value: what it stands for.
            again: whether the same name may be claimed again for the same value.
        """
        with self._lock:
            found = self._stored(name, value)
        if found is not None and not (again and found == value):
            raise MaskingError("this was answered before, and is not answered twice.")

    def _stored(self, name: str, value: bytes) -> bytes | None:
        """Store the value if the name is new, and return the value it had before."""
        if self._path is None:
            found = self._values.get(name)
            self._values.setdefault(name, value)
            return found
        try:
            with closing(self._opened()) as file:
                file.execute("BEGIN IMMEDIATE")
                row = file.execute("SELECT value FROM claims WHERE name = ?", (name,)).fetchone()
                if row is None:
                    file.execute("INSERT INTO claims VALUES (?, ?)", (name, value))
                file.execute("COMMIT")
        except sqlite3.Error as error:
            raise RegisterError(f"the register of answers {self._path} cannot be written: {error}.") from error
        return None if row is None else bytes(row[0])

    def _opened(self) -> sqlite3.Connection:
        file = sqlite3.connect(f"file:{self._path}?mode=rw", timeout=SECONDS, isolation_level=None, uri=True)
        file.execute("PRAGMA synchronous = EXTRA")
        return file
