"""Exact sampling of integer noise by inversion: a table of cumulative probabilities and a uniform word.

The probabilities are computed with integers of 256 binary digits and stored with 128; a draw compares a 64-bit word
with their upper halves and asks for a second word only if they are equal. There is no floating-point arithmetic between
the words and the integers, so the attack of Mironov (2012), "On significance of the least significant bits", has
nothing to exploit. What remains is one number: `distance`, the total variation distance of a draw from the distribution
that it represents.

Every distribution here is symmetric and log-concave; it is given by the ratios w(k+1)/w(k), k >= 0, which never
increase.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from sordino.core.errors import SpecError
from sordino.core.rng import RowStream, Stream

Ints = NDArray[np.int64]
Words = NDArray[np.uint64]

BITS = 256  # fractional bits of a weight
ONE = 1 << BITS
TAIL = ONE >> 131  # weight that may be truncated on either side, relative to the middle weight
LONGEST = 1 << 20  # largest number of integers on either side: a Gaussian of scale 2^16 needs 873,000
BLOCK = 1 << 16  # words drawn at once; all arrays of a block fit into the cache
GUIDE = 16  # leading bits of a word, which often suffice to decide
THREADS = 2


@dataclass(frozen=True, eq=False)
class InversionTable:
    """A table for inversion: a draw is `lowest` + the number of thresholds not above a uniform 128-bit number."""

    lowest: int
    upper: Words  # upper 64 bits of the thresholds, ascending
    lower: Words  # lower 64 bits of the thresholds
    guide: Ints = field(init=False, repr=False)  # leading bits of a word -> the number of thresholds, or -1: undecided

    def __post_init__(self) -> None:
        edges = np.arange(1 << GUIDE, dtype=np.uint64) << np.uint64(64 - GUIDE)
        first = np.searchsorted(self.upper, edges, side="left").astype(np.int64)
        after = np.append(first[1:], len(self.upper))
        object.__setattr__(self, "guide", np.where(first == after, first, -1))  # -1: a threshold lies in the cell

    @property
    def distance(self) -> float:
        """Return the total variation distance of one draw from the distribution.

        Every threshold may be off by 2^-128, and the truncated tails weigh less than that.
        """
        return (len(self.upper) + 2) * 2.0**-128

    def probabilities(self) -> tuple[list[int], list[Fraction]]:
        """Return the outcomes and their exact probabilities under this table."""
        cuts = [0, *((int(h) << 64) + int(v) for h, v in zip(self.upper, self.lower, strict=True)), 1 << 128]
        mass = [Fraction(b - a, 1 << 128) for a, b in pairwise(cuts)]
        return list(range(self.lowest, self.lowest + len(mass))), mass

    def draw(self, rng: RowStream, n: int) -> Ints:
        """Return independent draws [clients, n].

        Row i depends only on its client, and nothing depends on the number of threads.
        """
        out = np.empty((len(rng.ids), n), dtype=np.int64)
        streams = [rng.stream.at("block", start) for start in range(0, n, BLOCK)]
        jobs = [(row, stream, b * BLOCK) for row in range(len(out)) for b, stream in enumerate(streams)]

        def fill(job: tuple[int, Stream, int]) -> None:
            row, stream, start = job
            self._invert(stream, int(rng.ids[row]), out[row, start : start + BLOCK])

        if len(jobs) == 1:
            fill(jobs[0])
        else:
            with ThreadPoolExecutor(THREADS) as pool:
                for _ in pool.map(fill, jobs):
                    pass
        return out

    def _invert(self, stream: Stream, client: int, out: Ints) -> None:
        words = stream.words(len(out), client)
        np.take(self.guide, (words >> np.uint64(64 - GUIDE)).view(np.int64), out=out)
        close = np.flatnonzero(out < 0)
        near = words[close]
        positions = np.searchsorted(self.upper, near, side="left")
        out[close] = positions
        inside = positions < len(self.upper)
        equal = inside & (self.upper[np.where(inside, positions, 0)] == near)
        for at, word in zip(close[equal].tolist(), near[equal], strict=True):
            first, last = (int(np.searchsorted(self.upper, word, side=s)) for s in ("left", "right"))
            second = stream.at("tie", at).words(1, client)
            out[at] = first + int(np.searchsorted(self.lower[first:last], second[0], side="right"))
        out += self.lowest


def symmetric(ratios: Iterator[int], what: str) -> InversionTable:
    """Return the table of the distribution with w(0) = 1, w(k+1) = w(k) * ratio(k), w(-k) = w(k).

    The tails are truncated where the rest, bounded by a geometric series, weighs less than 2^-131.

    Args:
        ratios: ratio(0), ratio(1), ... as multiples of 2^-256.
        what: name of the noise, for error messages.
    """
    weights = [ONE]
    for ratio in ratios:
        following = weights[-1] * ratio >> BITS
        if following * ONE < TAIL * (ONE - ratio):  # following / (1 - ratio) bounds the rest of the tail
            break
        weights.append(following)
        if len(weights) > LONGEST:
            raise too_wide(what)
    total, below, cuts = 2 * sum(weights) - ONE, 0, []
    for weight in reversed(weights):
        below += weight
        cuts.append(max(1, (below << 128) // total))
    cuts.pop()  # P(X <= 0) follows from P(X <= -1), like everything above it
    cuts += [(1 << 128) - cut for cut in reversed(cuts)]
    upper, lower = ([cut >> 64 for cut in cuts], [cut & (2**64 - 1) for cut in cuts])
    return InversionTable(1 - len(weights), np.array(upper, dtype=np.uint64), np.array(lower, dtype=np.uint64))


def too_wide(what: str) -> SpecError:
    """Return the error for noise that needs more than LONGEST integers on either side."""
    return SpecError(
        f"{what} noise spreads over more than {LONGEST} integers on either side; use a coarser lattice "
        "(a larger granularity), so that the noise is fewer steps wide."
    )


def exp_minus(x: Fraction) -> int:
    """Return e^-x for x >= 0 as a multiple of 2^-256, with an error of less than 2^9 such multiples.

    Computed by the series of e^-(x / 2^s) with x / 2^s < 1/16, followed by s squarings, with 64 digits more than are
    returned.
    """
    if x > BITS:
        return 0
    unit, squarings = 1 << (BITS + 64), max(0, int(x).bit_length() + 4)
    small = (x.numerator << (BITS + 64)) // (x.denominator << squarings)
    term, total, k = unit, unit, 0
    while term:
        k += 1
        term = term * small // (k << (BITS + 64))
        total += -term if k % 2 else term
    for _ in range(squarings):
        total = total * total >> (BITS + 64)
    return total >> 64
