"""Private count-mean sketch (CMS).  Apple Differential Privacy Team (2017), "Learning with privacy at scale".

The client draws one of k public hash functions, writes -1 in all of m columns except for a 1 in the item's column, and
flips each sign with probability 1/(1 + e^{eps/2}). El Ouadrhiri and Abdelhadi, Section IV-B, print 1/(1 + e^eps/2),
whose epsilon is 2 |eps - ln 2|, which is above eps for every eps > 2 ln 2.

Estimates are unbiased over the choice of the hash functions; for fixed ones, items that collide share their counts.
"""

import math
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit

from sordino.core import check
from sordino.core.errors import SpecError
from sordino.core.rng import RowStream
from sordino.privacy.events import Event
from sordino.privacy.mechanisms.randomized_response import Floats, Ints, ThreeLosses, categories, category, coins, level
from sordino.privacy.mechanisms.unary_encoding import bit_rows

__all__ = ["CountMeanSketch"]

ITEMS = 2**63  # exclusive upper limit of items, which are whole numbers


class SketchReports(NamedTuple):
    """Reports of n users."""

    row: Ints  # [n]: index of the hash function
    bits: NDArray[np.uint8]  # [n, columns]: 1 stands for the sign +1


@dataclass(frozen=True)
class CountMeanSketchEvent(ThreeLosses, Event):
    """One report of a count-mean sketch."""

    epsilon: float

    def __post_init__(self) -> None:
        level(self.epsilon)

    def mass(self) -> float:  # two items that do not collide differ in two columns, eps/2 each
        return float(expit(self.epsilon / 2)) ** 2


@dataclass(frozen=True)
class CountMeanSketch:
    """Report one hash function and m noisy bits, one of which stands for the item."""

    epsilon: float  # epsilon of one report (pure DP)
    hashes: int = 64  # k: number of public hash functions
    columns: int = 1024  # m: number of bits in a report
    seed: int = 0  # public seed of the hash functions

    geometry: ClassVar[str] = "one value a report"
    exact: ClassVar[bool] = True
    calibrated: ClassVar[str] = "epsilon"

    def __post_init__(self) -> None:
        level(self.epsilon)
        table(self.hashes, self.columns, self.seed)

    def randomize(self, values: ArrayLike, rng: RowStream) -> SketchReports:
        """Return one report for each item; items are whole numbers from 0 to 2^63 - 1."""
        items = categories(values, ITEMS, rng)
        row = (rng.at("row").words(1)[:, 0] % np.uint64(self.hashes)).astype(np.int64)
        bits = coins(rng.at("bits").words(self.columns), float(expit(-self.epsilon / 2)))
        bits[np.arange(len(items)), hashed(items, row, self.columns, self.seed)] ^= True
        return SketchReports(row, bits.astype(np.uint8))

    def probabilities(self, value: int, row: int = 0) -> Floats:
        """Return the probability that each bit is 1 [columns], given the hash function; bits are independent."""
        out = np.full(self.columns, expit(-self.epsilon / 2))
        column = hashed(np.array([category(value, ITEMS)]), np.array([row]), self.columns, self.seed)
        out[column] = expit(self.epsilon / 2)
        return out

    def estimate(self, reports: SketchReports, items: ArrayLike) -> Floats:
        """Return the estimated frequency of each item, unbiased over the hash functions."""
        asked, row = categories(items, ITEMS), categories(reports.row, self.hashes)
        bits = bit_rows(reports.bits, self.columns)
        sums = sum_rows(bits, row, self.hashes)  # number of ones per bit
        counts = np.bincount(row, minlength=self.hashes)[:, None]
        sketch = (sums - counts * float(expit(-self.epsilon / 2))) / math.tanh(self.epsilon / 4)  # M / k
        return collect(sketch, asked, len(row), self.seed)

    def variance(self, frequency: float = 0.0, n: int = 1, others: float = 0.0) -> float:
        """Return the variance of an estimated frequency, over noise and hash functions.

        Args:
            frequency: true frequency of the item.
            n: number of reports.
            others: sum of the squared frequencies of all other items.
        """
        noise = 1 / (4 * math.sinh(self.epsilon / 4) ** 2)  # (c^2 - 1) / 4, c = (e^{eps/2} + 1)/(e^{eps/2} - 1)
        return sketch_variance(self.hashes, self.columns, noise, 0.0, frequency, n, others)

    def event(self) -> Event:
        """Return the event of one report."""
        return CountMeanSketchEvent(self.epsilon)


def table(hashes: int, columns: int, seed: int) -> None:
    """Check the number of hash functions, the number of columns and the seed of a sketch."""
    check.count(hashes=hashes, columns=columns)
    if not 2 <= columns <= 2**24 or hashes > 2**24:
        raise SpecError(f"a sketch has 2 to 2^24 columns and at most 2^24 hashes, not {columns} and {hashes}.")
    public_seed(seed)


def public_seed(seed: int) -> None:
    """Check that a public seed is a whole number from 0 to 2^63 - 1."""
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**63:
        raise SpecError(f"seed must be a whole number from 0 to 2^63 - 1, not {seed!r}.")


def hashed(items: Ints, which: Ints, columns: int, seed: int) -> Ints:
    """Return the column of each item under hash function `which`.

    The hash applies the SplitMix64 finaliser three times; it is public, not secret.
    """
    state = np.asarray(np.uint64(seed))
    for word in (np.asarray(which), np.asarray(items)):
        state = _mix(state ^ _mix(word.astype(np.uint64)))
    return (state % np.uint64(columns)).astype(np.int64)


def _mix(v: NDArray[np.uint64]) -> NDArray[np.uint64]:
    with np.errstate(over="ignore"):
        v = v + np.uint64(0x9E3779B97F4A7C15)
        v = (v ^ (v >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        v = (v ^ (v >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(v ^ (v >> np.uint64(31)))


def sum_rows(bits: NDArray[np.uint8], group: Ints, groups: int) -> Floats:
    """Return the sum of the rows of each group [groups, width]."""
    return np.array([bits[group == g].sum(axis=0) for g in range(groups)], dtype=np.float64)


def collect(sketch: Floats, items: Ints, n: int, seed: int) -> Floats:
    """Return the estimated frequencies: m/(m - 1) (sum over rows of the item's column / n - 1/m).

    This subtracts what other items add by chance collisions.
    """
    hashes, m = sketch.shape
    rows = np.arange(hashes)
    totals = np.array([sketch[rows, hashed(np.full(hashes, i), rows, m, seed)].sum() for i in items.tolist()])
    return np.asarray(m / (m - 1) * (totals / n - 1 / m))


def sketch_variance(k: int, m: int, mine: float, other: float, frequency: float, n: int, others: float) -> float:
    """Return the variance of a frequency that a sketch estimates, over noise and hash functions.

    It is (m/(m-1))^2 / n^2 (n noise + (n - n_d) h + h / k sum over other items of n_i (n_i - 1)), h = (1/m)(1 - 1/m). A
    user who holds another item collides with probability 1/m, and all users who hold the same item collide together if
    they drew the same row. `mine` is the noise variance of every user, `other` the extra variance of users who hold
    another item.
    """
    check.count(n=n)
    check.non_negative(frequency=frequency, others=others)
    if frequency > 1 or others > 1:
        raise SpecError(f"frequency and others are at most 1, not {frequency!r} and {others!r}.")
    chance, rest = (1 - 1 / m) / m, n * (1 - frequency)
    together = max(0.0, n * n * others - rest)
    return (m / (m - 1)) ** 2 * (n * mine + rest * (other + chance) + chance / k * together) / n**2
