"""The long-term identity of a client, and the roster by which others know it.

An identity is an Ed25519 key pair. The private key stays in a file at the client. Public keys are exchanged outside of
the federation (on paper, by e-mail, in the run file) and every party holds its own roster of them: a roster that came
from the server would let the server play every peer.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from sordino.masking.errors import MaskingError
from sordino.masking.secret_file import read_secret, write_secret
from sordino.masking.session import Session, joined

SIGNATURE = 64  # bytes
KIND = "identity"


@dataclass(frozen=True, repr=False)
class Identity:
    """The private key of a client, with which it signs."""

    secret: Ed25519PrivateKey

    @staticmethod
    def new() -> Identity:
        """Return a fresh identity."""
        return Identity(Ed25519PrivateKey.generate())

    @staticmethod
    def read(path: Path) -> Identity:
        """Read an identity from a file that only its owner can read."""
        return Identity(Ed25519PrivateKey.from_private_bytes(read_secret(path, KIND)))

    def write(self, path: Path) -> None:
        """Write the identity to a new file that only its owner can read."""
        write_secret(path, KIND, self.secret.private_bytes_raw())

    def __repr__(self) -> str:  # a key must not end up in a log
        return f"Identity({self.public})"

    @property
    def public(self) -> str:
        """Return the public key, as 64 hexadecimal digits."""
        return self.secret.public_key().public_bytes_raw().hex()

    def sign(self, purpose: str, session: Session, payload: bytes) -> bytes:
        """Return a signature that is valid for one purpose in one session only."""
        return self.secret.sign(_signed(purpose, session, payload))


class KeyRoster(Mapping[int, str]):
    """The public keys of all clients of a federation, by client number."""

    def __init__(self, keys: Mapping[int, str]) -> None:
        if not keys:
            raise MaskingError("a roster must name at least one client.")
        for member, key in keys.items():
            if isinstance(member, bool) or not isinstance(member, int) or not 0 <= member < 2**32:
                raise MaskingError(f"a roster lists clients by number from 0 to 2^32 - 1, not {member!r}.")
            if not isinstance(key, str) or not re.fullmatch("[0-9a-f]{64}", key):
                raise MaskingError(f"the public key of client {member} must have 64 hexadecimal digits in lower case.")
        if len(set(keys.values())) < len(keys):
            raise MaskingError("two clients of the roster have the same public key: each client needs its own.")
        self._keys = {member: keys[member] for member in sorted(keys)}
        self._loaded: dict[int, Ed25519PublicKey] = {}

    def __getitem__(self, member: int) -> str:
        return self._keys[member]

    def __iter__(self) -> Iterator[int]:
        return iter(self._keys)

    def __len__(self) -> int:
        return len(self._keys)

    def signed(self, member: int, purpose: str, session: Session, payload: bytes, signature: bytes) -> bool:
        """Return whether a member of the roster made this signature for this purpose in this session."""
        if member not in self._keys:
            return False
        try:
            if member not in self._loaded:
                self._loaded[member] = Ed25519PublicKey.from_public_bytes(bytes.fromhex(self._keys[member]))
            self._loaded[member].verify(signature, _signed(purpose, session, payload))
        except (InvalidSignature, ValueError):
            return False
        return True


def _signed(purpose: str, session: Session, payload: bytes) -> bytes:
    return joined("sordino masking signature 1", purpose, session.digest, payload)
