"""Keyed hashes of units: without the key nobody can recognise a person in them or test guesses.

The hash of a unit is the 128-bit CBC-MAC with AES-256 over its words. Every kind and width has its own key, so that all
messages under one key have the same length, for which CBC-MAC is a pseudorandom function (Bellare, Kilian and Rogaway
2000). The last block is the number of the copy of a row: the k-th copy is a unit of its own. Rows are encrypted in
batches.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

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
    out, cipher = _states(form, key)
    copies = _copies(out)
    if cipher is None:
        return out, 0
    for start in range(0, form.rows, ROWS):
        part = slice(start, start + ROWS)
        out[part] = _finished(out[part], copies[part], cipher)
    return out, int((copies == 0).sum())


def last_copies(form: Form, key: Key, stored: Macs) -> Macs:
    """Return the hashes of the last stored copies of all rows: the last k for k equal rows, if so many are stored.

    Copies of a row are stored under the numbers 0, 1, 2, ...; the first number that is missing ends them. They are
    counted for all rows at once, in steps of 1, 2, 4, ... copies.
    """
    states, cipher = _states(form, key)
    if cipher is None:
        return states
    distinct, times = np.unique(states, axis=0, return_counts=True)
    counts = np.zeros(len(distinct), np.int64)  # stored copies of each distinct row
    rows, step = np.arange(len(distinct)), 1
    while len(rows):
        copies = counts[rows, None] + np.arange(step)
        asked = _finished(np.repeat(distinct[rows], step, axis=0), copies.reshape(-1), cipher)
        present = among(asked, stored).reshape(-1, step)
        run = np.logical_and.accumulate(present, axis=1).sum(axis=1)
        counts[rows] += run
        rows, step = rows[run == step], 2 * step
    taken = np.minimum(times, counts)
    first = np.cumsum(taken) - taken  # index of the first hash of each distinct row in the result
    copies = np.arange(taken.sum()) + np.repeat(counts - taken - first, taken)
    return _finished(np.repeat(distinct, taken, axis=0), copies, cipher)


def of_ids(kind: str, names: Sequence[str], key: Key) -> Macs:
    """Return the hashes of the distinct ids of users or clients."""
    texts = [hashlib.blake2b(name.encode(), digest_size=16).digest() for name in sorted(set(names))]
    words = np.frombuffer(b"".join(texts), np.uint64).reshape(-1, 2)
    return _Cipher(key.derived(f"id {kind}"))(words)


def of_whole(kind: str, digest: bytes, key: Key) -> Macs:
    """Return the hash of a data set as a whole."""
    mac = hashlib.blake2b(digest, key=key.derived(f"whole {kind}"), digest_size=16).digest()
    return np.frombuffer(mac, np.uint64).reshape(1, 2)


def _states(form: Form, key: Key) -> tuple[Macs, _Cipher | None]:
    """Return the hashes of all rows before their last block, and the cipher; it is None if there are no rows."""
    states = np.empty((form.rows, 2), np.uint64)
    cipher = None
    for start in range(0, form.rows, ROWS):
        words = form.block(start, min(start + ROWS, form.rows))
        cipher = cipher or _Cipher(key.derived(f"row {form.kind} {words.shape[1]}"))
        states[start : start + len(words)] = _chained(words, cipher)
    return states, cipher


def _finished(states: Macs, copies: NDArray[Any], cipher: _Cipher) -> Macs:
    """Encrypt the last block, which is the number of the copy, counted from 0."""
    return cipher(states ^ np.stack([copies, np.zeros_like(copies)], 1).astype(np.uint64))


def _chained(words: Words, cipher: _Cipher) -> Macs:
    """Compute CBC over the words of every row, two per block, without the last block."""
    if words.shape[1] % 2:
        words = np.concatenate([words, np.zeros((len(words), 1), np.uint64)], axis=1)
    state = np.zeros((len(words), 2), np.uint64)
    for i in range(0, words.shape[1], 2):
        state = cipher(state ^ words[:, i : i + 2])
    return state


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
    matches = np.zeros(len(asked), np.bool_)
    open_ = at < len(held)
    while open_.any():  # once, unless two hashes agree in their first half
        place = np.minimum(at, len(held) - 1)
        open_ &= held[place, 0] == wanted[:, 0]
        hit = open_ & (held[place, 1] == wanted[:, 1])
        matches[by[hit]] = True
        open_ &= ~hit
        at = at + 1
        open_ &= at < len(held)
    return matches
