"""Messages between a server and a shuffler over a socket: batches, rows and refusals, as frames with a length.

A frame is a length of 4 bytes and as many bytes; a message is a format, a kind, and parts with a length each. Memory
grows with what has arrived, never with what was announced, and everything has to happen before one deadline.
"""

from __future__ import annotations

import json
import socket
import struct
import time
from collections.abc import Mapping, Sequence

from sordino.masking import wire
from sordino.masking.errors import MaskingError
from sordino.masking.session import Session

LENGTH = struct.Struct("<I")
PIECE = 1 << 16  # bytes that are read at a time
MOST_PARTS = 1 + 2 * wire.MOST_MEMBERS  # a session, and a number and a row for every member
LONGEST_SESSION = 4096  # bytes


def encode_batch(session: Session, sealed: Mapping[int, bytes]) -> bytes:
    """Return a batch as bytes."""
    head = {"federation": session.federation, "job": session.job, "round": session.round, "phase": session.phase}
    content = [json.dumps(head).encode()]
    for member, row in sorted(sealed.items()):
        content += [LENGTH.pack(member), row]
    return frame(wire.BATCH, content)


def decode_batch(data: bytes) -> tuple[Session, dict[int, bytes]]:
    """Return the session and the sealed rows of a batch."""
    content = parts(data, wire.BATCH)
    try:
        head = json.loads(content[0][:LONGEST_SESSION])
        if set(head) != {"federation", "job", "round", "phase"}:
            raise MaskingError("the batch does not name its session.")
        session = Session(**head)
        members = [LENGTH.unpack(part)[0] for part in content[1::2]]
    except (ValueError, TypeError, IndexError, RecursionError, struct.error) as error:
        raise MaskingError("the batch cannot be read.") from error
    rows = content[2::2]
    if len(rows) != len(members) or len(set(members)) < len(members) or len(members) > wire.MOST_MEMBERS:
        raise MaskingError("the batch holds two rows of one sender, or too many rows.")
    return session, dict(zip(members, rows, strict=True))


def frame(kind: int, parts: Sequence[bytes]) -> bytes:
    """Return a message of several parts."""
    return wire.FORMAT + bytes([kind]) + b"".join(LENGTH.pack(len(part)) + part for part in parts)


def parts(data: bytes, kind: int) -> list[bytes]:
    """Return the parts of a message of this kind."""
    head = wire.FORMAT + bytes([kind])
    if data[: len(head)] != head:
        raise MaskingError("a message of the shuffler is of another kind or version.")
    found: list[bytes] = []
    at = len(head)
    while at < len(data):
        if at + 4 > len(data) or at + 4 + (size := LENGTH.unpack_from(data, at)[0]) > len(data):
            raise MaskingError("a message of the shuffler ends too early.")
        if len(found) == MOST_PARTS:
            raise MaskingError(f"a message of the shuffler has more than {MOST_PARTS} parts.")
        found.append(data[at + 4 : at + 4 + size])
        at += 4 + size
    return found


def send(peer: socket.socket, data: bytes, until: float) -> None:
    """Send a message as one frame, before the time `until`."""
    peer.settimeout(_left(until))
    peer.sendall(LENGTH.pack(len(data)) + data)


def receive(peer: socket.socket, most: int, until: float) -> bytes:
    """Return a message of at most so many bytes, before the time `until`."""
    size = int(LENGTH.unpack(_exactly(peer, 4, until))[0])
    if size > most:
        raise MaskingError(f"a message of {size} bytes is refused: {most} are the most.")
    return _exactly(peer, size, until)


def _exactly(peer: socket.socket, size: int, until: float) -> bytes:
    out = bytearray()
    while len(out) < size:
        peer.settimeout(_left(until))
        piece = peer.recv(min(PIECE, size - len(out)))
        if not piece:
            raise MaskingError("a message of the shuffler ends too early.")
        out += piece
    return bytes(out)


def _left(until: float) -> float:
    left = until - time.monotonic()
    if left <= 0:
        raise TimeoutError("time is up")
    return left
