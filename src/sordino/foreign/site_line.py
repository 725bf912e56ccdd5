"""The line from the mod of an app to the daemon of a site, `sordino site`, which decides what leaves."""

from __future__ import annotations

import socket
import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sordino.core.errors import RunError, SpecError
from sordino.foreign import frames
from sordino.foreign.request import TrainRequest, renamed

SIGNATURE = 64  # bytes in front of an answer; the signature is for servers that do not trust the node
LIMIT = 4 << 30  # bytes of an answer
PATIENCE = 3600.0  # seconds until an answer must have arrived
PIECE = 1 << 20
LONGEST = 1000  # characters of a refusal


class SiteRefusal(SpecError):  # noqa: N818 (it is an answer, not a fault)
    """The daemon of a site refused a request; its text is made from the request and the policy alone."""


def trained(request: TrainRequest, path: str, seconds: float = PATIENCE) -> dict[str, NDArray[np.float32]]:
    """Let a site train, and return the update that its daemon lets out.

    Raises:
        SiteRefusal: if the daemon refuses, with its reason.
        RunError: if the answer is no update; OSError if there is no answer.
    """
    header, arrays = frames.unpacked(_asked(request.frame(), path, seconds)[SIGNATURE:])
    if isinstance(text := header.get("refused", header.get("error")), str):
        raise SiteRefusal(text[:LONGEST])
    update: dict[str, Any] = renamed(arrays, list(request.arrays))
    if any(u.dtype != np.float32 or u.shape != request.arrays[n].shape for n, u in update.items()):
        raise RunError("the site sent no update.")
    return update


def _asked(content: bytes, path: str, seconds: float) -> bytes:
    """Send a length of 8 bytes and the content to a Unix socket; return what comes back in the same form."""
    end = time.monotonic() + seconds
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
        line.settimeout(seconds)
        line.connect(path)
        line.sendall(len(content).to_bytes(8, "big"))
        line.sendall(content)
        length = int.from_bytes(_received(line, 8, end), "big")
        if length > LIMIT:
            raise RunError("the answer of the site is too long.")
        return _received(line, length, end)


def _received(line: socket.socket, length: int, end: float) -> bytes:
    out = bytearray()
    while len(out) < length:
        line.settimeout(max(1e-3, end - time.monotonic()))
        piece = line.recv(min(PIECE, length - len(out)))
        if not piece:
            raise ConnectionError
        out += piece
    return bytes(out)
