"""Binomial noise: Binomial(N, 1/2) - N/2 on every coordinate.  Agarwal et al. (2018), "cpSGD", arXiv:1805.10559.

Privacy cost: (epsilon, delta)-DP for one given delta, by the smaller of two bounds. With V = N/4:
(1) their Theorem 1, equation (7), with the constants of equations (12), (16) and (17) at p = 1/2 and s = 1, valid where
    V >= max(23 ln(10 d/delta), 2 Linf);
(2) our own bound. If a coordinate is shifted by h, its loss is a sum of 2 atanh(y/M), M = (N + 1)/2, over h consecutive
    points y. Except with probability 2 d exp(-2 T^2/N) = delta/10 (Hoeffding), all |noise| <= T. Then no |y| exceeds
    T + Linf, and |atanh t - t| <= |t|^3/(3 (1 - t^2)): the loss is at most a term linear in the noise plus c L1, where
    c = 2 t^3/(3 (1 - t^2)) at t = (T + Linf)/M. The linear part has E exp((a-1) loss) <= exp((a-1) a L2^2/(2V)), since
    cosh x <= exp(x^2/2), so D_a = a L2^2/(2V) + c L1 converts like a Renyi curve, at 0.9 delta (Canonne, Kamath,
    Steinke 2020, Proposition 12).
No Renyi divergence is finite: noise with bounded support can reveal that it was shifted. In one dimension the
dominating pair itself is known, including the ends of the support: the noise is log-concave, so the largest shift is
the worst case. A sum of binomial noises is again binomial noise.
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
from sordino.privacy import pairs
from sordino.privacy.events import Event, Floats
from sordino.privacy.integer_noise import BITS, LONGEST, InversionTable, symmetric, too_wide
from sordino.privacy.pairs import Pair
from sordino.privacy.quantise import Bounds, Integers

__all__ = ["Binomial"]

B, C, D = 1 / 3, math.sqrt(2) * 7 / 4, 2 / 3  # b_p, c_p, d_p at p = 1/2


@dataclass(frozen=True)
class BinomialEvent(Event):
    """Centred binomial noise on integer rows, priced at one delta."""

    trials: int  # N: number of fair coins, even
    dim: int
    l1: float  # L1 bound of the integer rows
    l2: float
    linf: int
    delta: float
    distance: float = 0.0  # total variation distance of the sampler from the exact distribution, all coordinates

    def __post_init__(self) -> None:
        check.count(trials=self.trials, dim=self.dim, linf=self.linf)
        check.positive(l1=self.l1, l2=self.l2)
        check.below_one(delta=self.delta)
        check.fraction(distance=self.distance)
        if self.trials % 2:
            raise SpecError(f"trials must be even, not {self.trials}: the noise is centred at half of them.")
        if self.dim > 1 and not math.isfinite(self.epsilon()):
            raise SpecError(
                f"binomial noise of {self.trials} trials hides no integers up to {self.linf} in {self.dim} coordinates "
                f"at delta={self.delta:g}. Add more noise."
            )

    def epsilon(self) -> float:
        """Return epsilon at this delta, the smaller of the two bounds; infinite where neither holds."""
        return min(self.published(), self.ours())

    def published(self) -> float:
        """Return epsilon by bound (1), that of Agarwal et al.; infinite where its condition fails."""
        v, ten, most = self.trials / 4, math.log(10 / self.delta), math.log(1.25 / self.delta)
        if v < max(23 * math.log(10 * self.dim / self.delta), 2 * self.linf):
            return math.inf
        first = self.l2 * math.sqrt(2 * most / v)
        second = (self.l2 * C * math.sqrt(ten) + self.l1 * B) / (v * (1 - self.delta / 10))
        third = self.linf * (2 / 3 * most + D * math.log(20 * self.dim / self.delta) * ten) / v
        return first + second + third

    def ours(self) -> float:
        """Return epsilon by bound (2), our own; infinite where its condition fails."""
        far = math.sqrt(self.trials / 2 * math.log(20 * self.dim / self.delta))
        t = (far + self.linf) / ((self.trials + 1) / 2)
        if t >= 1:
            return math.inf
        a = 1 + np.geomspace(1e-4, 1e6, 2001)
        curve = a * self.l2**2 / (self.trials / 2) + self.l1 * 2 * t**3 / (3 * (1 - t * t))
        return max(0.0, float((curve + np.log1p(-1 / a) - (math.log(0.9 * self.delta) + np.log(a)) / (a - 1)).min()))

    def pair(self) -> Pair:
        """Return the exact pair in one dimension, otherwise that of any (epsilon, delta)-DP release."""
        if self.dim > 1:
            return pairs.randomized_response(self.epsilon(), self.delta)
        _, mass = probabilities(self.trials)
        none = np.zeros(min(self.linf, self.trials + 1))
        return pairs.Atoms.of(np.append(none, mass), np.append(mass, none), symmetric=True)

    def grouped(self, k: int) -> Event:
        return replace(self, l1=k * self.l1, l2=k * self.l2, linf=k * self.linf)

    def summed(self, n: int) -> Event:
        return replace(self, trials=n * self.trials, distance=min(n * self.distance, 1 - 2**-53))


@dataclass(frozen=True)
class Binomial:
    """Add centred binomial noise of standard deviation (at least) noise_multiplier * L2 bound to every coordinate."""

    noise_multiplier: float  # standard deviation over the L2 bound of the integer rows
    delta: float = 1e-6  # the only delta at which the release is priced

    geometry: ClassVar[str] = "integers, L1 and L2 and L-infinity"
    exact: ClassVar[bool] = True
    calibrated: ClassVar[str] = "trials"

    def __post_init__(self) -> None:
        check.positive(noise_multiplier=self.noise_multiplier)
        check.below_one(delta=self.delta)

    def trials(self, bounds: Bounds) -> int:
        """Return N, the smallest even number with N/4 >= (noise_multiplier * L2)^2."""
        return 2 * math.ceil(2 * Fraction(self.noise_multiplier) ** 2 * bounds.l2_squared)

    def add(self, rows: Integers, rng: RowStream) -> Tensor:
        """Add independent noise to every row, drawn from the stream of its client."""
        return rows.plus(self.table(rows.bounds).draw(rng, rows.bounds.dim))

    def event(self, bounds: Bounds) -> Event:
        """Return the event of one use on integer rows with these bounds."""
        distance = bounds.dim * self.table(bounds).distance
        return BinomialEvent(self.trials(bounds), bounds.dim, bounds.l1, bounds.l2, bounds.linf, self.delta, distance)

    def table(self, bounds: Bounds) -> InversionTable:
        """Return the table from which the noise is sampled exactly."""
        return _table(self.trials(bounds))

    def variance(self, bounds: Bounds) -> float:
        """Return the variance of the noise on one coordinate, N/4."""
        return self.trials(bounds) / 4


def probabilities(trials: int) -> tuple[Floats, Floats]:
    """Return the integers with non-negligible probability and their probabilities.

    Both are floats, for analysis and not for sampling.
    """
    half = trials // 2
    k = np.arange(min(half, math.ceil(19 * math.sqrt(trials))), dtype=np.float64)
    log = np.append(0.0, np.cumsum(np.log((half - k) / (half + k + 1))))  # logarithm of w(k) / w(0)
    weight = np.exp(np.append(log[:0:-1], log))
    return np.arange(1 - len(log), len(log), dtype=np.float64), weight / weight.sum()


def _ratios(trials: int) -> Iterator[int]:
    half = trials // 2
    for k in range(half + 1):
        yield ((half - k) << BITS) // (half + k + 1)


@lru_cache(maxsize=8)
def _table(trials: int) -> InversionTable:
    if trials > LONGEST**2:
        raise too_wide("binomial")
    return symmetric(_ratios(trials), "binomial")
