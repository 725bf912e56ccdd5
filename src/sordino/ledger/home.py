"""Location of the user's registry: SORDINO_HOME, else $XDG_DATA_HOME/sordino, else ~/.local/share/sordino.

registry/ledger.sqlite   the chain: budgets, plans, rounds
registry/units.sqlite    keyed hashes of all units in every data set; erasable, so not part of the chain
keys/units.key           their key: 32 random bytes, outside the folder that is copied or shared
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
from dataclasses import dataclass
from pathlib import Path

from sordino.core.errors import RunError

LENGTH = 32  # bytes of a key


def folder() -> Path:
    """Return the user's folder, which may not exist yet."""
    if named := os.environ.get("SORDINO_HOME"):
        return Path(named).absolute()
    shared = os.environ.get("XDG_DATA_HOME")
    try:
        return (Path(shared) if shared else Path.home() / ".local" / "share") / "sordino"
    except RuntimeError as error:  # the user has no home folder
        raise RunError(f"{error} Set SORDINO_HOME to a folder that can be written.") from error


def registry() -> Path:
    """Return the path of the ledger to which all jobs are charged unless they name another."""
    return folder() / "registry" / "ledger.sqlite"


def units_beside(ledger: Path) -> Path:
    """Return the path of the file with the unit sets of a ledger."""
    if ledger.absolute() == registry():
        return ledger.with_name("units.sqlite")
    return ledger.with_suffix(".units.sqlite")


def key_file() -> Path:
    """Return the path of the user's key."""
    return folder() / "keys" / "units.key"


def made(path: Path) -> Path:
    """Create the folder of a file, accessible by the user only, and return the path of the file."""
    try:
        for each in (folder(), path.parent):
            each.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not os.access(path.parent, os.W_OK | os.X_OK):
            raise PermissionError(13, "it cannot be written")
    except OSError as error:
        raise RunError(
            f"cannot keep the registry in {folder()}: {error.strerror}. Set SORDINO_HOME to a folder that can be "
            "written."
        ) from error
    return path


@dataclass(frozen=True)
class Key:
    """The secret key of the unit hashes."""

    secret: bytes

    @property
    def id(self) -> str:
        """A public name of the key; hashes can be compared only if it is the same."""
        return hashlib.blake2b(b"name", key=self.secret, digest_size=8).hexdigest()

    def derived(self, purpose: str) -> bytes:
        """Derive another key for one purpose only."""
        return hashlib.blake2b(purpose.encode(), key=self.secret, digest_size=32).digest()


def read_key(path: Path | None = None) -> Key | None:
    """Read a key, by default that of the user; return None if there is none."""
    path = path or key_file()
    try:
        secret = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        way = " Set SORDINO_HOME to a folder that can be used." if path == key_file() else ""
        raise RunError(f"cannot read the key {path}: {error.strerror}.{way}") from error
    if len(secret) != LENGTH:
        raise RunError(f"{path} is not a Sordino key: it has {len(secret)} bytes, not {LENGTH}.")
    return Key(secret)


def new_key() -> Key:
    """Create the user's key; if another process has just created one, return that."""
    path = made(key_file())
    write_key(Key(secrets.token_bytes(LENGTH)), path)
    key = read_key(path)
    if key is None:
        raise RunError(f"the key {path} vanished as soon as it was written.")
    return key


def write_key(key: Key, path: Path) -> bool:
    """Write a key, readable by its owner only; return False and change nothing if the file exists already."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            os.write(handle, key.secret)
            os.fsync(handle)
        finally:
            os.close(handle)
        os.link(temporary, path)  # atomic, and never replaces a file
    except FileExistsError:
        return False
    except OSError as error:
        raise RunError(f"cannot write the key {path}: {error.strerror}.") from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()
    return True
