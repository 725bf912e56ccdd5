"""Files with a 32-byte private key, which nobody but their owner can read."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

from sordino.masking.errors import MaskingError


def write_secret(path: Path, kind: str, secret: bytes) -> None:
    """Write a private key to a new file that only its owner can read; an existing file is never replaced."""
    text = f"sordino {kind} private key 1\n{secret.hex()}\n".encode()
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            os.fchmod(handle, 0o600)
            os.write(handle, text)
            os.fsync(handle)
        finally:
            os.close(handle)
    except FileExistsError as error:
        raise MaskingError(f"{path} exists: a private key is never replaced. Choose another file.") from error
    except OSError as error:
        raise MaskingError(f"cannot write the private key {path}: {error.strerror}.") from error


def read_secret(path: Path, kind: str) -> bytes:
    """Read a private key; refuse a file that others can read, or that is not a plain file of this user."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            facts = os.fstat(handle)
            text = os.read(handle, 1000) if stat.S_ISREG(facts.st_mode) else b""
        finally:
            os.close(handle)
    except OSError as error:
        raise MaskingError(f"cannot read the private key {path}: {error.strerror}.") from error
    if not stat.S_ISREG(facts.st_mode) or facts.st_uid != os.geteuid():
        raise MaskingError(f"the private key {path} must be a plain file that belongs to the user who runs this.")
    if facts.st_mode & 0o077:
        raise MaskingError(f"the private key {path} can be read or changed by others. Run: chmod 600 {path}")
    match = re.fullmatch(rf"sordino {re.escape(kind)} private key 1\n([0-9a-f]{{64}})\n", text.decode(errors="replace"))
    if match is None:
        raise MaskingError(f"{path} does not hold a {kind} private key of Sordino.")
    return bytes.fromhex(match[1])
