"""Integer Laplace (two-sided geometric) noise for an L1 bound: P(k) proportional to exp(-|k| epsilon / L1).

Ghosh, Roughgarden, Sundararajan (2009), arXiv:0811.2841: epsilon-DP. With t = epsilon/L1 and a shift by j,

    E_Q (P/Q)^a = A e^((a-1) t j) + B e^(-a t j),   A + B = 1,   B = (1/(e^t - 1) - 1/(e^((2a-1)t) - 1)) tanh(t/2) > 0.

The logarithm is convex in j and zero at j = 0, so of all ways to spread an L1 budget over coordinates the worst, for
every Renyi order, is to spend it in one: the curve below is exact in every dimension. So is the pair. The hockey stick
at e^l of a shift by h is 1 - e^((l - th)/2) at l = th, th - 2t, ..., -th, and linear in e^l between. Two coordinates
with shifts a >= b have their corners where one with a + b has them, and there, by summation with c = tanh(t/2),
    1 - e^((l - ta - tb)/2) (1 + b c)        where |l| <= t(a - b),
    1 - e^((l - ta - tb)/2) (1 + j c)        where l = t(a + b - 2j), 0 <= j <= b,
and the rest by symmetry: never more than one coordinate. Further coordinates, one after the other. A smaller shift
is harder to see, as the noise is log-concave.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

import numpy as np
from torch import Tensor

from sordino.core import check
from sordino.core.rng import RowStream
from sordino.privacy import pairs
from sordino.privacy.events import Event, Floats
from sordino.privacy.integer_noise import LONGEST, InversionTable, exp_minus, symmetric, too_wide
from sordino.privacy.pairs import Pair
from sordino.privacy.quantise import Bounds, Integers

__all__ = ["DiscreteLaplace"]

MOST_ATOMS = 2**20


@dataclass(frozen=True)
class DiscreteLaplaceEvent(Event):
    epsilon: float
    l1: int  # of the integer rows
    distance: float = 0.0  # total variation distance of the sampler from the law, all coordinates

    def __post_init__(self) -> None:
        check.positive(epsilon=self.epsilon)
        check.count(l1=self.l1)
        check.fraction(distance=self.distance)

    def pure(self) -> float:
        return self.epsilon

    def renyi(self, orders: Floats) -> Floats:
        """Exact for a shift of l1 in one coordinate, the worst case; B as above, written so that nothing overflows."""
        t, s, a = self.epsilon / self.l1, self.epsilon, np.asarray(orders, dtype=np.float64)
        ratio = np.exp(-2 * (a - 1) * t) * np.expm1(-t) / np.expm1(-(2 * a - 1) * t)
        b = (1 - ratio) * np.exp(-t) / (1 + np.exp(-t))
        near = np.minimum((a - 1) * s, 1.0)
        flat = np.log1p((1 - b) * np.expm1(near) + b * np.expm1(-a * s))
        steep = (a - 1) * s + np.log((1 - b) + b * np.exp(-(2 * a - 1) * s))
        return np.asarray(np.minimum(np.where(near < 1, flat, steep) / (a - 1), s))

    def pair(self) -> Pair:
        if self.l1 > MOST_ATOMS:
            return pairs.randomized_response(self.epsilon)
        t = self.epsilon / self.l1
        x = np.arange(self.l1 + 1)  # the outcomes at and below 0, those in between, those at and above l1
        q = math.tanh(t / 2) * np.exp(-t * x)
        q[0] = 1 / (1 + math.exp(-t))
        q[-1] = q[0] * math.exp(-self.epsilon)
        return pairs.Atoms(t * (2.0 * x - self.l1), q[::-1], q, symmetric=True)

    def grouped(self, k: int) -> Event:
        return DiscreteLaplaceEvent(k * self.epsilon, k * self.l1, self.distance)


@dataclass(frozen=True)
class DiscreteLaplace:
    """Add two-sided geometric noise of scale L1 bound / epsilon to every coordinate."""

    epsilon: float  # of one use: exp(-epsilon / L1 bound) is the ratio of neighbouring probabilities

    def __post_init__(self) -> None:
        check.positive(epsilon=self.epsilon)

    def add(self, rows: Integers, rng: RowStream) -> Tensor:
        """Every row gets its own noise, keyed by its client."""
        return rows.plus(self.table(rows.bounds).draw(rng, rows.bounds.dim))

    def event(self, bounds: Bounds) -> Event:
        return DiscreteLaplaceEvent(self.epsilon, bounds.l1, bounds.dim * self.table(bounds).distance)

    def table(self, bounds: Bounds) -> InversionTable:
        return _table(Fraction(self.epsilon) / bounds.l1)

    def variance(self, bounds: Bounds) -> float:
        """Of one coordinate: 2 q / (1 - q)^2 with q = exp(-epsilon / L1)."""
        t = self.epsilon / bounds.l1
        return 2 * math.exp(-t) / math.expm1(-t) ** 2


def _ratios(rate: Fraction) -> Iterator[int]:
    ratio = exp_minus(rate)
    while True:
        yield ratio


@lru_cache(maxsize=8)
def _table(rate: Fraction) -> InversionTable:
    if rate * LONGEST < 90:  # it reaches 90.8 scales far
        raise too_wide("discrete Laplace")
    return symmetric(_ratios(rate), "discrete Laplace")
