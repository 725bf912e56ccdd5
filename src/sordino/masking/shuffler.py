"""The shuffler as a party of its own: it opens sealed rows, mixes them and hands them on without their senders.

It must not collude with the server: it sees who sent which row (unless rows are boxed for the server inside), and the
server sees everything but the order. It trusts its own roster, its own number of reports and its own register of
finished batches, and nothing that the server says.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from sordino.core.errors import SpecError
from sordino.masking.errors import MaskingError
from sordino.masking.identity import KeyRoster
from sordino.masking.once import Once
from sordino.masking.sealed import unpad, unseal
from sordino.masking.secret_file import read_secret, write_secret
from sordino.masking.session import Session

KIND = "shuffler"


class RowShuffler:
    """A shuffler with its key, its roster and its register of finished batches."""

    def __init__(self, secret: X25519PrivateKey, federation: str, roster: KeyRoster, least: int, once: Once) -> None:
        """Prepare a shuffler.

        Args:
            secret: its private key.
            federation: the one federation that it mixes for.
            roster: the public keys of all clients, which did not come from the server.
            least: the least number of reports in a batch.
            once: its durable register of finished batches.
        """
        if isinstance(least, bool) or not isinstance(least, int) or not 2 <= least <= len(roster):
            raise SpecError(
                f"a shuffler needs from 2 to {len(roster)} reports of its roster as the least, not {least!r}."
            )
        self._secret, self._federation, self._roster = secret, federation, roster
        self._least, self._once = least, once

    @property
    def public(self) -> str:
        """Return the public key, as 64 hexadecimal digits."""
        return self._secret.public_key().public_bytes_raw().hex()

    def shuffle(self, session: Session, sealed: Mapping[int, bytes]) -> list[bytes]:
        """Return the rows of a batch in a secret random order; refuse a second batch of the same session.

        A batch that is refused for what it holds may be sent again without it; once rows were returned, or the register
        was written, the session is over.

        Args:
            session: federation, job, round and phase.
            sealed: the sealed row of every sender.
        """
        if session.federation != self._federation:
            raise MaskingError("the batch belongs to another federation than this shuffler.")
        if len(sealed) < self._least:
            raise MaskingError(f"a batch of {len(sealed)} reports is refused: {self._least} are the least.")
        if len({len(row) for row in sealed.values()}) > 1:
            raise MaskingError("the sealed rows of a batch do not have one length.")
        rows = [unpad(unseal(row, self._secret, m, self._roster, session)) for m, row in sorted(sealed.items())]
        if len({len(row) for row in rows}) > 1:
            raise MaskingError("the rows of a batch do not have one length.")
        batch = hashlib.sha256(b"".join(hashlib.sha256(row).digest() for _, row in sorted(sealed.items()))).digest()
        self._once.claim(f"shuffled {session.digest.hex()}", batch, again=False)  # before any row leaves
        secrets.SystemRandom().shuffle(rows)
        return rows


def new_shuffler_key(path: Path) -> str:
    """Write a fresh private key for a shuffler to a new file, and return its public key."""
    secret = X25519PrivateKey.generate()
    write_secret(path, KIND, secret.private_bytes_raw())
    return secret.public_key().public_bytes_raw().hex()


def read_shuffler_key(path: Path) -> X25519PrivateKey:
    """Read the private key of a shuffler from a file that only its owner can read."""
    return X25519PrivateKey.from_private_bytes(read_secret(path, KIND))
