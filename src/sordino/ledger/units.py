"""The units in the data of each job: sets of keyed hashes in a file beside the ledger, from which they can be erased.

The units of a job have up to three parts: its private rows in all their forms, the ids of its users or clients if those
are protected, and one hash of the data as a whole if rows cannot be told apart. Within a part, line i of every form is
the same unit, and equal parts are stored once. Nothing here is in the chain, so that a person can be forgotten.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from sordino.core.errors import RunError
from sordino.ledger import macs
from sordino.ledger.macs import Macs, Mask

OURS, VERSION = 0x534F5255, 1  # "SORU"
PARTS = ("rows", "ids", "whole")
SCHEMA = (
    "CREATE TABLE part (id INTEGER PRIMARY KEY, key TEXT NOT NULL, part TEXT NOT NULL, digest TEXT NOT NULL)",
    "CREATE TABLE form (part INTEGER NOT NULL, kind TEXT NOT NULL, macs BLOB NOT NULL, PRIMARY KEY (part, kind))",
    "CREATE TABLE member (job TEXT NOT NULL, part INTEGER NOT NULL, PRIMARY KEY (job, part))",
)
Forms = Mapping[str, Macs]  # hashes by kind of form; line i of each is the same unit


@dataclass(frozen=True)
class StoredUnits:
    """One stored part of the units of a job."""

    id: int
    key: str  # name of the key of the hashes
    part: str  # one of PARTS
    digest: str  # of the hashes


@dataclass(frozen=True)
class Units:
    """Everyone in the data of a job, as a ledger compares them."""

    unit: str  # record, user or client
    key: str  # name of the key of the hashes
    rows: Forms = field(default_factory=dict)
    ids: Forms = field(default_factory=dict)
    whole: Forms = field(default_factory=dict)
    notes: tuple[str, ...] = ()  # messages for the owner only
    fingerprint: Callable[[], str] | None = None  # identifies these data in earlier versions
    cache: dict[tuple[str, int], Mask] = field(default_factory=dict, repr=False)  # matches, by part and stored part
    digests: dict[str, str] = field(default_factory=dict, repr=False)  # digests that were computed, by part

    @property
    def count(self) -> int:
        """Number of units that can be told apart; 1 if all of them count as one."""
        forms = self.rows if self.unit == "record" else self.ids
        return len(next(iter(forms.values()))) if forms else 1

    def part(self, name: str) -> Forms:
        """Return one of the PARTS by its name."""
        forms: Forms = getattr(self, name)
        return forms

    def digest(self, name: str) -> str:
        """Return the digest of one part, computed once."""
        if name not in self.digests:
            self.digests[name] = digest(arranged(self.part(name)))
        return self.digests[name]


def digest(forms: Forms) -> str:
    """Return a digest of the hashes, which is the same for equal parts."""
    total = hashlib.blake2b(digest_size=16)
    for kind in sorted(forms):
        total.update(kind.encode() + forms[kind].tobytes())
    return total.hexdigest()


def arranged(forms: Forms) -> Forms:
    """Sort the lines by the hashes of the first kind, so that the order of the rows is not stored."""
    if not forms:
        return forms
    by = macs.order(forms[min(forms)])
    return {kind: hashes[by] for kind, hashes in forms.items()}


class UnitStore:
    """The file of the units of all jobs; `mode` is "create", "write" or "read", as for a ledger."""

    def __init__(self, path: Path, mode: str = "create") -> None:
        self.path = path
        flag = {"create": "rwc", "write": "rw", "read": "ro"}[mode]
        try:
            if mode == "create" and not path.exists():
                path.parent.mkdir(parents=True, exist_ok=True)
                os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))
            where = f"file:{quote(str(path.absolute()))}?mode={flag}"
            self._db = sqlite3.connect(where, uri=True, isolation_level=None, timeout=30.0, check_same_thread=False)
            self._ready(mode)
        except (sqlite3.Error, OSError) as error:
            raise RunError(f"cannot open the units {path}: {error}") from error

    def _ready(self, mode: str) -> None:
        (ours,) = self._db.execute("PRAGMA application_id").fetchone()
        (version,) = self._db.execute("PRAGMA user_version").fetchone()
        tables = self._db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        self._db.execute("PRAGMA synchronous=FULL")
        if not tables and ours == 0 and mode == "create":
            with self._writing():
                if not self._db.execute("SELECT 1 FROM sqlite_master").fetchall():  # no other process was faster
                    for statement in SCHEMA:
                        self._db.execute(statement)
                    self._db.execute(f"PRAGMA application_id = {OURS}")
                    self._db.execute(f"PRAGMA user_version = {VERSION}")
        elif (ours, version) != (OURS, VERSION):
            self._db.close()
            raise RunError(f"{self.path} is not a file of units of this version; nothing in it was changed.")
        self._db.execute("PRAGMA secure_delete=ON")  # overwrites what is erased

    def close(self) -> None:
        """Close the file."""
        with contextlib.suppress(sqlite3.Error):
            self._db.close()

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._db.execute("COMMIT")
        finally:
            with contextlib.suppress(sqlite3.Error):
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Open a transaction: all changes inside are written, or none."""
        try:
            with self._writing():
                yield
        except (sqlite3.Error, OSError) as error:
            raise RunError(f"cannot write the units {self.path}: {error}. Free some space or restore it.") from error

    # --- reading

    def _rows(self, query: str, *values: Any) -> list[Any]:
        try:
            return self._db.execute(query, values).fetchall()
        except sqlite3.Error as error:
            raise RunError(f"cannot read the units {self.path}: {error}") from error

    def keys(self) -> set[str]:
        """Return the names of the keys of all hashes in this file."""
        return {str(key) for (key,) in self._rows("SELECT DISTINCT key FROM part")}

    def members(self) -> dict[str, tuple[StoredUnits, ...]]:
        """Return the stored parts of every job."""
        parts = {row[0]: StoredUnits(*row) for row in self._rows("SELECT id, key, part, digest FROM part")}
        out: dict[str, tuple[StoredUnits, ...]] = {}
        for job, part in self._rows("SELECT job, part FROM member ORDER BY job, part"):
            out[job] = (*out.get(job, ()), parts[part])
        return out

    def parts(self) -> list[StoredUnits]:
        """Return all stored parts."""
        return [StoredUnits(*row) for row in self._rows("SELECT id, key, part, digest FROM part ORDER BY id")]

    def kinds(self, part: StoredUnits) -> set[str]:
        """Return the kinds of form that a part has."""
        return {kind for (kind,) in self._rows("SELECT kind FROM form WHERE part = ?", part.id)}

    def form(self, part: StoredUnits, kind: str) -> Macs:
        """Return the hashes of a part in one kind of form."""
        ((blob,),) = self._rows("SELECT macs FROM form WHERE part = ? AND kind = ?", part.id, kind)
        return np.frombuffer(blob, "<u8").astype(np.uint64).reshape(-1, 2)

    def forms(self, part: StoredUnits) -> Forms:
        """Return the hashes of a part in all its forms."""
        return {kind: self.form(part, kind) for kind in sorted(self.kinds(part))}

    def units(self, parts: tuple[StoredUnits, ...], unit: str) -> Units:
        """Return the units of a stored job."""
        made: dict[str, Any] = {p.part: self.forms(p) for p in parts}
        return Units(unit, parts[0].key, **made)

    # --- writing

    def add(self, job: str, units: Units) -> None:
        """Store the units of a new job, all of them or none."""
        with self.writing():
            for name in PARTS:
                if forms := units.part(name):
                    self.put(job, units.key, name, arranged(forms))

    def put(self, job: str, key: str, part: str, forms: Forms) -> None:
        """Store one part of the units of a job, reusing an equal one; only inside `writing`."""
        mark = digest(forms)
        same = self._rows("SELECT id FROM part WHERE key = ? AND part = ? AND digest = ?", key, part, mark)
        if same:
            number = same[0][0]
        else:
            insert = "INSERT INTO part (key, part, digest) VALUES (?, ?, ?)"
            number = self._db.execute(insert, (key, part, mark)).lastrowid
            rows = [(number, kind, hashes.astype("<u8").tobytes()) for kind, hashes in forms.items()]
            self._db.executemany("INSERT INTO form VALUES (?, ?, ?)", rows)
        self._db.execute("INSERT OR IGNORE INTO member VALUES (?, ?)", (job, number))

    def erase(self, part: StoredUnits, lines: Mask) -> int:
        """Erase some lines of a part, overwriting their bytes, and return their number; only inside `writing`."""
        if not lines.any():
            return 0
        left = {kind: hashes[~lines] for kind, hashes in self.forms(part).items()}
        for kind, hashes in left.items():
            update = "UPDATE form SET macs = ? WHERE part = ? AND kind = ?"
            self._db.execute(update, (hashes.astype("<u8").tobytes(), part.id, kind))
        self._db.execute("UPDATE part SET digest = ? WHERE id = ?", (digest(left), part.id))
        return int(lines.sum())
