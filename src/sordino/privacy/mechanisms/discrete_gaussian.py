"""Integer Gaussian noise for an L2 bound: P(k) proportional to exp(-k^2 / (2 sigma^2)).

Canonne, Kamath, Steinke (2020), arXiv:2004.00010: the mechanism is ((L2 / sigma)^2 / 2)-zCDP in any dimension (Theorems
4 and 14), and the variance is below sigma^2 (Corollary 9). A sum of discrete Gaussians is not a discrete Gaussian; what
the server of a secure sum sees is priced by Kairouz, Liu, Steinke (2021), arXiv:2102.06387, Proposition 14. The noise
is sampled exactly, see `privacy/integer_noise.py`.
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
from sordino.core.errors import SpecError
from sordino.core.rng import RowStream
from sordino.privacy.events import Event, Floats
from sordino.privacy.integer_noise import BITS, LONGEST, InversionTable, exp_minus, symmetric, too_wide
from sordino.privacy.quantise import Bounds, Integers

__all__ = ["DiscreteGaussian"]


@dataclass(frozen=True)
class DiscreteGaussianEvent(Event):
    """Discrete Gaussian noise on integer rows with an L2 bound."""

    noise_multiplier: float  # sigma over the L2 bound
    distance: float = 0.0  # total variation distance of the sampler from the exact distribution, all coordinates

    def __post_init__(self) -> None:
        check.positive(noise_multiplier=self.noise_multiplier)
        check.fraction(distance=self.distance)

    def rho(self) -> float:
        return (1 / self.noise_multiplier) * (1 / self.noise_multiplier) / 2

    def grouped(self, k: int) -> Event:
        return DiscreteGaussianEvent(self.noise_multiplier / k, self.distance)


@dataclass(frozen=True)
class DistributedDiscreteGaussianEvent(Event):
    """A sum of rows, each with independent discrete Gaussian noise: the server sees the sum and nothing else."""

    sigma: float  # sigma of one client's noise
    clients: int
    dim: int
    l1: float
    l2: float
    distance: float = 0.0

    def __post_init__(self) -> None:
        check.positive(sigma=self.sigma, l1=self.l1, l2=self.l2)
        check.count(clients=self.clients, dim=self.dim)
        check.fraction(distance=self.distance)
        if self.sigma < 0.5 and self.clients > 1:
            raise SpecError(
                f"sums of discrete Gaussians are understood from sigma = 0.5 on, not at {self.sigma:g}; "
                "use a smaller granularity."
            )

    def tau(self) -> float:
        """Return how far the sum of the noises is from one discrete Gaussian.

        It is 10 sum_{k<n} exp(-2 pi^2 sigma^2 k/(k+1)).
        """
        k = np.arange(1, self.clients, dtype=np.float64)
        return float(10 * np.exp(-2 * (math.pi * self.sigma) ** 2 * k / (k + 1)).sum())

    def rho(self) -> float:
        """Return the smallest of the three bounds of Kairouz, Liu, Steinke (2021), Proposition 14."""
        tau, std, root = self.tau(), math.sqrt(self.clients) * self.sigma, math.sqrt(self.dim)
        near, far = self.l2 / std, self.l1 / std
        flat, mixed = near**2 + 2 * tau * self.dim, near**2 + 2 * far * tau + tau**2 * self.dim
        return min(flat, mixed, (near + tau * root) ** 2) / 2

    def renyi(self, orders: Floats) -> Floats:
        """Return the smaller of a L2^2/(2 n sigma^2) + tau dim and rho a at every order a."""
        plain = orders * self.l2**2 / (2 * self.clients * self.sigma**2)
        return np.minimum(plain + self.tau() * self.dim, self.rho() * orders)

    def grouped(self, k: int) -> Event:
        return replace(self, l1=k * self.l1, l2=k * self.l2)

    def scaled(self, factor: float) -> Event:
        """Return the event of a sum of which the viewer knows the noise of some clients."""
        return replace(self, clients=left(self.clients, factor))


def left(clients: int, factor: float) -> int:
    """Return how many of several equal and independent noises make up `factor` times their deviation, rounded down."""
    return max(1, min(clients, math.floor(clients * factor * factor * (1 + 1e-12))))


@dataclass(frozen=True)
class DiscreteGaussian:
    """Add discrete Gaussian noise of scale noise_multiplier * L2 bound to every coordinate."""

    noise_multiplier: float  # sigma over the L2 bound of the integer rows

    geometry: ClassVar[str] = "integers, L2"
    exact: ClassVar[bool] = True
    calibrated: ClassVar[str] = "noise_multiplier"

    def __post_init__(self) -> None:
        check.positive(noise_multiplier=self.noise_multiplier)

    def add(self, rows: Integers, rng: RowStream) -> Tensor:
        """Add independent noise to every row, drawn from the stream of its client."""
        return rows.plus(self.table(rows.bounds).draw(rng, rows.bounds.dim))

    def event(self, bounds: Bounds) -> Event:
        """Return the event of one noisy row with these bounds."""
        return DiscreteGaussianEvent(self.noise_multiplier, bounds.dim * self.table(bounds).distance)

    def event_of_sum(self, bounds: Bounds, clients: int) -> Event:
        """Return the event of the sum of the noisy rows of this many clients.

        A client whose data are removed still adds its noise.
        """
        check.count(clients=clients)
        distance = clients * bounds.dim * self.table(bounds).distance
        sigma = self.noise_multiplier * math.sqrt(bounds.l2_squared)
        return DistributedDiscreteGaussianEvent(sigma, clients, bounds.dim, bounds.l1, bounds.l2, distance)

    def table(self, bounds: Bounds) -> InversionTable:
        """Return the table from which the noise is sampled exactly."""
        return _table(Fraction(self.noise_multiplier) ** 2 * bounds.l2_squared)

    def variance(self, bounds: Bounds) -> float:
        """Return the variance of the noise on one coordinate, at most sigma^2.

        It is the second moment of the distribution, computed as a sum.
        """
        k, mass = probabilities(self.noise_multiplier * math.sqrt(bounds.l2_squared))
        return float((k * k * mass).sum())


def probabilities(sigma: float) -> tuple[Floats, Floats]:
    """Return the integers with non-negligible probability and their probabilities.

    Both are floats, for analysis and not for sampling.
    """
    k = np.arange(-math.ceil(38 * sigma) - 2, math.ceil(38 * sigma) + 3, dtype=np.float64)
    weight = np.exp(-k * k / (2 * sigma * sigma))
    return k, weight / weight.sum()


def _ratios(variance: Fraction) -> Iterator[int]:
    """Yield w(k+1)/w(k) = exp(-(2k+1) / (2 sigma^2))."""
    ratio, step = exp_minus(1 / (2 * variance)), exp_minus(1 / variance)
    while True:
        yield ratio
        ratio = ratio * step >> BITS


@lru_cache(maxsize=8)
def _table(variance: Fraction) -> InversionTable:
    if variance > (LONGEST // 13) ** 2:  # the table extends to 13.4 scales
        raise too_wide("discrete Gaussian")
    return symmetric(_ratios(variance), "discrete Gaussian")
