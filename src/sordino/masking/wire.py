"""The bytes of messages between parties: one canonical form, strict to read, with a limit on every size.

A message is a header (format, kind, session), fixed parts, and at most one table of records of one length, sorted by
the member in the first four bytes. Numbers are little-endian. Whoever reads a message checks its length before anything
is taken from it, so that no bytes of a peer make the reader allocate more than the message itself.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

from sordino.masking.errors import MaskingError
from sordino.masking.session import Session

FORMAT = b"SMK1"
KEYS, PEERS, SHARES, DEALT, UPLOAD, SURVIVORS, REVEALED, SEALED, BATCH, ROWS, REFUSAL = range(1, 12)
NAMES = ("", "keys", "peers", "shares", "dealt shares", "upload", "survivors", "revealed shares", "sealed row")
HEAD = len(FORMAT) + 1 + 32
MOST_MEMBERS = 10_000  # members of one sum
NUMBER = struct.Struct("<I")


def header(kind: int, session: Session) -> bytes:
    """Return the first bytes of a message."""
    return FORMAT + bytes([kind]) + session.digest


class ByteReader:
    """The unread part of a message; every error names the kind of message and nothing that it holds."""

    def __init__(self, data: bytes, kind: int, session: Session, most: int) -> None:
        self._what = f"the message '{NAMES[kind]}'"
        if not isinstance(data, bytes):
            raise MaskingError(f"{self._what} must be bytes, not {type(data).__name__}.")
        if len(data) > most:
            raise MaskingError(f"{self._what} has {len(data)} bytes, where at most {most} are allowed.")
        self._data, self._at = data, 0
        if self.take(len(FORMAT) + 1) != FORMAT + bytes([kind]):
            raise MaskingError(f"{self._what} is of another kind or version.")
        if self.take(32) != session.digest:
            raise MaskingError(f"{self._what} belongs to another federation, job, round or phase.")

    def take(self, size: int) -> bytes:
        """Return the next bytes."""
        if size > len(self._data) - self._at:
            raise MaskingError(f"{self._what} ends too early.")
        self._at += size
        return self._data[self._at - size : self._at]

    def number(self) -> int:
        """Return the next whole number, from 0 to 2^32 - 1."""
        return int(NUMBER.unpack(self.take(4))[0])

    def rest(self) -> memoryview:
        """Return all remaining bytes, without a copy."""
        at, self._at = self._at, len(self._data)
        return memoryview(self._data)[at:]

    def table(self, form: struct.Struct) -> dict[int, tuple[bytes, ...]]:
        """Return the records that fill the rest of the message, by member; members are in order, each at most once."""
        count = self.number()
        if count > MOST_MEMBERS or len(self._data) - self._at != count * form.size:
            raise MaskingError(f"{self._what} does not have the length that it announces.")
        rows: dict[int, tuple[bytes, ...]] = {}
        last = -1
        for member, *values in form.iter_unpack(self.rest()):
            if member <= last:
                raise MaskingError(f"{self._what} lists a member twice or out of order.")
            rows[member], last = tuple(values), member
        return rows

    def end(self) -> None:
        """Refuse a message with bytes behind its end."""
        if self._at != len(self._data):
            raise MaskingError(f"{self._what} has bytes behind its end.")


def table(form: struct.Struct, rows: Iterable[tuple[int | bytes, ...]]) -> bytes:
    """Return records as bytes, in the order of their members."""
    packed = [form.pack(*row) for row in sorted(rows, key=lambda row: row[0])]
    return NUMBER.pack(len(packed)) + b"".join(packed)


def most_bytes(form: struct.Struct, fixed: int = 0) -> int:
    """Return the largest size of a message with a table of such records."""
    return HEAD + fixed + 4 + MOST_MEMBERS * form.size
