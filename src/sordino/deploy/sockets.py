"""The Unix socket between a site's daemon and its SuperNode: where it lies, and whether someone listens."""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
import stat
import tempfile
from pathlib import Path

from sordino.core.errors import RunError
from sordino.deploy.folder import SOCKET_LIMIT

NAME = "site.sock"


def place(site: Path) -> Path:
    """Return the path of the socket of a site; where the folder's own path is too long, one below /tmp."""
    path = site / "socket" / NAME
    if len(os.fsencode(path)) <= SOCKET_LIMIT:
        return path
    digest = hashlib.sha256(os.fsencode(site)).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"sordino-{os.getuid()}-{digest}" / NAME


def prepare(path: Path) -> None:
    """Make the folder of a socket, and remove what an earlier daemon left there; raise RunError if it is not ours."""
    path.parent.mkdir(mode=0o700, exist_ok=True)
    found = path.parent.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise RunError(f"{path.parent} is not a folder of yours: move it away.")
    path.unlink(missing_ok=True)


def clean(site: Path) -> None:
    """Remove a socket that lies below /tmp, and its folder."""
    path = place(site)
    if not path.is_relative_to(site):
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
            path.parent.rmdir()


def answers(path: Path) -> bool:
    """Return whether someone listens at the socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
        line.settimeout(1.0)
        try:
            line.connect(str(path))
        except OSError:
            return False
    return True
