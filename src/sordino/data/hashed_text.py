"""Text as counts of hashed words (and pairs of neighbouring words), without a vocabulary.

Every word is hashed to one of a declared number of buckets and to a sign; the counts of a record are damped by
log(1 + count) and scaled to length 1. Weinberger et al. (2009), "Feature hashing for large scale multitask learning",
arXiv:0902.2206, Section 2: the sign makes inner products unbiased. The hash is fixed in the code, so that a record's
numbers depend on its own text alone; a vocabulary or word frequencies of the data would be a release of their own.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from sordino.data import dense

WORD = re.compile(r"\w+")
BUCKETS, MOST_BUCKETS = 4096, 2**20


@dataclass(frozen=True)
class Text:
    """A column of free text."""

    buckets: int = BUCKETS
    pairs: bool = False  # count pairs of neighbouring words as well
    missing: str | None = None  # "drop": rows without a text are left out; otherwise they have no words

    def encode(self, name: str, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return one row of length 1 per text [texts, buckets]; a text without any word gives zeros."""
        dense.require(f"column {name!r}", len(texts), self.buckets)
        out = np.zeros((len(texts), self.buckets), np.float32)
        places: dict[str, tuple[int, int]] = {}
        for row, text in zip(out, texts, strict=True):
            for token in self._tokens(text):
                if token not in places:
                    places[token] = self._place(token)
                bucket, sign = places[token]
                row[bucket] += sign
        np.multiply(np.sign(out), np.log1p(np.abs(out)), out=out)
        length = np.linalg.norm(out, axis=1, keepdims=True)
        np.divide(out, length, out=out, where=length > 0)
        return out

    def _tokens(self, text: str) -> Iterator[str]:
        words = WORD.findall(text.casefold())
        yield from words
        if self.pairs:
            yield from (f"{a} {b}" for a, b in pairwise(words))

    def _place(self, token: str) -> tuple[int, int]:
        number = int.from_bytes(hashlib.blake2b(token.encode("utf-8", "replace"), digest_size=8).digest(), "little")
        return (number >> 1) % self.buckets, 1 if number & 1 else -1
