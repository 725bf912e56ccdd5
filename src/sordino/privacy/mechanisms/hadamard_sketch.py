"""Hadamard count-mean sketch (HCMS): a count-mean sketch with one bit per user.  Apple Differential Privacy Team
(2017), "Learning with privacy at scale".

The client draws one of k public hash functions and one of m Hadamard coefficients, and sends the sign of that
coefficient, flipped with probability 1/(1 + e^eps). Both draws are public and do not depend on the item. Two items have
the same sign in at least half of the coefficients, so one report reveals less than randomized response with the same
epsilon.

Estimates are unbiased over the choice of the hash functions; for fixed ones, items that collide share their counts.
"""

import math
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import expit

from sordino.core.errors import DataError, SpecError
from sordino.core.rng import RowStream
from sordino.privacy.events import Event
from sordino.privacy.mechanisms.count_mean_sketch import ITEMS, collect, hashed, sketch_variance, table
from sordino.privacy.mechanisms.randomized_response import (
    Floats,
    Ints,
    ThreeLosses,
    array,
    categories,
    category,
    coins,
    level,
)

__all__ = ["HadamardSketch"]


class HadamardReports(NamedTuple):
    """Reports of n users."""

    row: Ints  # [n]: index of the hash function
    coefficient: Ints  # [n]: index of the Hadamard coefficient
    sign: Ints  # [n]: -1 or 1


@dataclass(frozen=True)
class HadamardSketchEvent(ThreeLosses, Event):
    """One report of a Hadamard count-mean sketch."""

    epsilon: float

    def __post_init__(self) -> None:
        level(self.epsilon)

    def mass(self) -> float:
        return float(expit(self.epsilon)) / 2


@dataclass(frozen=True)
class HadamardSketch:
    """Report one noisy sign of the item's Hadamard transform."""

    epsilon: float  # epsilon of one report (pure DP)
    hashes: int = 64  # k: number of public hash functions
    columns: int = 1024  # m: number of Hadamard coefficients, a power of two
    seed: int = 0  # public seed of the hash functions

    geometry: ClassVar[str] = "one value a report"
    exact: ClassVar[bool] = True
    calibrated: ClassVar[str] = "epsilon"

    def __post_init__(self) -> None:
        level(self.epsilon)
        table(self.hashes, self.columns, self.seed)
        if self.columns & (self.columns - 1):
            raise SpecError(f"columns must be a power of two, not {self.columns}; a Hadamard matrix needs one.")

    def randomize(self, values: ArrayLike, rng: RowStream) -> HadamardReports:
        """Return one report for each item; items are whole numbers from 0 to 2^63 - 1."""
        items = categories(values, ITEMS, rng)
        words = rng.words(3)
        row = (words[:, 0] % np.uint64(self.hashes)).astype(np.int64)
        coefficient = (words[:, 1] % np.uint64(self.columns)).astype(np.int64)
        true = signs(coefficient, hashed(items, row, self.columns, self.seed))
        flip = coins(words[:, 2], float(expit(-self.epsilon)))
        return HadamardReports(row, coefficient, np.where(flip, -true, true))

    def probabilities(self, value: int, row: int = 0) -> Floats:
        """Return the probabilities of the reports (coefficient, minus or plus) [columns, 2].

        They are given the hash function `row`.
        """
        column = hashed(np.array([category(value, ITEMS)]), np.array([row]), self.columns, self.seed)
        tilt = self.epsilon * signs(np.arange(self.columns), column)
        return np.asarray(expit(np.stack([-tilt, tilt], axis=1)) / self.columns)

    def estimate(self, reports: HadamardReports, items: ArrayLike) -> Floats:
        """Return the estimated frequency of each item, unbiased over the hash functions."""
        asked, row = categories(items, ITEMS), categories(reports.row, self.hashes)
        coefficient, sign = categories(reports.coefficient, self.columns), array(reports.sign, None)
        if not np.isin(sign, (-1, 1)).all() or not len(row) == len(coefficient) == len(sign):
            raise DataError("reports need as many rows and coefficients as signs, each sign -1 or 1.")
        sums = np.zeros((self.hashes, self.columns))
        np.add.at(sums, (row, coefficient), sign)
        sketch = transform(sums) / math.tanh(self.epsilon / 2)  # M / k
        return collect(sketch, asked, len(row), self.seed)

    def variance(self, frequency: float = 0.0, n: int = 1, others: float = 0.0) -> float:
        """Return the variance of an estimated frequency, over noise and hash functions.

        `others` is the sum of the squared frequencies of all other items. A report counts c or -c with c = (e^eps +
        1)/(e^eps - 1); its mean is 1 if its column is the item's, else 0.
        """
        noise = 1 / math.sinh(self.epsilon / 2) ** 2  # c^2 - 1
        return sketch_variance(self.hashes, self.columns, noise, 1 - 1 / self.columns, frequency, n, others)

    def event(self) -> Event:
        """Return the event of one report."""
        return HadamardSketchEvent(self.epsilon)


def signs(row: Ints, column: Ints) -> Ints:
    """Return entries of the Hadamard matrix (Sylvester's construction).

    The exponent of -1 is the number of common one bits of the two indices.
    """
    return np.asarray(1 - 2 * (np.bitwise_count(row & column).astype(np.int64) & 1))


def transform(rows: Floats) -> Floats:
    """Multiply every row by the Hadamard matrix, by butterflies."""
    out, step, width = rows, 1, rows.shape[1]
    while step < width:
        pairs = out.reshape(-1, width // (2 * step), 2, step)
        out = np.stack([pairs[:, :, 0] + pairs[:, :, 1], pairs[:, :, 0] - pairs[:, :, 1]], axis=2).reshape(-1, width)
        step *= 2
    return out
