"""Rows of floats as whole numbers with shares of integer noise, whose sum over clients is what is released and priced.

`LatticeNoise` rotates rows that are clipped in L2 (privacy/rotation.py), rounds them at random to a lattice with bounds
that are checked on integers (privacy/quantise.py) and adds a share of Skellam noise (Agarwal, Kairouz, Liu 2021,
arXiv:2110.04995, Algorithm 1 and Theorem 3.5) or discrete Gaussian noise (Kairouz, Liu, Steinke 2021, arXiv:2102.06387,
Algorithm 1 and Proposition 14). Between the clip and the price there is no float: whatever the arithmetic before did,
an integer row that exceeds the bounds does not leave. A client whose row becomes zero still adds its share.

`Coins` rotates, limits every coordinate to `peak` and sends coins: the Poisson binomial mechanism (Chen, Ozgur, Kairouz
2022, arXiv:2207.09916, Algorithm 1), as 2 heads - m, so that the sum is unbiased whoever is missing. It protects
against replacing a client's data: a client that sends no coins would be seen.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import torch
from torch import Tensor

from sordino.core import check
from sordino.core.errors import SpecError
from sordino.core.rng import RowStream
from sordino.privacy.clip import Bounded
from sordino.privacy.events import Event
from sordino.privacy.integer_noise import LONGEST
from sordino.privacy.mechanisms.discrete_gaussian import DiscreteGaussian, DistributedDiscreteGaussianEvent
from sordino.privacy.mechanisms.poisson_binomial import PoissonBinomial
from sordino.privacy.mechanisms.skellam import Skellam, SkellamEvent
from sordino.privacy.quantise import Bounds, bounds, quantise
from sordino.privacy.release import Use
from sordino.privacy.rotation import padded, restored, rotated

NOISES = ("skellam", "discrete-gaussian")
CHUNK = 2**22  # coordinates that are rotated at once
OFF = (2 * LONGEST + 2) * 2.0**-128  # distance of one number's sampler from the law, at most: see InversionTable
FINE = 16  # a lattice of step clip / (16 sqrt(d)) adds 0.1 % to the L2 bound; a finer one would buy nothing
WIDEST = 2.0**15  # largest deviation of one client's noise in steps of the lattice, for the tables of the sampler
DEVIATIONS = 8.0  # of a sum of rows, that fit between its middle and the end of the modulus


@dataclass(frozen=True)
class LatticeNoise:
    """Rotate and round rows to multiples of the granularity and add a share of integer noise to every coordinate."""

    noise_multiplier: float  # deviation of the noise of all shares over the L2 bound of the integer rows
    granularity: float
    limits: Bounds  # of the integer rows, which are padded
    noise: str = "skellam"

    integers: ClassVar[bool] = True  # rows are whole numbers with exact noise: no proof needs to know about floats

    def __post_init__(self) -> None:
        check.one_of(NOISES, noise=self.noise)
        check.positive(noise_multiplier=self.noise_multiplier, granularity=self.granularity)

    def apply(self, x: Bounded, rng: RowStream, use: Use) -> Tensor:
        """Return whole numbers [rows, padded(dim)], each with its client's share of the noise."""
        if use.multiplier is not None:
            raise SpecError("clients that share noise in whole numbers cannot have noise multipliers of their own.")

        def noisy(rows: Tensor, rng: RowStream) -> Tensor:
            whole = quantise(Bounded(rotated(rows, use.round), x.bound, x.norm), self.granularity, rng.at("lattice"))
            if self.noise == "skellam":
                return Skellam(self.noise_multiplier).add(whole, rng.at("noise"), use.split)
            return DiscreteGaussian(self.noise_multiplier / math.sqrt(use.split)).add(whole, rng.at("noise"))

        return _by_chunks(x.value, rng, noisy)

    def event(self, split: int = 1) -> Event:
        """Return the event of a sum that contains this many shares."""
        limits, distance = self.limits, min(split * self.limits.dim * OFF, 1 - 2**-53)
        if self.noise == "skellam":  # the variance is rounded down, so that the cost is slightly overestimated
            mu = math.nextafter(self.noise_multiplier**2 * limits.l2_squared * (1 - 2**-50), 0.0)
            return SkellamEvent(mu, limits.l1, limits.l2, distance)
        sigma = self.noise_multiplier * math.sqrt(limits.l2_squared) / math.sqrt(split) * (1 - 2**-50)
        return DistributedDiscreteGaussianEvent(sigma, split, limits.dim, limits.l1, limits.l2, distance)

    def std(self, bound: float) -> float:
        """Return the standard deviation of the noise of all shares on one coordinate."""
        return self.noise_multiplier * self.granularity * math.sqrt(self.limits.l2_squared)

    def floats(self, total: Tensor, round: int, dim: int) -> Tensor:
        """Return the sum [1, dim] that a sum of whole-number rows stands for."""
        return restored(total.double() * self.granularity, round, dim)


@dataclass(frozen=True)
class Coins:
    """Rotate rows, limit every coordinate to `peak` and send 2 heads - levels of `levels` biased coins for each."""

    noise_multiplier: float  # z: in the limit of many coins, the price is that of N(0, z^2) on a value that moves by 1
    levels: int  # m: number of coins per coordinate
    peak: float  # bound on every coordinate of a rotated row
    dim: int  # number of coordinates of a rotated row

    integers: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check.positive(noise_multiplier=self.noise_multiplier, peak=self.peak)
        check.count(levels=self.levels, dim=self.dim)

    def mechanism(self, split: int) -> PoissonBinomial:
        """Return the mechanism that hides a client among this many, with the bias that the noise multiplier means.

        Replacing a client moves the mean of a coordinate of the sum by 2 theta m, with a variance of at least
        n m (1/4 - theta^2); over d coordinates this is 1/z^2 if theta^2 / (1/4 - theta^2) = n / (4 m d z^2).
        """
        ratio = split / (4 * self.levels * self.dim * self.noise_multiplier**2)
        return PoissonBinomial(self.levels, 0.5 * math.sqrt(ratio / (1 + ratio)))

    def apply(self, x: Bounded, rng: RowStream, use: Use) -> Tensor:
        """Return whole numbers [rows, padded(dim)] between -levels and levels."""
        if use.multiplier is not None:
            raise SpecError("clients that hide in one another's coins cannot have noise multipliers of their own.")
        coins = self.mechanism(use.split)

        def noisy(rows: Tensor, rng: RowStream) -> Tensor:
            flat = rotated(rows, use.round).clamp(-self.peak, self.peak)
            return 2 * coins.add(Bounded(flat, self.peak, math.inf), rng) - self.levels

        return _by_chunks(x.value, rng, noisy)

    def event(self, split: int = 1) -> Event:
        """Return the event of a sum over this many clients."""
        return self.mechanism(split).event(split, self.dim)

    def floats(self, total: Tensor, round: int, dim: int, split: int) -> Tensor:
        """Return the unbiased sum [1, dim] of the rows, as far as `peak` has not cut them."""
        bias = 2 * self.levels * self.mechanism(split).theta
        return restored(total.double() * (self.peak / bias), round, dim)


@lru_cache(maxsize=64)
def lattice_noise(
    noise: str, noise_multiplier: float, clip: float, dim: int, bits: int, sharing: int, cohort: float
) -> LatticeNoise:
    """Return noise on the finest useful lattice whose sums stay within 2^bits, except by eight standard deviations.

    Kairouz, Liu, Steinke (2021), Section 5: a coordinate of a sum over n clients has at most the deviation of
    `deviation`. The step is a power of two, so that every machine divides by it exactly.

    Args:
        noise: skellam or discrete-gaussian.
        noise_multiplier: deviation of the noise of all shares over the bound of the integer rows.
        clip: L2 bound of the rows.
        dim: number of coordinates of a row.
        bits: sums are added up modulo 2^bits.
        sharing: number of shares of which the noise consists.
        cohort: largest number of clients that is expected in a sum.
    """
    wide = padded(dim)
    step = math.ldexp(1.0, math.frexp(clip / (FINE * math.sqrt(wide)))[1] - 1)
    while step < 2.0**60 * clip:
        made = LatticeNoise(noise_multiplier, step, bounds(clip, 2, wide, step), noise)
        narrow = made.std(clip) / math.sqrt(sharing) <= WIDEST * step
        if narrow and DEVIATIONS * deviation(made, clip, sharing, cohort) <= step * 2.0 ** (bits - 1):
            return made
        step *= 2
    raise SpecError(
        f"sums of {wide} whole numbers with noise {noise_multiplier:.3g} times a client's contribution do not fit into "
        f"{bits} bits: use more bits."
    )


def deviation(made: LatticeNoise, clip: float, sharing: int, cohort: float) -> float:
    """Return the deviation of a coordinate of a sum: of rows that all point the same way, of rounding and of noise."""
    shares = made.std(clip) ** 2 * cohort / sharing
    return math.sqrt((clip * cohort) ** 2 / made.limits.dim + cohort * made.granularity**2 / 4 + shares)


def wrapping(made: LatticeNoise, clip: float, bits: int, sharing: int, cohort: float) -> float:
    """Return the probability that a given coordinate of a sum exceeds 2^bits, by a Gaussian tail."""
    half = made.granularity * 2.0 ** (bits - 1)
    return math.erfc(half / (math.sqrt(2) * deviation(made, clip, sharing, cohort)))


def _by_chunks(rows: Tensor, rng: RowStream, noisy: Callable[[Tensor, RowStream], Tensor]) -> Tensor:
    count = max(1, CHUNK // padded(rows.shape[1]))
    parts = [slice(k, k + count) for k in range(0, max(1, len(rows)), count)]
    return torch.cat([noisy(rows[p], RowStream(rng.stream, rng.ids[p])) for p in parts])
