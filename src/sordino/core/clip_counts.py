"""Counting of what clips shorten: how many contributions there were, how many were too long, and how long they were.

Clips are everywhere below a method, so the counts are not passed along: a clip calls `note`, which counts for whoever
is `counting` in this thread, and does nothing otherwise. Counts depend on private data; they are for the owner alone.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from torch import Tensor


@dataclass
class ClipCounts:
    """Counts over any number of clips."""

    contributions: int = 0  # gradients of records, or messages of clients, that a clip looked at
    shortened: int = 0
    lengths: float = 0.0  # sum of their norms before the clip, in bounds; one that is not finite does not count
    finite: int = 0

    def add(self, other: ClipCounts) -> None:
        """Add the counts of others."""
        self.contributions += other.contributions
        self.shortened += other.shortened
        self.lengths += other.lengths
        self.finite += other.finite

    def take(self) -> ClipCounts:
        """Return the counts and begin anew."""
        taken = replace(self)
        self.contributions, self.shortened, self.lengths, self.finite = 0, 0, 0.0, 0
        return taken


class _Here(threading.local):
    counts: ClipCounts | None = None


_HERE = _Here()


@contextmanager
def counting(counts: ClipCounts | None) -> Iterator[None]:
    """Count all clips that this thread makes inside the block; None counts nothing."""
    before, _HERE.counts = _HERE.counts, counts
    try:
        yield
    finally:
        _HERE.counts = before


def note(norms: Tensor, bound: float | Tensor) -> None:
    """Count norms that a clip is about to compare with its bound; on a GPU nothing is counted, since it would wait."""
    counts = _HERE.counts
    if counts is None or norms.device.type != "cpu":
        return
    lengths = (norms.double() / bound).flatten()
    usual = lengths[lengths.isfinite()]
    counts.contributions += len(lengths)
    counts.shortened += len(lengths) - int((lengths <= 1).sum())
    counts.lengths += float(usual.sum())
    counts.finite += len(usual)
