"""Integer Laplace (two-sided geometric) noise for an L1 bound: P(k) proportional to exp(-|k| epsilon / L1).

Ghosh, Roughgarden, Sundararajan (2009), arXiv:0811.2841: epsilon-DP. With t = epsilon/L1 and a shift by j,

    E_Q (P/Q)^a = A e^((a-1) t j) + B e^(-a t j),   A + B = 1,   B = (1/(e^t - 1) - 1/(e^((2a-1)t) - 1)) tanh(t/2) > 0.

The logarithm is convex in j and zero at j = 0. So, for every Renyi order, the worst way to spread an L1 bound over
coordinates is to spend it all in one: the curve below is exact in every dimension. So is the pair. The hockey-stick
divergence at e^l of a shift by h is 1 - e^((l - th)/2) at l = th, th - 2t, ..., -th, and linear in e^l in between. Two
coordinates with shifts a >= b have their corners where one coordinate with shift a + b has them, and there, by
summation with c = tanh(t/2), the divergence is
    1 - e^((l - ta - tb)/2) (1 + b c)        where |l| <= t(a - b),
    1 - e^((l - ta - tb)/2) (1 + j c)        where l = t(a + b - 2j), 0 <= j <= b,
and the rest follows by symmetry: it never exceeds that of one coordinate. Further coordinates follow one at a time. A
smaller shift is harder to detect, because the noise is log-concave.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import ClassVar

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
    """Two-sided geometric noise on integer rows with an L1 bound."""

    epsilon: float
    l1: int  # L1 bound of the integer rows
    distance: float = 0.0  # total variation distance of the sampler from the exact distribution, all coordinates

    def __post_init__(self) -> None:
        check.positive(epsilon=self.epsilon)
        check.count(l1=self.l1)
        check.fraction(distance=self.distance)

    def pure(self) -> float:
        return self.epsilon

    def renyi(self, orders: Floats) -> Floats:
        """Return the exact Renyi divergences of a shift of l1 in one coordinate, the worst case.

        B is as in the module's docstring, written so that nothing overflows.
        """
        t, s, a = self.epsilon / self.l1, self.epsilon, np.asarray(orders, dtype=np.float64)
        ratio = np.exp(-2 * (a - 1) * t) * np.expm1(-t) / np.expm1(-(2 * a - 1) * t)
        b = (1 - ratio) * np.exp(-t) / (1 + np.exp(-t))
        near = np.minimum((a - 1) * s, 1.0)
        flat = np.log1p((1 - b) * np.expm1(near) + b * np.expm1(-a * s))
        steep = (a - 1) * s + np.log((1 - b) + b * np.exp(-(2 * a - 1) * s))
        return np.asarray(np.minimum(np.where(near < 1, flat, steep) / (a - 1), s))

    def pair(self) -> Pair:
        """Return the exact pair, or that of any epsilon-DP release if it has too many atoms."""
        if self.l1 > MOST_ATOMS:
            return pairs.randomized_response(self.epsilon)
        t = self.epsilon / self.l1
        x = np.arange(self.l1 + 1)  # outcomes up to 0 as one atom, those in between, those from l1 on as one atom
        q = math.tanh(t / 2) * np.exp(-t * x)
        q[0] = 1 / (1 + math.exp(-t))
        q[-1] = q[0] * math.exp(-self.epsilon)
        return pairs.Atoms(t * (2.0 * x - self.l1), q[::-1], q, symmetric=True)

    def grouped(self, k: int) -> Event:
        return DiscreteLaplaceEvent(k * self.epsilon, k * self.l1, self.distance)


@dataclass(frozen=True)
class DiscreteLaplace:
    """Add two-sided geometric noise of scale L1 bound / epsilon to every coordinate."""

    epsilon: float  # epsilon of one use; probabilities of neighbouring integers have the ratio exp(-epsilon / L1 bound)

    geometry: ClassVar[str] = "integers, L1"
    exact: ClassVar[bool] = True
    calibrated: ClassVar[str] = "epsilon"

    def __post_init__(self) -> None:
        check.positive(epsilon=self.epsilon)

    def add(self, rows: Integers, rng: RowStream) -> Tensor:
        """Add independent noise to every row, drawn from the stream of its client."""
        return rows.plus(self.table(rows.bounds).draw(rng, rows.bounds.dim))

    def event(self, bounds: Bounds) -> Event:
        """Return the event of one use on integer rows with these bounds."""
        return DiscreteLaplaceEvent(self.epsilon, bounds.l1, bounds.dim * self.table(bounds).distance)

    def table(self, bounds: Bounds) -> InversionTable:
        """Return the table from which the noise is sampled exactly."""
        return _table(Fraction(self.epsilon) / bounds.l1)

    def variance(self, bounds: Bounds) -> float:
        """Return the variance of the noise on one coordinate: 2 q / (1 - q)^2 with q = exp(-epsilon / L1)."""
        t = self.epsilon / bounds.l1
        return 2 * math.exp(-t) / math.expm1(-t) ** 2


def _ratios(rate: Fraction) -> Iterator[int]:
    ratio = exp_minus(rate)
    while True:
        yield ratio


@lru_cache(maxsize=8)
def _table(rate: Fraction) -> InversionTable:
    if rate * LONGEST < 90:  # the table extends to 90.8 scales
        raise too_wide("discrete Laplace")
    return symmetric(_ratios(rate), "discrete Laplace")
