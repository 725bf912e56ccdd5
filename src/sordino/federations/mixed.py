"""Rows behind a shuffler of its own: sealed by sites, opened and mixed by the shuffler, read by the server.

A row is a letter with the message of one client, padded to a length that follows from the form of the message. Its
session names the federation, the job, the round, the phase and the state that was trained on: the shuffler mixes only
rows of one session, so that a server that sends sites different states cannot tell their rows apart by them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor

from sordino.core.errors import RunError
from sordino.core.message import Message
from sordino.federations import letters
from sordino.masking.identity import Identity
from sordino.masking.sealed import seal
from sordino.masking.session import Session

STEP = 1024  # bytes; rows are padded to a multiple of it
NAME = "shuffler"


def session(federation: str, header: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Session:
    """Return the session of a row: header names job, round and phase; tensors are the state that the server sent."""
    digest = hashlib.sha256(letters.packed({}, tensors)).hexdigest()
    return Session(federation, str(header["job"]), int(header["round"]), f"{header['phase']} {digest}")


def sealed_row(message: Message, public: str, member: int, identity: Identity, at: Session) -> bytes:
    """Return the message of one client, sealed for the shuffler and signed by its site.

    Args:
        message: what the channel let through: one row without sender and weight.
        public: the public key of the shuffler.
        member: the number of the site in the roster.
        identity: the private key of the site.
        at: the session of the row.
    """
    if len(message) != 1 or message.ids is not None or message.weight is not None:
        raise RunError("a row for the shuffler is that of one client, without its number and without a weight.")
    row = letters.message_letter(message, {})
    return seal(row, padded(row), public, member, identity, at)


def padded(row: bytes) -> int:
    """Return the length that a row is padded to."""
    return -(-len(row) // STEP) * STEP


def expected(template: Message, at: Session) -> int:
    """Return the number of bytes of a sealed row whose message has the form of a template."""
    row = letters.message_letter(template, {})
    nobody = Identity.new()
    return len(seal(row, padded(row), PROBE, 0, nobody, at))


PROBE = (9).to_bytes(32, "little").hex()  # some public key: that of a row whose length alone matters


def read_rows(rows: Iterable[bytes], template: Message) -> list[Message]:
    """Return the messages in mixed rows; those that do not have the form of the template are left out."""
    out = []
    for row in rows:
        try:
            message = letters.message_of(*letters.unpacked(row))
        except RunError:
            continue
        fits = letters.alike(message, template, 1) is None and message.released == template.released
        if fits and message.ids is None:
            out.append(message)
    return out
