"""What a site has answered: every request of a job is answered once, and the answer is on disk before it leaves.

A request that is repeated word for word gets the very same answer, which is no further release: so a reply that was
lost on the way costs nothing. Any other request for the same place in a job is refused.
"""

from __future__ import annotations

import contextlib
import hashlib
import sqlite3
from pathlib import Path
from typing import Any

from sordino.core.errors import RunError
from sordino.deploy.refusal import Refusal


class Answers:
    """The answers of a site to one job, in a file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._file = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        except sqlite3.Error as error:
            raise RunError(f"cannot use {path}: {error}.") from error
        try:
            self._file.execute("PRAGMA synchronous = FULL")
            self._file.execute(
                "CREATE TABLE IF NOT EXISTS answers "
                "(place TEXT PRIMARY KEY, round INTEGER, request BLOB, reply BLOB) WITHOUT ROWID"
            )
        except sqlite3.Error as error:
            self._file.close()
            raise RunError(f"cannot use {path}: {error}.") from error

    def before(self, place: str, request: bytes) -> bytes | None:
        """Return the answer to a request that was answered before, or None if this place is still free.

        Raises:
            Refusal: if another request was answered at this place, or the answer is no longer kept.
        """
        row = self._row("SELECT request, reply FROM answers WHERE place = ?", place)
        if row is None:
            return None
        if row[0] != _digest(request):
            raise Refusal(f"{place} of this job was answered already, to another request.")
        if row[1] is None:
            raise Refusal(f"{place} of this job was answered already, and later rounds too.")
        return bytes(row[1])

    def keep(self, place: str, round: int, request: bytes, reply: bytes) -> None:
        """Write an answer to disk; what was answered in earlier rounds is forgotten, that it was answered is not."""
        try:
            self._file.execute("BEGIN IMMEDIATE")
            self._file.execute("UPDATE answers SET reply = NULL WHERE round < ?", (round,))
            row = (place, round, _digest(request), reply)
            self._file.execute("INSERT INTO answers VALUES (?, ?, ?, ?)", row)
            self._file.execute("COMMIT")
        except sqlite3.Error as error:
            with contextlib.suppress(sqlite3.Error):
                if self._file.in_transaction:
                    self._file.execute("ROLLBACK")
            raise RunError(f"cannot write to {self._path}: {error}. Nothing was sent.") from error

    def has(self, place: str) -> bool:
        """Return whether a place was answered."""
        return self._row("SELECT 1 FROM answers WHERE place = ?", place) is not None

    @property
    def last(self) -> int:
        """The number of the last round that was answered; -1 before the first."""
        (last,) = self._row("SELECT max(round) FROM answers")
        return -1 if last is None else int(last)

    def _row(self, query: str, *values: str) -> Any:
        try:
            return self._file.execute(query, values).fetchone()
        except sqlite3.Error as error:
            raise RunError(f"cannot read {self._path}: {error}.") from error

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _digest(request: bytes) -> bytes:
    return hashlib.sha256(request).digest()
