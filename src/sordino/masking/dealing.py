"""Shares of a member's two secrets, encrypted to every member of the cohort.

The two secrets are the seed of its private mask and its private key for pairwise masks. Each share is encrypted with
ChaCha20-Poly1305 under a key that dealer and receiver agree on for this one message, bound to session, cohort, dealer
and receiver. Beside it stands a tag for each share, a truncated hash by which the server recognises the share when the
receiver reveals it; the shares are uniform over more than 2^256 values, so that their hashes do not reveal them.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping
from dataclasses import dataclass

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from sordino.masking import shamir, wire
from sordino.masking.cohort import Cohort
from sordino.masking.errors import MaskingError
from sordino.masking.keystream import agreed, derived
from sordino.masking.session import joined

SEED, KEY = 0, 1  # the two kinds of secrets
TAG = 16
BOX = 2 * shamir.SIZE + 16  # bytes of an encrypted pair of shares
RECORD = struct.Struct(f"<I{TAG}s{TAG}s{BOX}s")  # receiver, a tag for each kind, encrypted shares
NONCE = bytes(12)  # a key encrypts one message only


@dataclass(frozen=True)
class DealtShares:
    """What the server keeps of the shares that one member dealt."""

    commitment: bytes  # hash of the seed
    tags: Mapping[int, tuple[bytes, bytes]]  # by receiver, for each kind
    boxes: Mapping[int, bytes]  # by receiver


def deal(cohort: Cohort, member: int, secret: X25519PrivateKey, seed: bytes, mask_key: bytes) -> bytes:
    """Return the message of a member with shares of its seed and its mask key for everyone in the cohort."""
    points = cohort.points
    shares = [shamir.deal(value, cohort.threshold, len(points)) for value in (seed, mask_key)]
    rows: list[tuple[int | bytes, ...]] = []
    for receiver, point in points.items():
        pair = [kind[point - 1] for kind in shares]
        tags = [tag(cohort, member, receiver, kind, share) for kind, share in enumerate(pair)]
        box = _cipher(cohort, member, receiver, secret, receiver).encrypt(NONCE, b"".join(pair), None)
        rows.append((receiver, *tags, box))
    head = wire.header(wire.SHARES, cohort.session) + wire.NUMBER.pack(member)
    return head + commitment(cohort, member, seed) + wire.table(RECORD, rows)


def read_dealt(reply: bytes, cohort: Cohort, member: int) -> DealtShares:
    """Return what a member dealt; refuse a message that does not fit the cohort."""
    reader = wire.ByteReader(reply, wire.SHARES, cohort.session, wire.most_bytes(RECORD, 36))
    if reader.number() != member:
        raise MaskingError("the shares name another dealer than their sender.")
    promised = reader.take(32)
    rows = reader.table(RECORD)
    if list(rows) != list(cohort.keys):
        raise MaskingError("the shares are not addressed to exactly the members of the cohort.")
    return DealtShares(
        promised, {r: (row[0], row[1]) for r, row in rows.items()}, {r: row[2] for r, row in rows.items()}
    )


def open_box(cohort: Cohort, dealer: int, member: int, secret: X25519PrivateKey, box: bytes) -> tuple[bytes, bytes]:
    """Return the two shares that a dealer encrypted to a member, or refuse what that dealer did not send to it."""
    try:
        plain = _cipher(cohort, dealer, member, secret, dealer).decrypt(NONCE, box, None)
    except InvalidTag as error:
        raise MaskingError(f"the shares from member {dealer} were not made by it for this cohort.") from error
    seed, key = plain[: shamir.SIZE], plain[shamir.SIZE :]
    shamir.number(seed)
    shamir.number(key)
    return seed, key


def tag(cohort: Cohort, dealer: int, receiver: int, kind: int, share: bytes) -> bytes:
    """Return the hash by which the server recognises a share."""
    return hashlib.sha256(joined("sordino share 1", cohort.digest, dealer, receiver, kind, share)).digest()[:TAG]


def commitment(cohort: Cohort, member: int, seed: bytes) -> bytes:
    """Return the hash by which the server recognises a member's seed."""
    return hashlib.sha256(joined("sordino seed 1", cohort.digest, member, seed)).digest()


def _cipher(cohort: Cohort, dealer: int, receiver: int, secret: X25519PrivateKey, other: int) -> ChaCha20Poly1305:
    shared = agreed(secret, cohort.keys[other][0])
    return ChaCha20Poly1305(derived(shared, cohort.session, "share", cohort.digest, dealer, receiver))
