"""An append-only hash chain of ledger entries in one SQLite file, which many processes can use.

Each entry holds the hash of the one before it. When `writing` ends, what was appended survives a power failure (WAL,
full synchronisation). Triggers forbid changing or deleting an entry; bypassing them breaks the chain, which `verify`
detects. Hashes prove order and content, not authorship: to detect that the whole file was rewritten, keep a head
elsewhere, as every run folder does.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import secrets
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import astuple, dataclass, fields, replace
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

from sordino.core.errors import RunError, SordinoError

OURS, VERSION = 0x534F5244, 3  # "SORD"; version 1 had one file per run, version 2 had no nonces
GENESIS = "0" * 64
KINDS = ("budget", "plan", "round", "evaluation", "trial", "audit", "note", "distinct")
WAIT = 30.0  # seconds to wait for other writers
T = TypeVar("T")

SCHEMA = (
    """CREATE TABLE entry (
    id INTEGER PRIMARY KEY,
    kind TEXT NOT NULL, job TEXT NOT NULL, data TEXT NOT NULL, owners BLOB, what TEXT NOT NULL, time TEXT NOT NULL,
    unit TEXT NOT NULL, relation TEXT NOT NULL, viewer TEXT NOT NULL, event TEXT NOT NULL, epsilon REAL, delta REAL,
    nonce TEXT NOT NULL, previous TEXT NOT NULL, hash TEXT NOT NULL)""",
    "CREATE INDEX by_job ON entry (job, kind)",
    "CREATE INDEX by_kind ON entry (kind) WHERE kind <> 'round'",
    "CREATE INDEX by_data ON entry (data, kind)",
    """CREATE TRIGGER no_update BEFORE UPDATE ON entry
    BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END""",
    """CREATE TRIGGER no_delete BEFORE DELETE ON entry
    BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END""",
    """CREATE TRIGGER in_order BEFORE INSERT ON entry
    WHEN NEW.id IS NOT (SELECT coalesce(max(id), 0) + 1 FROM entry)
    BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END""",
)


@dataclass(frozen=True)
class Entry:
    """One entry of the ledger."""

    id: int  # row, counted from 1
    kind: str  # one of KINDS
    job: str
    data: str  # name of the data in the ledger
    owners: bytes | None  # ids of the clients concerned (int64, little-endian); None: all of them
    what: str  # JSON: the round, the purpose, ...
    time: str  # UTC, ISO 8601
    unit: str
    relation: str
    viewer: str
    event: str  # JSON
    epsilon: float | None
    delta: float | None
    nonce: str  # secret, so that a published hash does not confirm a guess of the content
    previous: str  # hash of the entry before
    hash: str

    def details(self) -> dict[str, Any]:
        """Return `what`, parsed."""
        details = json.loads(self.what)
        return details if isinstance(details, dict) else {}

    def digest(self) -> str:
        """Compute the hash of the entry, over the previous hash and everything else in it."""
        content = [None if v is None else v.hex() if isinstance(v, bytes) else v for v in astuple(self)[:-1]]
        return hashlib.blake2b(json.dumps(content).encode(), digest_size=32).hexdigest()


COLUMNS = tuple(f.name for f in fields(Entry))
_SELECT = f"SELECT {', '.join(COLUMNS)} FROM entry"


class Chain:
    """The hash chain of a ledger, as one SQLite file."""

    def __init__(self, path: Path, mode: str = "create", wait: float = WAIT) -> None:
        """Open the file.

        Args:
            path: The SQLite file.
            mode: "create" (create the file if it does not exist), "write" (the file must exist) or "read".
            wait: Seconds to wait for other writers.
        """
        self.path, self.wait, self._mode = Path(path), wait, mode
        if mode != "create" and not self.path.is_file():
            raise RunError(f"there is no ledger {self.path}.")
        self._seen = (0, GENESIS)
        self._files: tuple[int, ...] | None = None
        flag = {"create": "rwc", "write": "rw", "read": "ro"}[mode]
        try:
            if mode == "create":
                self.path.parent.mkdir(parents=True, exist_ok=True)
            where = f"file:{quote(str(self.path.absolute()))}?mode={flag}"
            self._db = sqlite3.connect(where, uri=True, isolation_level=None, timeout=wait, check_same_thread=False)
        except (sqlite3.Error, OSError) as error:
            raise RunError(f"cannot open the ledger {self.path}: {error}") from error
        try:
            self._patiently(self._ready)
            self._inode = self._stat("")
            self._seen = self.head()
        except (sqlite3.Error, OSError) as error:
            self._db.close()
            raise RunError(f"cannot open the ledger {self.path}: {error}") from error
        except SordinoError:
            self._db.close()
            raise

    def _ready(self) -> None:
        """Create the table if the file is new, and reject a file of another kind before anything in it changes."""
        self._db.execute("BEGIN")  # a consistent view: another process may be creating the table
        try:
            tables = [name for (name,) in self._db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
            (ours,) = self._db.execute("PRAGMA application_id").fetchone()
            (version,) = self._db.execute("PRAGMA user_version").fetchone()
        finally:
            self._rollback()
        if not tables and ours == 0 and self._mode == "create":
            self._db.execute("PRAGMA journal_mode=WAL")
            self._make()
        elif ours != OURS:
            kind = "was written by an older version of Sordino" if "charge" in tables else "is not a ledger"
            raise RunError(f"{self.path} {kind}; nothing in it was changed. Use another file.")
        elif version == 2:
            raise RunError(
                f"{self.path} was written by an earlier version of Sordino; nothing in it was changed. "
                f"Import its charges with `sordino ledger import {self.path}`."
            )
        elif version != VERSION:
            raise RunError(
                f"{self.path} has schema {version}, but this version of Sordino reads {VERSION}. "
                + ("It was written by a newer version: update Sordino." if version > VERSION else "Use another file.")
            )
        if self._mode != "read":
            self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=FULL")

    def _make(self) -> None:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            if not self._db.execute("SELECT 1 FROM sqlite_master").fetchall():  # no other process was faster
                for statement in SCHEMA:
                    self._db.execute(statement)
                self._db.execute(f"PRAGMA application_id = {OURS}")
                self._db.execute(f"PRAGMA user_version = {VERSION}")
            self._db.execute("COMMIT")
        except BaseException:
            self._rollback()
            raise

    def _patiently(self, act: Callable[[], T]) -> T:
        """Retry for up to `wait` seconds while other processes hold the file."""
        until = time.monotonic() + self.wait
        while True:
            try:
                return act()
            except sqlite3.OperationalError as error:
                if getattr(error, "sqlite_errorcode", 0) & 0xFF not in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
                    raise
                if time.monotonic() >= until:
                    raise RunError(
                        f"the ledger {self.path} has been in use by another process for {self.wait:g} seconds. "
                        "Try again when it is done."
                    ) from error
                time.sleep(0.005)

    def _rollback(self) -> None:
        with contextlib.suppress(sqlite3.Error):
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")

    # --- writing

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Open a transaction, during which other writers wait.

        When it ends, everything that was appended inside is on disk, or nothing.
        """
        try:
            self._patiently(lambda: self._db.execute("BEGIN IMMEDIATE"))
            self.expect(*self._seen)
            yield
            self._db.execute("COMMIT")
            self._check_files()
            self._seen = self.head()
        except (sqlite3.Error, OSError) as error:
            raise RunError(f"cannot write the ledger {self.path}: {error}. Free some space or restore it.") from error
        finally:
            self._rollback()

    def append(self, **values: Any) -> Entry:
        """Append an entry with these fields to the chain; only inside `writing`."""
        last, previous = self.head()
        blank = dict.fromkeys(("job", "data", "unit", "relation", "viewer", "event"), "")
        known = blank | {"owners": None, "epsilon": None, "delta": None} | values
        known["what"] = json.dumps(known.get("what", {}), sort_keys=True)
        known["nonce"] = secrets.token_hex(32)
        known["time"] = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        entry = Entry(**known, id=last + 1, previous=previous, hash="")
        entry = replace(entry, hash=entry.digest())
        marks = ", ".join("?" * len(COLUMNS))
        self._db.execute(f"INSERT INTO entry ({', '.join(COLUMNS)}) VALUES ({marks})", astuple(entry))
        return entry

    def expect(self, row: int, hash: str) -> None:
        """Raise an error unless this row still has this hash; row 0 stands for an empty chain."""
        if row and (current := self._hash(row)) != hash:
            raise RunError(
                f"the ledger {self.path} was cut or replaced by another copy: row {row} had hash {hash[:12]}, "
                f"and now {current[:12] if current else f'it ends at row {self.head()[0]}'}. Put the right file back."
            )

    def _stat(self, suffix: str) -> int:
        return Path(f"{self.path}{suffix}").stat().st_ino

    def _check_files(self) -> None:
        """Raise an error if the file was removed or replaced, since what SQLite then writes is lost."""
        files = (self._stat(""), self._stat("-wal"))
        if files[0] != self._inode or (self._files is not None and files != self._files):
            raise OSError("it was removed or replaced while in use")
        self._files = files

    # --- reading

    def head(self) -> tuple[int, str]:
        """Return the row and the hash of the last entry."""
        rows = self._rows("SELECT id, hash FROM entry ORDER BY id DESC LIMIT 1")
        return (int(rows[0][0]), str(rows[0][1])) if rows else (0, GENESIS)

    def _hash(self, row: int) -> str | None:
        rows = self._rows("SELECT hash FROM entry WHERE id = ?", (row,))
        return str(rows[0][0]) if rows else None

    def _rows(self, query: str, values: Iterable[Any] = ()) -> list[Any]:
        try:
            return self._db.execute(query, tuple(values)).fetchall()
        except sqlite3.Error as error:
            raise RunError(f"cannot read the ledger {self.path}: {error}") from error

    def select(self, where: str = "1", values: Iterable[Any] = ()) -> Iterator[Entry]:
        """Yield the entries that satisfy an SQL condition, in order; `values` are its parameters."""
        try:
            for row in self._db.execute(f"{_SELECT} WHERE {where} ORDER BY id", tuple(values)):
                yield Entry(*row)
        except sqlite3.Error as error:
            raise RunError(f"cannot read the ledger {self.path}: {error}") from error

    def count(self, where: str, values: Iterable[Any]) -> int:
        """Return the number of entries that satisfy an SQL condition; `values` are its parameters."""
        return int(self._rows(f"SELECT count(*) FROM entry WHERE {where}", values)[0][0])

    def verify(self, heads: Iterable[tuple[str, int, str]] = (), most: int = 20) -> list[str]:
        """Return what is wrong with the chain, as one text per problem; an empty list if it is intact.

        Args:
            heads: Heads of the chain that others have kept, as (name, row, hash); the chain must still contain them.
            most: Number of problems after which to stop.
        """
        lines = [str(text).splitlines()[0] for (text,) in self._rows("PRAGMA integrity_check(5)")]
        problems = [f"the file is damaged: {text}" for text in lines if text != "ok"]
        number, before = 0, GENESIS
        for entry in self.select():
            if entry.id != number + 1:
                problems.append(f"row {number + 1} is missing: the next one is row {entry.id}")
            elif entry.previous != before:
                problems.append(f"row {entry.id}: it should follow {before[:12]} but says {entry.previous[:12]}")
            if entry.digest() != entry.hash:
                problems.append(
                    f"row {entry.id} was edited: expected hash {entry.digest()[:12]}, found {entry.hash[:12]}"
                )
            number, before = entry.id, entry.hash
            if len(problems) >= most:
                return problems
        made = {sql for (sql,) in self._rows("SELECT sql FROM sqlite_master")}
        problems += ["the triggers or indices of the table were changed"] if not set(SCHEMA) <= made else []
        for name, row, hash in heads:
            there = self._hash(row)
            if row and there is None:
                problems.append(
                    f"row {row} is missing: {name} has it with hash {hash[:12]}, but the ledger ends at row {number}. "
                    "Its end was cut off, or an old copy was put back"
                )
            elif row and there != hash:
                problems.append(f"row {row}: expected hash {hash[:12]}, as in {name}, found {str(there)[:12]}")
        return problems

    def close(self) -> None:
        """Close the file."""
        with contextlib.suppress(sqlite3.Error):
            self._db.close()
