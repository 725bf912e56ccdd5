"""Keyed hashes of units: without the key nobody can recognise a person in them or test guesses.

The hash of a unit is the 128-bit CBC-MAC with AES-256 over its words. Every kind and width has its own key, so that all
messages under one key have the same length, for which CBC-MAC is a pseudorandom function (Bellare, Kilian and Rogaway
2000). The last block is the number of the copy of a row: the k-th copy is a unit of its own. Rows are encrypted in
batches.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from sordino.data.canonical import Form, Words
from sordino.ledger.home import Key

Macs = NDArray[np.uint64]  # [units, 2]
Mask = NDArray[np.bool_]
ROWS = 1 << 14  # rows per batch


class _Cipher:
    def __init__(self, secret: bytes) -> None:
        self._encryptor = Cipher(algorithms.AES(secret), modes.ECB()).encryptor()

    def __call__(self, blocks: Macs) -> Macs:
        """Encrypt every 128-bit block on its own."""
        text = np.ascontiguousarray(blocks)
        return np.frombuffer(self._encryptor.update(text.view(np.uint8).reshape(-1).data), np.uint64).reshape(-1, 2)


def of_form(form: Form, key: Key) -> tuple[Macs, int]:
    """Return the hashes of all rows, and the number of distinct rows."""
    out = np.empty((form.rows, 2), np.uint64)
    cipher = None
    for start in range(0, form.rows, ROWS):
        words = form.block(start, min(start + ROWS, form.rows))
        cipher = cipher or _Cipher(key.derived(f"row {form.kind} {words.shape[1]}"))
        out[start : start + len(words)] = _chained(words, cipher)
    copies = _copies(out)
    if cipher is None:
        return out, 0
    numbers = np.stack([copies, np.zeros_like(copies)], 1)
    for start in range(0, form.rows, ROWS):
        part = slice(start, start + ROWS)
        out[part] = cipher(out[part] ^ numbers[part])
    return out, int((copies == 0).sum())


def of_copy(form: Form, key: Key, copy: int) -> Macs:
    """Return the hashes of a few rows as the copies of this number, counted from 0."""
    words = form.block(0, form.rows)
    cipher = _Cipher(key.derived(f"row {form.kind} {words.shape[1]}"))
    return cipher(_chained(words, cipher) ^ np.array([[copy, 0]], np.uint64))


def of_ids(kind: str, names: Sequence[str], key: Key) -> Macs:
    """Return the hashes of the distinct ids of users or clients."""
    texts = [hashlib.blake2b(name.encode(), digest_size=16).digest() for name in sorted(set(names))]
    words = np.frombuffer(b"".join(texts), np.uint64).reshape(-1, 2)
    return _Cipher(key.derived(f"id {kind}"))(words)


def of_whole(kind: str, digest: bytes, key: Key) -> Macs:
    """Return the hash of a data set as a whole."""
    found = hashlib.blake2b(digest, key=key.derived(f"whole {kind}"), digest_size=16).digest()
    return np.frombuffer(found, np.uint64).reshape(1, 2)


def _chained(words: Words, cipher: _Cipher) -> Macs:
    """Compute CBC over the words of every row, two per block, without the last block."""
    if words.shape[1] % 2:
        words = np.concatenate([words, np.zeros((len(words), 1), np.uint64)], axis=1)
    found = np.zeros((len(words), 2), np.uint64)
    for i in range(0, words.shape[1], 2):
        found = cipher(found ^ words[:, i : i + 2])
    return found


def _copies(rows: Macs) -> Words:
    """Return, for each row, the number of equal rows before it."""
    order = np.argsort(rows[:, 0], kind="stable")
    first = rows[order, 0]
    if not (first[1:] == first[:-1]).any():
        return np.zeros(len(rows), np.uint64)
    order = np.lexsort((rows[:, 1], rows[:, 0]))
    ranked = rows[order]
    new = np.concatenate([[True], (ranked[1:] != ranked[:-1]).any(axis=1)])
    start = np.maximum.accumulate(np.where(new, np.arange(len(rows)), 0))
    out = np.empty(len(rows), np.uint64)
    out[order] = np.arange(len(rows)) - start
    return out


def order(macs: Macs) -> NDArray[np.int64]:
    """Return the order in which a set of hashes is stored."""
    return np.argsort(macs[:, 0], kind="stable")


def among(asked: Macs, stored: Macs) -> Mask:
    """Return which of the hashes are among the stored ones."""
    if not len(stored) or not len(asked):
        return np.zeros(len(asked), np.bool_)
    held = stored if (stored[1:, 0] >= stored[:-1, 0]).all() else stored[order(stored)]
    by = order(asked)
    wanted = asked[by]
    at = np.searchsorted(held[:, 0], wanted[:, 0])
    found = np.zeros(len(asked), np.bool_)
    open_ = at < len(held)
    while open_.any():  # once, unless two hashes agree in their first half
        place = np.minimum(at, len(held) - 1)
        open_ &= held[place, 0] == wanted[:, 0]
        hit = open_ & (held[place, 1] == wanted[:, 1])
        found[by[hit]] = True
        open_ &= ~hit
        at = at + 1
        open_ &= at < len(held)
    return found
