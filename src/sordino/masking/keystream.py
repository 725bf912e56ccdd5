"""Masks: uniform words modulo a power of two from AES-256 in counter mode, with keys that are used once.

A mask key is derived by HKDF-SHA256 (RFC 5869) from a shared or private secret, and is bound to the session, to the
purpose (a pair of members, or one member alone), to what all members agreed on, and to the field. The low bits of a
uniform word are uniform modulo 2^bits, so that a mask takes every value of the ring, the largest included.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from sordino.masking.errors import MaskingError
from sordino.masking.fields import Layout, Words
from sordino.masking.session import Session, joined

CHUNK = 1 << 18  # bytes of keystream at a time; they stay in the cache
ZEROS = bytes(CHUNK)


@dataclass(frozen=True)
class Binding:
    """What a mask is bound to."""

    session: Session
    agreement: bytes  # digest of what the members agreed on
    member: int  # the member that carries the mask


def derived(secret: bytes, session: Session, *purpose: str | int | bytes) -> bytes:
    """Return a key of 32 bytes for one purpose in one session."""
    return HKDF(hashes.SHA256(), 32, session.digest, joined("sordino masking key 1", *purpose)).derive(secret)


def agreed(secret: X25519PrivateKey, public: bytes) -> bytes:
    """Return the secret that two key pairs share; refuse a public key that would give everyone the same."""
    try:
        return secret.exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError as error:
        raise MaskingError("a peer's public key is not valid.") from error


def add_keystream(words: Words, key: bytes, sign: int) -> None:
    """Add the keystream of a key to words, or subtract it, in place and modulo the size of the words."""
    cipher = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
    room = bytearray(CHUNK + 16)  # the cipher asks for extra space
    step = CHUNK // words.itemsize
    for start in range(0, len(words), step):
        part = words[start : start + step]
        size = cipher.update_into(memoryview(ZEROS)[: part.nbytes], room)
        stream = np.frombuffer(room, words.dtype, size // words.itemsize)
        if sign > 0:
            part += stream
        else:
            part -= stream


def add_private_mask(words: Mapping[str, Words], layout: Layout, seed: bytes, bound: Binding, sign: int = 1) -> None:
    """Add the private mask of a member to its words, or take it off with sign -1."""
    for field in layout:
        key = derived(seed, bound.session, "private mask", bound.agreement, bound.member, field.name, field.bits)
        add_keystream(words[field.name], key, sign)


def add_pair_mask(
    words: Mapping[str, Words], layout: Layout, secret: bytes, bound: Binding, other: int, sign: int = 1
) -> None:
    """Add the mask that a member shares with another to its words; the lower of the two adds, the higher subtracts.

    Args:
        words: what the mask is added to, in place.
        layout: the fields of the words.
        secret: what the two mask keys agree on.
        bound: the member whose mask it is.
        other: the other member.
        sign: -1 takes the mask off again.
    """
    low, high = sorted((bound.member, other))
    for field in layout:
        key = derived(secret, bound.session, "pair mask", bound.agreement, low, high, field.name, field.bits)
        add_keystream(words[field.name], key, sign if bound.member == low else -sign)
