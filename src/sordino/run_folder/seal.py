"""The seal of a finished run: hashes of its public files and of the code, and commitments to what stays private.

    public/seal.json    for everybody: is this file the one that the run wrote?
    private/seal.json   for the owner: the hashes of private files and the head of the ledger, as they were, and what
                        the public seal said
    private/seal.key    32 random bytes, made once per run and readable by the owner alone

The public seal says nothing about the private part but two commitments, HMAC-SHA256 under the secret key. Plain hashes
would not do: the private records and the entries of the ledger tell who was drawn, and whoever sees a hash can try all
likely draws until one fits. (The chain of the ledger has nonces, but its head and its length are shared with other
runs on the same people's data.) A keyed commitment confirms no guess, as long as HMAC is a pseudorandom function and
the key is secret; it binds the owner all the same, who cannot find other files with the same commitment. Fields and
their lengths are the same for every run, whatever is in the private part.

The commitment to the private files covers the rest of the public seal as well. Whoever changes a public file and
writes its new hash into the seal is found out by the owner, who alone has the key; so is an earlier seal of the same
run, put back with its files. To everybody else the hashes prove only that nothing changed since the seal was written,
and not who wrote it: that is what a signature is for (cli/seal.py).

This module needs neither torch nor the ledger.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import hmac
import inspect
import json
import os
import re
import secrets
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sordino.core import plugin
from sordino.core.errors import RunError
from sordino.core.parts import PRIVATE, PUBLIC
from sordino.core.version import VERSION

if TYPE_CHECKING:
    from sordino.run_folder.folder import RunFolder  # which needs torch

SEAL, SIGNATURE, KEY = "seal.json", "seal.json.sig", "seal.key"
APART = (SEAL, SIGNATURE, "report.html")  # public files that the seal does not cover
OWNERS = (  # private files that the seal covers, if they are there; the others may change after a run
    "spec.toml", "job.json", "ledger.json", "records.jsonl", "result.json", "participation.json", "notes.txt",
    "audit.json", "tune.json", "trials.json",
)  # fmt: skip
FORM = 1  # of the file
ALGORITHM = "sha256"
COMMITMENTS = ("private", "ledger")  # fields of the public seal
HEAD = ("job", "entries", "head")  # what is committed to of the ledger
LENGTH = 32  # bytes of the key
MOST = 4_000_000  # bytes of a seal that is read
HEX = re.compile(r"[0-9a-f]{64}\Z")
NAME = re.compile(r"[A-Za-z0-9_][\w.+-]{0,99}\Z", re.ASCII)


@dataclass(frozen=True)
class SealReport:
    """What a comparison of a run folder with its seal has found."""

    intact: tuple[str, ...]  # public files that are as they were sealed
    changed: tuple[str, ...]
    missing: tuple[str, ...]
    added: tuple[str, ...]  # public files that the seal does not name
    version: str  # of the Sordino that sealed the run
    same_code: bool  # whether the sources of this installation are those that sealed the run
    plugins: tuple[str, ...]  # plug-ins outside the package that the run used; their hashes are in the seal
    private: bool | None = None  # whether the commitment to the private files opens; None: not asked for
    private_changed: tuple[str, ...] = ()  # private files that are missing or not as they were sealed
    ledger: bool | None = None  # whether the commitment to the head of the ledger opens; None: not asked for
    head: tuple[str, int, str] | None = None  # job, entries and head of the ledger, if that commitment opens
    latest: bool | None = None  # whether the public seal is the one that the owner wrote last; None: not asked for

    @property
    def well(self) -> bool:
        """Whether nothing that was compared differs from the seal."""
        files = not (self.changed or self.missing or self.added or self.private_changed)
        return files and all(found is not False for found in (self.private, self.ledger, self.latest))


def write_seal(folder: RunFolder, ledger_head: Mapping[str, Any], plugins: Mapping[str, str] | None = None) -> None:
    """Seal a finished run; a run that is sealed already is sealed anew, under the same key.

    Args:
        folder: the folder of the run.
        ledger_head: the job of the run in the ledger, the number of entries and the head: `Account.head`.
        plugins: the hashes of the plug-ins outside the package that the run used, from `plugin_hashes`.
    """
    files = {p.name: _sealed(p) for p in sorted(folder.public.iterdir()) if _covered(p)}
    owners = {name: _sealed(folder.private / name) for name in OWNERS if (folder.private / name).is_file()}
    about = {"version": FORM, "algorithm": ALGORITHM, "sordino": VERSION, "code": code_hash()}
    about |= {"plugins": {re.sub(r"[^\w./-]", "_", k, flags=re.ASCII): v for k, v in (plugins or {}).items()}}
    _commit(folder, about | {"files": files}, {"files": owners, "ledger": {name: ledger_head[name] for name in HEAD}})


def reseal(folder: RunFolder, name: str, part: str = PUBLIC) -> None:
    """Renew the hash of one file in the seal of a run, after it was written; nothing else in it changes.

    A run without a seal, or with a damaged one, is left as it is. The signature of the earlier seal is removed.
    """
    try:
        sealed, private = _read_seal(folder.public / SEAL), _read_private(folder.private / SEAL)
    except RunError:
        return
    path = folder.path / part / name
    if part == PUBLIC and _covered(path):
        sealed["files"] |= {name: _sealed(path)}
    elif part == PRIVATE and name in OWNERS:
        private["files"] |= {name: _sealed(path)}
    about = {k: v for k, v in sealed.items() if k not in COMMITMENTS}
    _commit(folder, about, {k: private[k] for k in ("files", "ledger")})


def _covered(path: Path) -> bool:
    """Return whether the seal covers this file of a public part: one that a run writes, and that may be public."""
    from sordino.run_folder import boundary  # which needs torch

    listed = path.name in boundary.TABLE or path.name in boundary.FILES
    return listed and path.name not in APART and path.is_file() and not path.is_symlink()


def _commit(folder: RunFolder, about: Mapping[str, Any], private: Mapping[str, Any]) -> None:
    key, public = _key(folder), dict(about) | {"files": dict(sorted(about["files"].items()))}
    seal = public | _commitments(key, public, private)
    before = folder.public / SEAL
    if (folder.public / SIGNATURE).is_file() and not (before.is_file() and before.read_bytes() == _text(seal)):
        (folder.public / SIGNATURE).unlink()
    folder.write_json(SEAL, {"version": FORM, "public": public, **private})
    folder.publish_json(SEAL, seal)


def _commitments(key: bytes, public: Mapping[str, Any], private: Mapping[str, Any]) -> dict[str, str]:
    """Return the two commitments of a seal; the first covers the public part of the seal as well."""
    files = commitment(key, "private", {"public": public, "files": private["files"]})
    return {"private": files, "ledger": commitment(key, "ledger", private["ledger"])}


def commitment(key: bytes, label: str, content: Any) -> str:
    """Return a commitment to JSON values: HMAC-SHA256 under a secret key. The label keeps kinds of contents apart."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hmac.new(key, f"sordino seal {label}\n{text}".encode(), hashlib.sha256).hexdigest()


@lru_cache
def code_hash(root: Path = Path(__file__).parents[1]) -> str:
    """Return a hash of the sources of a package: the names and the bytes of all Python files below its folder."""
    total = hashlib.sha256()
    for path in sorted(root.rglob("*.py"), key=lambda p: p.relative_to(root).as_posix()):
        for part in (path.relative_to(root).as_posix().encode(), path.read_bytes()):
            total.update(len(part).to_bytes(8, "big") + part)
    return total.hexdigest()


def plugin_hashes(chosen: Iterable[tuple[str, str | None]]) -> dict[str, str]:
    """Return the hashes of the files of plug-ins outside the package, by kind and name.

    Args:
        chosen: the kinds and names of the plug-ins that a run uses; built-in ones, which `code_hash` covers, and names
            that belong to no plug-in, such as a model of the caller's own, are left out.
    """
    hashes = {}
    for kind, name in chosen:
        if name is None or plugin.ours(kind, name) or name not in plugin.available(kind):
            continue
        with contextlib.suppress(OSError, TypeError):  # a class without a file
            path = inspect.getsourcefile(plugin.load(kind, name))
            if path is not None:
                hashes[f"{kind}/{name}"] = _hash(Path(path))
    return hashes


# --- checking


def check_seal(run: Path, owner: bool = False) -> SealReport:
    """Compare a run folder, a copy of it or an exported public part with its seal.

    Args:
        run: the run folder, or a folder with the files of its public part.
        owner: whether to open the commitments as well, which needs the private part.

    Raises:
        RunError: if there is no seal, it is damaged, or the owner's files that open it are not there.
    """
    public = sealed_part(run)
    sealed = _read_seal(public / SEAL)
    files: dict[str, str] = sealed["files"]
    left_behind = {f"{name}.tmp" for name in (*files, *APART)}  # by a crash; nothing reads them
    there = {p.name for p in public.iterdir() if public != run or not p.is_dir()} - left_behind
    intact = [name for name, hash in files.items() if name in there and _matches(public / name, hash)]
    report = SealReport(
        intact=tuple(intact),
        changed=tuple(name for name in files if name in there and name not in intact),
        missing=tuple(name for name in files if name not in there),
        added=tuple(sorted(there - {*files, *APART})),
        version=sealed["sordino"],
        same_code=sealed["code"] == code_hash(),
        plugins=tuple(sealed["plugins"]),
    )
    return _opened(run, sealed, report) if owner else report


def sealed_part(run: Path) -> Path:
    """Return the folder of a run that holds its seal; raise RunError if there is none, and say why."""
    if not run.is_dir():
        raise RunError(f"there is no run folder {run}.")
    for public in (run / PUBLIC, run):
        if (public / SEAL).exists():
            return public
    public = run / PUBLIC if (run / PUBLIC).is_dir() else run
    if not (public / "plan.json").is_file():
        if (run / "cells").is_dir():
            raise RunError(
                f"{run} is a comparison, whose runs are sealed one by one. Name one of those in {run}/cells."
            )
        raise RunError(f"{run} is not a run folder: it has no {SEAL} and no plan.json.")
    if not (public / "result.json").is_file():
        raise RunError(f"{run} is not finished, so it has no seal. Run `sordino resume {run}` first.")
    how = f" `sordino resume {run}` seals a run of this version." if (run / PRIVATE).is_dir() else ""
    raise RunError(f"{run} has no seal: it was removed, or the run was made by an earlier version of Sordino.{how}")


def _opened(run: Path, sealed: Mapping[str, Any], report: SealReport) -> SealReport:
    """Return the report with what the owner's key and manifest say of the private part and of the ledger."""
    folder = run / PRIVATE
    if not folder.is_dir():
        raise RunError(f"{run} has no private part, so its commitments cannot be opened. Name the run folder itself.")
    try:
        if not _plain(folder / KEY):
            raise OSError(errno.EINVAL, "it is not a plain file")
        key = (folder / KEY).read_bytes() if (folder / KEY).stat().st_size == LENGTH else b""
    except OSError as error:
        raise RunError(f"cannot read {folder / KEY}, without which no commitment opens: {error.strerror}.") from error
    private = _read_private(folder / SEAL)
    public = {k: v for k, v in sealed.items() if k not in COMMITMENTS}
    mine = _commitments(key, public, private)
    opens, also = (hmac.compare_digest(mine[name], sealed[name]) for name in COMMITMENTS)
    hashes: dict[str, str] = private["files"]
    unsealed = [n for n in OWNERS if n not in hashes and (folder / n).exists()]
    changed = [n for n, hash in hashes.items() if not _matches(folder / n, hash)]
    return replace(
        report,
        private=opens,
        private_changed=tuple(sorted([*changed, *unsealed])),
        ledger=also,
        head=tuple(private["ledger"][name] for name in HEAD) if also else None,
        latest=private["public"] == public,
    )


# --- files


def _read_seal(path: Path) -> dict[str, Any]:
    """Return the contents of a public seal, or raise RunError if they are not what `write_seal` writes."""
    data = _json_of(path)
    form = data.get("version") if isinstance(data, dict) else None
    if type(form) is int and form > FORM:
        raise RunError(f"{path} was written by a newer version of Sordino. Update Sordino, then check it again.")
    fields = {"version", "algorithm", "sordino", "code", "plugins", "files", "private", "ledger"}
    try:
        fine = (
            set(data) == fields
            and (type(form), form, data["algorithm"]) == (int, FORM, ALGORITHM)
            and re.fullmatch(r"[\w.+-]{1,40}", data["sordino"], re.ASCII) is not None
            and all(HEX.match(data[name]) for name in ("code", "private", "ledger"))
            and all(re.fullmatch(r"[\w./-]{1,200}", k, re.ASCII) and HEX.match(v) for k, v in data["plugins"].items())
            and _hashes(data["files"])
            and not set(data["files"]) & set(APART)
            and path.read_bytes() == _text(data)  # as it is written, to the byte
        )
    except (TypeError, AttributeError, KeyError):
        fine = False
    if not fine:
        raise RunError(f"{path} is damaged: it is not a seal as Sordino writes it.")
    return dict(data)


def _read_private(path: Path) -> dict[str, Any]:
    """Return the manifest and the head of the ledger in a private seal, or raise RunError if it is damaged."""
    data = _json_of(path)
    try:
        job, entries, head = (data["ledger"][name] for name in HEAD)
        fine = set(data) == {"version", "public", "files", "ledger"} and set(data["ledger"]) == set(HEAD)
        fine = fine and isinstance(job, str) and isinstance(head, str) and type(entries) is int
        fine = fine and _hashes(data["files"]) and set(data["files"]) <= set(OWNERS)
    except (TypeError, AttributeError, KeyError):
        fine = False
    if not fine:
        raise RunError(f"{path} is damaged: it is not what Sordino writes beside a seal.")
    return {name: data[name] for name in ("public", "files", "ledger")}


def _hashes(files: Any) -> bool:
    """Return whether these are hashes by plain file names, none of which leads out of its folder."""
    return isinstance(files, dict) and all(NAME.match(name) and HEX.match(hash) for name, hash in files.items())


def _json_of(path: Path) -> Any:
    try:
        if not _plain(path) or path.stat().st_size > MOST:
            raise ValueError("it is not a plain file of at most 4 MB")
        return json.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise RunError(f"{path} is missing.") from error
    except (OSError, ValueError, RecursionError) as error:
        raise RunError(f"{path} is damaged: {error or type(error).__name__}.") from error


def _key(folder: RunFolder) -> bytes:
    """Return the secret key of a run; it is made when the run is sealed for the first time."""
    path = folder.private / KEY
    if path.is_file() and len(key := path.read_bytes()) == LENGTH:
        return key
    key, temporary = secrets.token_bytes(LENGTH), path.with_name(f"{KEY}.tmp")
    try:
        temporary.unlink(missing_ok=True)
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "wb") as file:
            file.write(key)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        raise RunError(f"cannot write {path}: {error.strerror}. Free some space, then try again.") from error
    return key


def _plain(path: Path) -> bool:
    """Return whether a path is a plain file: no link, pipe or device; FileNotFoundError if there is nothing."""
    return stat.S_ISREG(path.lstat().st_mode)


def _matches(path: Path, hash: str) -> bool:
    """Return whether a plain file has this hash."""
    try:
        return _plain(path) and _hash(path) == hash
    except OSError:
        return False


def _sealed(path: Path) -> str:
    """Return the hash of a file that is about to be sealed."""
    try:
        return _hash(path)
    except OSError as error:
        raise RunError(f"cannot seal the run: {path} cannot be read ({error.strerror or error}).") from error


def _text(data: Any) -> bytes:
    return (json.dumps(data, indent=2, allow_nan=False) + "\n").encode()  # as RunFolder.publish_json writes it


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, ALGORITHM).hexdigest()
