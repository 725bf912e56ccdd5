"""Sealed rows for a shuffler: encrypted to its key, of one length for everyone, and signed by their sender.

The box is X25519 with an ephemeral key, HKDF-SHA256 and ChaCha20-Poly1305, bound to the session and to both public
keys. The signature tells the shuffler that each row comes from another client of its roster; it is taken off before
rows leave the shuffler.

`box` and `unbox` serve for a second layer inside: a client that first boxes its row for the server hides it from the
shuffler, too (Bittau et al. 2017, "Prochlo").
"""

from __future__ import annotations

import hashlib

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from sordino.masking import wire
from sordino.masking.errors import MaskingError
from sordino.masking.identity import SIGNATURE, Identity, KeyRoster
from sordino.masking.keystream import agreed, derived
from sordino.masking.session import Session, joined

BOX_EXTRA = 32 + 16  # bytes that a box is longer than its content
SIGNED_ROW = "sealed row"
NONCE = bytes(12)  # a key encrypts one message only
LONGEST = 1 << 30  # bytes of a row


def box(content: bytes, public: bytes, session: Session) -> bytes:
    """Return content that only the owner of a public key can read, and that does not say who made it."""
    fresh = X25519PrivateKey.generate()
    ephemeral = fresh.public_key().public_bytes_raw()
    key = derived(agreed(fresh, public), session, "box", ephemeral, public)
    return ephemeral + ChaCha20Poly1305(key).encrypt(NONCE, content, None)


def unbox(sealed: bytes, secret: X25519PrivateKey, session: Session) -> bytes:
    """Return the content of a box that was made for this key and session."""
    if len(sealed) < BOX_EXTRA:
        raise MaskingError("a sealed box is too short.")
    ephemeral = sealed[:32]
    key = derived(agreed(secret, ephemeral), session, "box", ephemeral, secret.public_key().public_bytes_raw())
    try:
        return ChaCha20Poly1305(key).decrypt(NONCE, sealed[32:], None)
    except InvalidTag as error:
        raise MaskingError("a sealed box was not made for this key and round.") from error


def pad(row: bytes, length: int) -> bytes:
    """Return a row with its length in front, filled up to `length` bytes and 4 more."""
    if not 0 <= length <= LONGEST:
        raise MaskingError(f"a row for the shuffler has at most {LONGEST} bytes.")
    if len(row) > length:
        raise MaskingError("a row is longer than the common length of all rows.")
    return wire.NUMBER.pack(len(row)) + row + bytes(length - len(row))


def unpad(padded: bytes) -> bytes:
    """Return the row inside of its padding."""
    if len(padded) < 4:
        raise MaskingError("a sealed row is too short.")
    (size,) = wire.NUMBER.unpack(padded[:4])
    if size > len(padded) - 4 or any(padded[4 + size :]):
        raise MaskingError("a sealed row is not padded as agreed.")
    return padded[4 : 4 + size]


def seal(row: bytes, length: int, public: str, member: int, identity: Identity, session: Session) -> bytes:
    """Return a row that only the shuffler can read, signed by a client.

    Args:
        row: what the server shall get.
        length: the common length of all rows; shorter rows are padded.
        public: the public key of the shuffler, as 64 hexadecimal digits.
        member: the number of the client.
        identity: the client's long-term key.
        session: federation, job, round and phase.
    """
    key = public_key(public)
    closed = box(pad(row, length), key, session)
    signature = identity.sign(SIGNED_ROW, session, _signed(member, key, closed))
    return wire.header(wire.SEALED, session) + wire.NUMBER.pack(member) + signature + closed


def unseal(sealed: bytes, secret: X25519PrivateKey, member: int, roster: KeyRoster, session: Session) -> bytes:
    """Return the padded row of a client, after a check of its signature against the shuffler's own roster."""
    most = wire.HEAD + 4 + SIGNATURE + BOX_EXTRA + 4 + LONGEST
    reader = wire.ByteReader(sealed, wire.SEALED, session, most)
    if reader.number() != member:
        raise MaskingError(f"the sealed row of member {member} names another sender.")
    signature, closed = reader.take(SIGNATURE), bytes(reader.rest())
    payload = _signed(member, secret.public_key().public_bytes_raw(), closed)
    if not roster.signed(member, SIGNED_ROW, session, payload, signature):
        raise MaskingError(f"the sealed row of member {member} is not signed by it for this round.")
    return unbox(closed, secret, session)


def public_key(text: str) -> bytes:
    """Return the bytes of a public key of 64 hexadecimal digits."""
    try:
        key = bytes.fromhex(text)
    except (ValueError, TypeError) as error:
        raise MaskingError("the shuffler's public key must have 64 hexadecimal digits.") from error
    if len(key) != 32:
        raise MaskingError("the shuffler's public key must have 64 hexadecimal digits.")
    return key


def _signed(member: int, public: bytes, closed: bytes) -> bytes:
    return joined(member, public, hashlib.sha256(closed).digest())
