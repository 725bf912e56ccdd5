"""Skellam noise: the difference of two Poisson(mu/2) variables, of variance mu. Closed under sums.

Agarwal, Kairouz, Liu (2021), arXiv:2110.04995, Theorem 3.5, for integer rows with an L1 and an L2 bound:

    D_a <= a L2^2/(2 mu) + min( ((2a-1) L2^2 + 6 L1)/(4 mu^2), 3 L1/(2 mu) ).

The paper proves it at integer orders; between them (a-1) D_a is convex in a and zero at a = 1, so we interpolate it
linearly. If n clients add mu/n each (`share`), their sum has exactly the noise of one client that adds mu, which is
what a secure sum needs. The noise is sampled exactly, see `privacy/integer_noise.py`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from typing import ClassVar

import numpy as np
from torch import Tensor

from sordino.core import check
from sordino.core.rng import RowStream
from sordino.privacy.events import Event, Floats
from sordino.privacy.integer_noise import BITS, LONGEST, ONE, InversionTable, symmetric, too_wide
from sordino.privacy.quantise import Bounds, Integers

__all__ = ["Skellam"]


@dataclass(frozen=True)
class SkellamEvent(Event):
    """Skellam noise on integer rows with an L1 and an L2 bound."""

    mu: float  # total variance of the noise on one coordinate
    l1: float  # L1 bound of the integer rows
    l2: float
    distance: float = 0.0  # total variation distance of the sampler from the distribution, all coordinates and clients

    def __post_init__(self) -> None:
        check.positive(mu=self.mu, l1=self.l1, l2=self.l2)
        check.fraction(distance=self.distance)

    def renyi(self, orders: Floats) -> Floats:
        """Return the bound of Theorem 3.5 at integer orders, interpolated between them."""
        low = np.floor(orders)
        part, high = orders - low, low + 1
        both = (1 - part) * (low - 1) * self._at(low) + part * (high - 1) * self._at(high)
        return np.asarray(both / (orders - 1))

    def _at(self, orders: Floats) -> Floats:
        mu, l1, square = self.mu, self.l1, self.l2**2
        extra = np.minimum(((2 * orders - 1) * square + 6 * l1) / (4 * mu * mu), 3 * l1 / (2 * mu))
        return orders * square / (2 * mu) + extra

    def grouped(self, k: int) -> Event:
        return replace(self, l1=k * self.l1, l2=k * self.l2)

    def scaled(self, factor: float) -> Event:
        return replace(self, mu=factor * factor * self.mu)

    def summed(self, n: int) -> Event:
        return replace(self, mu=n * self.mu, distance=min(n * self.distance, 1 - 2**-53))


@dataclass(frozen=True)
class Skellam:
    """Add Skellam noise of standard deviation noise_multiplier * L2 bound to every coordinate."""

    noise_multiplier: float  # standard deviation over the L2 bound of the integer rows

    geometry: ClassVar[str] = "integers, L1 and L2"
    exact: ClassVar[bool] = True
    calibrated: ClassVar[str] = "mu"

    def __post_init__(self) -> None:
        check.positive(noise_multiplier=self.noise_multiplier)

    def share(self, bounds: Bounds, clients: int) -> Fraction:
        """Return the variance mu that each client adds, so that the sum over them has the noise of this mechanism."""
        check.count(clients=clients)
        return Fraction(self.noise_multiplier) ** 2 * bounds.l2_squared / clients

    def add(self, rows: Integers, rng: RowStream, clients: int = 1) -> Tensor:
        """Add each client's share of the noise to its row, drawn from the stream of the client."""
        return rows.plus(self.table(rows.bounds, clients).draw(rng, rows.bounds.dim))

    def event(self, bounds: Bounds, clients: int = 1) -> Event:
        """Return the event of the sum over this many clients, all of whom are present and add their share."""
        distance = clients * bounds.dim * self.table(bounds, clients).distance
        # mu is rounded down, so that the cost is slightly overestimated
        mu = math.nextafter(self.variance(bounds), 0.0)
        return SkellamEvent(mu, bounds.l1, bounds.l2, distance)

    def table(self, bounds: Bounds, clients: int = 1) -> InversionTable:
        """Return the table from which a client's share of the noise is sampled exactly."""
        return _table(self.share(bounds, clients))

    def variance(self, bounds: Bounds) -> float:
        """Return the variance of the noise on one coordinate of the sum."""
        return float(self.share(bounds, 1))


def _far(mu: float) -> int:
    """Return an integer that Skellam noise reaches with a probability below e^-300, by Chernoff's bound."""
    k = 16
    while k * math.asinh(k / mu) - k * k / (math.hypot(mu, k) + mu) < 300:
        k += k // 8
    return k


def _ratios(mu: Fraction) -> Iterator[int]:
    """Yield the ratios I_(k+1)(mu)/I_k(mu) = 1/(2(k+1)/mu + the next ratio).

    They are computed inwards from far out, where the ratio is almost zero (Miller's algorithm). A step inwards
    multiplies an error by the square of a ratio: starting where w < e^-300 leaves nothing of it.
    """
    ratios, ratio = [], 0
    for k in range(_far(float(mu)), 0, -1):
        ratio = (ONE << BITS) // ((2 * k * mu.denominator << BITS) // mu.numerator + ratio)
        ratios.append(ratio)
    yield from reversed(ratios)


@lru_cache(maxsize=8)
def _table(mu: Fraction) -> InversionTable:
    if mu > (LONGEST // 13) ** 2:
        raise too_wide("Skellam")
    return symmetric(_ratios(mu), "Skellam")
