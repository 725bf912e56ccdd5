"""Transfer of registries: import, merge, backup and restore."""

from __future__ import annotations

import contextlib
import hashlib
import json
import sqlite3
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sordino.core.errors import RunError
from sordino.ledger import home
from sordino.ledger.chain import GENESIS, OURS, Chain, Entry
from sordino.ledger.labels import IMPORTED, UNNAMED
from sordino.ledger.ledger import CHARGED, Ledger
from sordino.ledger.units import UnitStore

NAMES = ("ledger.sqlite", "units.sqlite")  # file names in a backup
OLD = (  # columns of version 2
    "id", "kind", "job", "data", "owners", "what", "time", "unit", "relation", "viewer", "event", "epsilon", "delta",
    "previous", "hash",
)  # fmt: skip
KEPT = ("owners", "unit", "relation", "viewer", "event", "epsilon", "delta")  # fields that are copied unchanged


# --- ledgers of version 2, one beside every folder of runs


def import_old(target: Path, path: Path, name: str | None = None) -> tuple[int, list[str]]:
    """Copy the charges of a ledger of version 2, each once.

    Args:
        target: The ledger to copy to.
        path: The old ledger.
        name: Name of the data, if their owner gives one.

    Returns:
        The number of new charges, and messages for the owner.
    """
    rows = _old_rows(path)
    with contextlib.closing(Ledger(target)) as book, book.chain.writing():
        known = {
            e.details().get("origin") for e in book.chain.select("kind <> 'round' AND kind IN (?, ?, ?, ?)", CHARGED)
        }
        fresh = [r for r in rows if r["kind"] in CHARGED and r["hash"] not in known]
        for row in fresh:
            what = json.loads(row["what"]) | {"fingerprint": row["data"], "origin": row["hash"], "time": row["time"]}
            label = name or f"{IMPORTED}{row['data'][:12]})"
            book.chain.append(kind=row["kind"], job=row["job"], data=label, what=what, **{k: row[k] for k in KEPT})
        if fresh or (rows and not _taken(book, rows[-1]["hash"])):
            book.chain.append(kind="note", what={"imported": rows[-1]["hash"] if rows else ""})
    messages = [
        f"its budget of epsilon {r['epsilon']:g}, delta {r['delta']:g} was not imported: use `sordino ledger budget`."
        for r in rows
        if r["kind"] == "budget"
    ][-1:]
    return len(fresh), messages


def old_ledger(path: Path, book: Ledger) -> Iterator[str]:
    """Yield a message if there is an old ledger beside the runs that was never imported."""
    if path.is_file() and path.absolute() != book.path.absolute():
        with contextlib.suppress(RunError):
            rows = _old_rows(path)
            if rows and not _taken(book, rows[-1]["hash"]):
                charges = sum(r["kind"] in CHARGED for r in rows)
                yield (
                    f"{path} holds {charges} charges of an earlier version that are not counted: import them with "
                    f"`sordino ledger import {path}`."
                )


def _taken(book: Ledger, head: str) -> bool:
    return any(e.details().get("imported") == head for e in book.chain.select("kind <> 'round' AND kind = 'note'"))


def _old_rows(path: Path) -> list[dict[str, Any]]:
    """Return the entries of a ledger of version 2, after verifying its chain."""
    if not path.is_file():
        raise RunError(f"there is no ledger {path}.")
    try:
        with contextlib.closing(_reading(path)) as db:
            header = tuple(db.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version"))
            if header != (OURS, 2):
                raise RunError(
                    f"{path} is not a ledger of an earlier version; for new ones use `sordino ledger merge`."
                )
            rows = [
                dict(zip(OLD, r, strict=True)) for r in db.execute(f"SELECT {', '.join(OLD)} FROM entry ORDER BY id")
            ]
    except sqlite3.Error as error:
        raise RunError(f"cannot read the ledger {path}: {error}") from error
    before = GENESIS
    for number, row in enumerate(rows, 1):
        content = [v.hex() if isinstance(v, bytes) else v for v in list(row.values())[:-1]]
        hash = hashlib.blake2b(json.dumps(content).encode(), digest_size=32).hexdigest()
        if (row["id"], row["previous"], row["hash"]) != (number, before, hash):
            raise RunError(f"the ledger {path} was edited at row {number}; nothing was imported.")
        before = hash
    return rows


# --- another registry


def merge(target: Path, path: Path) -> tuple[int, list[str]]:
    """Copy the charges and units of another registry (its ledger, its folder or a backup), each once.

    Returns:
        The number of new charges, and messages for the owner.
    """
    if path.is_dir():
        path = next((p for p in (path / NAMES[0], path / "registry" / NAMES[0]) if p.is_file()), path / NAMES[0])
    if path.absolute() == target.absolute():
        raise RunError(f"{path} is this ledger itself.")
    with tempfile.TemporaryDirectory() as place, contextlib.closing(_opened(path, Path(place))) as other:
        if problems := other.chain.verify():
            raise RunError(f"{path}: {problems[0]}; nothing was merged.")
        with contextlib.closing(Ledger(target)) as book:
            return _merge(book, other)


def _merge(book: Ledger, other: Ledger) -> tuple[int, list[str]]:
    theirs = other.store()
    members = {} if theirs is None else theirs.members()
    kinds = ", ".join("?" * len(CHARGED))
    with book.chain.writing():
        known = {_origin(e) for e in book.chain.select(f"kind IN ({kinds}, 'distinct')", CHARGED)}
        fresh = [e for e in other.chain.select(f"kind IN ({kinds}, 'distinct')", CHARGED) if _origin(e) not in known]
        store = book.store(make=bool(members))
        labels: dict[str, str] = {}
        number = sum(d.startswith(UNNAMED) for d in book.data())
        if store is not None and theirs is not None:
            with store.writing():
                for job in dict.fromkeys(e.job for e in fresh):
                    for part in members.get(job, ()):
                        store.put(job, part.key, part.part, theirs.forms(part))
        for entry in fresh:
            label = entry.data
            if label.startswith(UNNAMED):
                label = labels.setdefault(label, f"{UNNAMED}{number + len(labels) + 1})")
            what = {"time": entry.time} | entry.details() | {"origin": _origin(entry)}
            fields = {k: getattr(entry, k) for k in KEPT}
            book.chain.append(kind=entry.kind, job=entry.job, data=label, what=what, **fields)
    charges = [e for e in fresh if e.kind in CHARGED]
    return len(charges), list(_about(charges, members, other))


def _about(charges: list[Entry], members: dict[str, Any], other: Ledger) -> Iterator[str]:
    key = home.read_key()
    strange = [e for e in charges if any(key is None or p.key != key.id for p in members.get(e.job, ()))]
    if strange:
        yield (
            f"{len(strange)} of them have hashes made with another key, which cannot be compared: they count by the "
            "name of their data only. Those who share a registry should share its key (`sordino ledger key export`)."
        )
    for entry in other.chain.select("kind = 'budget'"):
        on = f" on data {entry.data}" if entry.data else ""
        yield f"its budget of epsilon {entry.epsilon:g}, delta {entry.delta:g}{on} was not merged."


def _origin(entry: Entry) -> str:
    """Return the hash of the original entry, which identifies it in every registry that it is copied to."""
    return str(entry.details().get("origin", entry.hash))


# --- backups


def backup(book: Ledger, target: Path) -> None:
    """Write a consistent copy of ledger and units to one archive, without the key."""
    if target.exists():
        raise RunError(f"{target} exists already. Choose another file.")
    temporary = target.with_name(f"{target.name}.tmp")
    try:
        with tempfile.TemporaryDirectory() as place, book.chain.writing():  # keeps other writers out
            store = book.store()
            files = {NAMES[0]: book.path} | ({} if store is None else {NAMES[1]: store.path})
            with zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as archive:
                for name, path in files.items():
                    _copy(path, Path(place) / name)
                    archive.write(Path(place) / name, name)
        temporary.chmod(0o600)
        temporary.replace(target)
    except (OSError, sqlite3.Error) as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise RunError(f"cannot write {target}: {error}.") from error


def restore(source: Path) -> Path:
    """Restore the user's registry from a backup and return its path; there must be no registry yet."""
    target = home.registry()
    units = home.units_beside(target)
    for path in (target, units):
        if path.exists():
            raise RunError(f"a registry already exists: {path}. Use `sordino ledger merge`, or move it away first.")
    with tempfile.TemporaryDirectory() as place:
        copy = _unpacked(source, Path(place))
        home.made(target)
        try:
            for path in ([units] if home.units_beside(copy).is_file() else []) + [target]:
                temporary = path.with_name(f"{path.name}.tmp")
                _copy(copy if path == target else home.units_beside(copy), temporary)
                temporary.chmod(0o600)
                temporary.replace(path)
        except (OSError, sqlite3.Error) as error:
            raise RunError(f"cannot restore {target}: {error}.") from error
    return target


def _opened(path: Path, place: Path) -> Ledger:
    """Open a copy of another registry, given as a ledger or a backup."""
    if not path.is_file():
        raise RunError(f"there is no ledger {path}.")
    if zipfile.is_zipfile(path):
        return Ledger(_unpacked(path, place), "read")
    beside = path.with_name(NAMES[1]) if path.name == NAMES[0] else home.units_beside(path)
    copy = place / NAMES[0]
    try:
        _copy(path, copy)
        if beside.is_file():
            _copy(beside, home.units_beside(copy))
    except sqlite3.Error as error:
        raise RunError(f"cannot open the ledger {path}: {error}") from error
    return Ledger(copy, "read")


def _unpacked(source: Path, place: Path) -> Path:
    """Unpack a backup, verify its files and return the path of the ledger."""
    copy = place / NAMES[0]
    try:
        with zipfile.ZipFile(source) as archive:
            if NAMES[0] not in archive.namelist() or set(archive.namelist()) - set(NAMES):
                raise RunError(f"{source} is not a backup of a registry.")
            copy.write_bytes(archive.read(NAMES[0]))
            if NAMES[1] in archive.namelist():
                home.units_beside(copy).write_bytes(archive.read(NAMES[1]))
    except (OSError, zipfile.BadZipFile) as error:
        raise RunError(f"cannot read the backup {source}: {error}.") from error
    chain = Chain(copy, "read")
    try:
        problems = chain.verify()
    finally:
        chain.close()
    if problems:
        raise RunError(f"{source}: {problems[0]}; nothing was changed.")
    if (units := home.units_beside(copy)).is_file():
        UnitStore(units, "read").close()
    return copy


def _reading(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"file:{quote(str(path.absolute()))}?mode=ro", uri=True)


def _copy(source: Path, target: Path) -> None:
    with contextlib.closing(_reading(source)) as reader, contextlib.closing(sqlite3.connect(target)) as writer:
        reader.backup(writer)
        writer.execute("PRAGMA journal_mode=DELETE")
