"""The hybrid mechanism (HM): the piecewise mechanism with probability alpha, otherwise Duchi's.  Wang et al. (2019),
arXiv:1907.00782, Section III-C; vectors by Algorithm 4.

alpha = 1 - e^{-eps/2} above eps* = 0.61, which makes the variance the same for every x, and 0 below, where Duchi's
mechanism alone is best in the worst case. The choice between the two does not depend on x and may be known.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import expit

from sordino.core import check
from sordino.core.rng import RowStream
from sordino.privacy.events import Event
from sordino.privacy.mechanisms.duchi import coordinate, mean, numbers
from sordino.privacy.mechanisms.harmony import tilted
from sordino.privacy.mechanisms.piecewise import (
    Piecewise,
    draw_coordinates,
    drawn_coordinates,
    piecewise,
    piecewise_variance,
    scatter,
)
from sordino.privacy.mechanisms.randomized_response import Floats, ThreeLosses, coins, level

__all__ = ["Hybrid"]

_ROOT = 405 * math.sqrt(241)
TURN = math.log((-5 + 2 * (6353 - _ROOT) ** (1 / 3) + 2 * (6353 + _ROOT) ** (1 / 3)) / 27)  # eps* = 0.609352


@dataclass(frozen=True)
class HybridEvent(ThreeLosses, Event):
    """One report of the hybrid mechanism."""

    epsilon: float
    coordinates: int = 1  # k: number of coordinates reported, with epsilon / k each

    def __post_init__(self) -> None:
        level(self.epsilon)
        check.count(coordinates=self.coordinates)

    def parts(self) -> int:
        """Return the number of coordinates reported."""
        return self.coordinates

    def mass(self) -> float:
        each = self.epsilon / self.coordinates
        return mix(each) * float(expit(each / 2)) + (1 - mix(each)) * float(expit(each))


@dataclass(frozen=True)
class Hybrid:
    """Report by the piecewise mechanism or by Duchi's mechanism, chosen by a coin."""

    epsilon: float  # epsilon of one report (pure DP), all coordinates together
    dim: int = 1  # d: number of coordinates of a value, each in [-1, 1]

    geometry: ClassVar[str] = "one value a report"
    exact: ClassVar[bool] = False
    calibrated: ClassVar[str] = "epsilon"

    def __post_init__(self) -> None:
        level(self.epsilon)
        check.count(dim=self.dim)

    @property
    def coordinates(self) -> int:
        """k: the number of the d coordinates that a report covers."""
        return drawn_coordinates(self.epsilon, self.dim)

    @property
    def scale(self) -> float:
        """Duchi's B for one coordinate."""
        return 1 / math.tanh(self.epsilon / self.coordinates / 2)

    def randomize(self, values: ArrayLike, rng: RowStream) -> Floats:
        """Return one report for each value, in the shape of `values` ([n, d], or [n] for d = 1)."""
        x, each = numbers(values, self.dim, rng), self.epsilon / self.coordinates
        drawn = draw_coordinates(rng.at("coordinates"), self.dim, self.coordinates)  # [n, k]
        near = np.take_along_axis(x, drawn, axis=1)
        spread = coins(rng.at("which").words(self.coordinates), mix(each))
        corner = self.scale * tilted(rng.at("corner").words(self.coordinates), near, each)
        said = np.where(spread, piecewise(near, each, rng.at("report")), corner)
        return scatter(said, drawn, self.dim).reshape(np.shape(values))

    def probabilities(self, value: float) -> Floats:
        """Return the probabilities of the atoms -B and B of one coordinate's report, before the factor d/k."""
        each = self.epsilon / self.coordinates
        tilt = coordinate(value) * math.tanh(each / 2)
        return (1 - mix(each)) * np.array([1 - tilt, 1 + tilt]) / 2

    def density(self, value: float, out: ArrayLike) -> Floats:
        """Return the density of the rest of one coordinate's report, before the factor d/k."""
        each = self.epsilon / self.coordinates
        return mix(each) * Piecewise(each).density(value, out)

    def estimate(self, reports: ArrayLike) -> Floats:
        """Return the unbiased estimate of the mean of every coordinate [d]."""
        return mean(reports, self.dim)

    def variance(self, value: float) -> float:
        """Return the variance of one coordinate of one report."""
        x, each = coordinate(value), self.epsilon / self.coordinates
        base_variance = mix(each) * piecewise_variance(x, each) + (1 - mix(each)) * (self.scale**2 - x * x)
        return self.dim / self.coordinates * (x * x + base_variance) - x * x

    def worst_variance(self) -> float:
        """Return the largest `variance` over all values, in closed form."""
        each = self.epsilon / self.coordinates
        less, share = math.exp(-each / 2), self.dim / self.coordinates
        if each <= TURN:  # at x = 0; above, the coefficient of x^2 is d/k - 1 >= 0
            return share * self.scale**2
        flat = less * (1 + 3 * less) / (3 * (1 - less)) + less * self.scale**2
        return share * (1 + flat) - 1

    def event(self) -> Event:
        """Return the event of one report."""
        return HybridEvent(self.epsilon, self.coordinates)


def mix(epsilon: float) -> float:
    """Return alpha, the probability of the piecewise mechanism."""
    return -math.expm1(-epsilon / 2) if epsilon > TURN else 0.0
