"""The state that clients keep between rounds: control variates, personal models, late messages.

Rows are stored by kind and client; only clients that were written have one. If there is a file (SQLite, in the run
folder), rows are written at every checkpoint under the number of completed rounds, so that a resumed run finds the rows
of its checkpoint; rows that no retained checkpoint needs are deleted. Rows that are in the file may be evicted when
memory gets short.
"""

from __future__ import annotations

import sqlite3
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sordino.core.errors import RunError
from sordino.core.types import Rows

Key = tuple[str, int]  # kind, client
VERSION = 2  # of the file format; rows of version 1 had no header


class Store:
    """Rows of client state in memory and, once opened, in a file."""

    def __init__(self, memory_gb: float = 2.0) -> None:
        self._memory = memory_gb * 2**30
        self._rows: dict[Key, Tensor | None] = {}  # None: deleted
        self._held = 0  # bytes in memory
        self._dirty: set[Key] = set()
        self._written: dict[int, set[Key]] = {}  # by save: rows that later saves may supersede
        self._file: sqlite3.Connection | None = None
        self._kept = (-1, 0)  # completed rounds at the last two checkpoints; -1: not known

    def open(self, path: Path, done: int, lasting: Sequence[str] = (), whose: str = "all clients") -> None:
        """Open the file and continue with the rows of the checkpoint after `done` rounds.

        Args:
            path: The SQLite file.
            done: Number of completed rounds at the checkpoint.
            lasting: Kinds whose newest rows are used, even if they are newer than the checkpoint.
            whose: Description of the clients that the file belongs to; a file of other clients is refused.
        """
        self.close()
        self._rows, self._dirty, self._kept, self._held, self._written = {}, set(), (-1, done), 0, {}
        lost = RunError(
            f"{path} does not hold what clients kept after {done} rounds: it is missing, empty or another copy. "
            "Put it back, or start the run again."
        )
        if done and not path.is_file():
            raise lost
        try:
            self._file = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
            self._check_version(path, self._file)
            self._check_holder(path, self._file, whose)
            self._file.execute("PRAGMA journal_mode = WAL")
            self._file.execute(
                "CREATE TABLE IF NOT EXISTS kept (kind TEXT, client INTEGER, done INTEGER, row BLOB, crc INTEGER, "
                "PRIMARY KEY (kind, client, done)) WITHOUT ROWID"
            )
            self._file.execute("CREATE TABLE IF NOT EXISTS saved (done INTEGER PRIMARY KEY)")
            if done and self._file.execute("SELECT 1 FROM saved WHERE done = ?", (done,)).fetchone() is None:
                raise lost
            self._file.execute("DELETE FROM saved WHERE done > ?", (done,))
            here = ",".join("?" * len(lasting))
            self._file.execute(f"DELETE FROM kept WHERE done > ? AND kind NOT IN ({here})", (done, *lasting))
        except sqlite3.Error as error:
            raise RunError(f"cannot use {path}: {error}. Put an intact copy back, or start the run again.") from error

    def _check_version(self, path: Path, file: sqlite3.Connection) -> None:
        """Refuse a file of another version; mark a new file with the current version."""
        (tables,) = file.execute("SELECT count(*) FROM sqlite_master").fetchone()
        (version,) = file.execute("PRAGMA user_version").fetchone()
        if tables and version != VERSION:
            other = "an earlier" if version < VERSION else "a later"
            raise RunError(f"{path} was written by {other} version of Sordino: resume the run with that one.")
        file.execute(f"PRAGMA user_version = {VERSION}")

    def _check_holder(self, path: Path, file: sqlite3.Connection, whose: str) -> None:
        """Refuse a file that belongs to other clients; mark a file without owner as belonging to `whose`."""
        file.execute("CREATE TABLE IF NOT EXISTS holder (whose TEXT)")
        holder = file.execute("SELECT whose FROM holder").fetchone()
        if holder is not None and holder[0] != whose:
            raise RunError(
                f"{path} holds what {holder[0]} keep, but should hold what {whose} keep: files were swapped. Put the "
                "right one back, or start the run again."
            )
        if holder is None:
            file.execute("INSERT INTO holder VALUES (?)", (whose,))

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def read(self, kind: str, ids: Sequence[int], fresh: Rows) -> Rows:
        """Return the clients' rows on the device of `fresh`; a client without a row gets its row of `fresh`."""
        stored_rows = [self._find((kind, int(i))) for i in ids]
        if not any(row is not None for row in stored_rows):
            return fresh
        if any(row is not None and (row.shape, row.dtype) != (fresh.shape[1:], fresh.dtype) for row in stored_rows):
            raise RunError("what clients keep does not fit this model: it was saved by another run.")
        rows = [mine if row is None else row.to(fresh.device) for row, mine in zip(stored_rows, fresh, strict=True)]
        self._forget()
        return torch.stack(rows)

    def _find(self, key: Key) -> Tensor | None:
        if key not in self._rows and self._file is not None:
            got = self._ask("SELECT row, crc FROM kept WHERE kind = ? AND client = ? ORDER BY done DESC LIMIT 1", key)
            row = got[0][0] if got else None
            if row is not None and zlib.crc32(row) != got[0][1]:
                raise RunError(
                    f"what client {key[1]} keeps is damaged on disk. Put an intact copy back, or start again."
                )
            self._put(key, None if row is None else _tensor(row))
        return self._rows.get(key)

    def write(self, kind: str, ids: Sequence[int], rows: Rows) -> None:
        """Set the clients' rows in memory; `save` writes them to the file."""
        for i, row in zip(ids, rows.detach().cpu(), strict=True):
            self._set((kind, int(i)), row.clone())
        self._forget()

    def write_now(self, kind: str, ids: Sequence[int], rows: Rows, done: int) -> None:
        """Write rows that a crash must not undo.

        They are written to the file immediately, as of `done` rounds, before anything is released.
        """
        self.write(kind, ids, rows)
        if self._file is None:
            return
        lines = [(kind, int(i), done, *_blob(self._rows[kind, int(i)])) for i in ids]
        try:
            self._file.execute("BEGIN IMMEDIATE")
            self._file.executemany("INSERT OR REPLACE INTO kept VALUES (?, ?, ?, ?, ?)", lines)
            self._file.execute("COMMIT")
        except sqlite3.Error as error:
            if self._file.in_transaction:
                self._file.execute("ROLLBACK")
            raise RunError(f"cannot save what clients keep: {error}. Free some space, then resume.") from error

    def drop(self, kind: str, ids: Iterable[int]) -> None:
        """Delete the clients' rows of a kind."""
        for i in ids:
            self._set((kind, int(i)), None)

    def _set(self, key: Key, row: Tensor | None) -> None:
        self._put(key, row)
        self._dirty.add(key)

    def _put(self, key: Key, row: Tensor | None) -> None:
        self._held += _bytes(row) - _bytes(self._rows.pop(key, None))
        self._rows[key] = row  # moves the key to the end: the newest row

    def kinds(self, prefix: str) -> list[str]:
        """Return the kinds of rows whose name is the prefix or begins with the prefix and a space."""
        kinds = {kind for kind, _ in self._rows}
        kinds |= {kind for (kind,) in self._ask("SELECT DISTINCT kind FROM kept", ())}
        return sorted(kind for kind in kinds if f"{kind} ".startswith(f"{prefix.strip()} "))

    def clients(self, kind: str) -> list[int]:
        """Return the clients that have a row of a kind, in ascending order."""
        clients = {client for (k, client), row in self._rows.items() if k == kind and row is not None}
        if self._file is not None:
            # the latest row of a client overrides earlier ones
            on_file = dict(self._ask("SELECT client, row IS NULL FROM kept WHERE kind = ? ORDER BY done", (kind,)))
            clients |= {c for c, gone in on_file.items() if not gone and (kind, c) not in self._rows}
        return sorted(clients)

    def _ask(self, query: str, values: tuple[object, ...]) -> list[Any]:
        try:
            return [] if self._file is None else self._file.execute(query, values).fetchall()
        except sqlite3.Error as error:
            raise RunError(
                f"cannot read what clients keep: {error}. Put an intact copy back, or start again."
            ) from error

    def save(self, done: int) -> None:
        """Write changed rows to the file for a checkpoint after `done` rounds; call before writing the checkpoint."""
        if self._file is None:
            return
        changed = [(k, c, done, *_blob(self._rows[k, c])) for k, c in sorted(self._dirty)]
        older = self._kept[0]  # the last two checkpoints stay on disk until the new one exists
        try:
            self._file.execute("BEGIN IMMEDIATE")
            self._file.executemany("INSERT OR REPLACE INTO kept VALUES (?, ?, ?, ?, ?)", changed)
            self._file.execute("INSERT OR REPLACE INTO saved VALUES (?)", (done,))
            self._file.execute("DELETE FROM saved WHERE done < ?", (older,))
            self._purge(older)
            self._file.execute("COMMIT")
        except sqlite3.Error as error:
            if self._file.in_transaction:
                self._file.execute("ROLLBACK")
            raise RunError(f"cannot save what clients keep: {error}. Free some space, then resume.") from error
        self._written[done] = self._dirty
        self._kept, self._dirty = (self._kept[1], done), set()
        self._forget()

    def _purge(self, older: int) -> None:
        """Delete rows that are superseded for the checkpoint after `older` rounds and for all later ones.

        Deletion marks up to that checkpoint are removed as well.
        """
        for save in [s for s in self._written if s <= older]:
            for key in self._written.pop(save):
                newest = "(SELECT MAX(done) FROM kept WHERE kind = ?1 AND client = ?2 AND done <= ?3)"
                self._run(f"DELETE FROM kept WHERE kind = ?1 AND client = ?2 AND done < {newest}", (*key, older))
                self._run(
                    "DELETE FROM kept WHERE kind = ?1 AND client = ?2 AND done <= ?3 AND row IS NULL", (*key, older)
                )

    def _run(self, command: str, values: tuple[object, ...]) -> None:
        if self._file is not None:
            self._file.execute(command, values)

    def _forget(self) -> None:
        """Evict rows that are in the file from memory, oldest first, while memory is over its limit."""
        if self._file is None or self._held <= self._memory:
            return
        for key in [k for k in self._rows if k not in self._dirty]:
            if self._held <= self._memory:
                return
            self._held -= _bytes(self._rows.pop(key))


def _bytes(row: Tensor | None) -> int:
    return 0 if row is None else row.numel() * row.element_size()


def _blob(row: Tensor | None) -> tuple[bytes | None, int | None]:
    """Return a row as stored in the file, and its checksum."""
    if row is None:
        return None, None
    shape = ",".join(map(str, row.shape))
    head = f"{str(row.dtype).removeprefix('torch.')};{shape}\n".encode()  # a row may have any type and shape
    blob = head + row.reshape(-1).view(torch.uint8).numpy().tobytes()
    return blob, zlib.crc32(blob)


def _tensor(blob: bytes) -> Tensor:
    head, _, data = blob.partition(b"\n")
    kind, _, shape = head.decode().partition(";")
    row = torch.zeros([int(n) for n in shape.split(",") if n], dtype=getattr(torch, kind))
    if data:
        row.reshape(-1).view(torch.uint8).copy_(torch.from_numpy(np.frombuffer(data, dtype=np.uint8).copy()))
    return row
