"""Hadamard count-mean sketch (HCMS): a count-mean sketch at one bit a user.  Apple Differential Privacy Team (2017),
"Learning with privacy at scale".

The client draws one of k public hash functions and one of m Hadamard coefficients, and sends that coefficient's sign,
flipped with probability 1/(1 + e^eps). Both draws are public and do not depend on the item. Two items have the same
sign in at least half of the coefficients, so that one report says less than randomized response of the same level.

Estimates are unbiased over the choice of the hash functions; for given ones, items that collide share their counts.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

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
    coins,
    level,
    one,
)

__all__ = ["HadamardSketch"]


class HadamardReports(NamedTuple):
    """What n users send."""

    row: Ints  # [n]: which hash function
    coefficient: Ints  # [n]: which Hadamard coefficient
    sign: Ints  # [n]: -1 or 1


@dataclass(frozen=True)
class HadamardSketchEvent(ThreeLosses, Event):
    epsilon: float

    def __post_init__(self) -> None:
        level(self.epsilon)

    def mass(self) -> float:
        return float(expit(self.epsilon)) / 2


@dataclass(frozen=True)
class HadamardSketch:
    """Report one noisy sign of the item's Hadamard transform."""

    epsilon: float  # pure level of one report
    hashes: int = 64  # k: public hash functions
    columns: int = 1024  # m: a power of two
    seed: int = 0  # of the hash functions; public

    def __post_init__(self) -> None:
        level(self.epsilon)
        table(self.hashes, self.columns, self.seed)
        if self.columns & (self.columns - 1):
            raise SpecError(f"columns must be a power of two, not {self.columns}; a Hadamard matrix needs one.")

    def randomize(self, values: ArrayLike, rng: RowStream) -> HadamardReports:
        items = categories(values, ITEMS, rng)
        words = rng.words(3)
        row = (words[:, 0] % np.uint64(self.hashes)).astype(np.int64)
        coefficient = (words[:, 1] % np.uint64(self.columns)).astype(np.int64)
        true = signs(coefficient, hashed(items, row, self.columns, self.seed))
        flip = coins(words[:, 2], float(expit(-self.epsilon)))
        return HadamardReports(row, coefficient, np.where(flip, -true, true))

    def probabilities(self, value: int, row: int = 0) -> Floats:
        """Of the reports (coefficient, minus or plus) [columns, 2], given the hash function."""
        column = hashed(np.array([one(value, ITEMS)]), np.array([row]), self.columns, self.seed)
        tilt = self.epsilon * signs(np.arange(self.columns), column)
        return np.asarray(expit(np.stack([-tilt, tilt], axis=1)) / self.columns)

    def estimate(self, reports: HadamardReports, items: ArrayLike) -> Floats:
        """The share of each item; unbiased over the hash functions."""
        asked, row = categories(items, ITEMS), categories(reports.row, self.hashes)
        coefficient, sign = categories(reports.coefficient, self.columns), array(reports.sign, None)
        if not np.isin(sign, (-1, 1)).all() or not len(row) == len(coefficient) == len(sign):
            raise DataError("reports are as many rows and coefficients as signs, each -1 or 1.")
        sums = np.zeros((self.hashes, self.columns))
        np.add.at(sums, (row, coefficient), sign)
        sketch = transform(sums) / math.tanh(self.epsilon / 2)  # M / k
        return collect(sketch, asked, len(row), self.seed)

    def variance(self, frequency: float = 0.0, n: int = 1, others: float = 0.0) -> float:
        """Of an estimated share, over noise and hash functions; `others`: sum of the squared shares of all other items.

        A report counts c or -c, c = (e^eps + 1)/(e^eps - 1), with mean 1 if it stands in the item's column, else 0.
        """
        noise = 1 / math.sinh(self.epsilon / 2) ** 2  # c^2 - 1
        return sketch_variance(self.hashes, self.columns, noise, 1 - 1 / self.columns, frequency, n, others)

    def event(self) -> Event:
        return HadamardSketchEvent(self.epsilon)


def signs(row: Ints, column: Ints) -> Ints:
    """The entries of a Hadamard matrix (Sylvester): -1 to the number of common ones of two binary numbers."""
    return np.asarray(1 - 2 * (np.bitwise_count(row & column).astype(np.int64) & 1))


def transform(rows: Floats) -> Floats:
    """Every row times the Hadamard matrix, by butterflies."""
    out, step, width = rows, 1, rows.shape[1]
    while step < width:
        pairs = out.reshape(-1, width // (2 * step), 2, step)
        out = np.stack([pairs[:, :, 0] + pairs[:, :, 1], pairs[:, :, 0] - pairs[:, :, 1]], axis=2).reshape(-1, width)
        step *= 2
    return out
