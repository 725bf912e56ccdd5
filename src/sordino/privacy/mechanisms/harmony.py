"""Harmony: Duchi's mechanism on one coordinate drawn at random.  Nguyen et al. (2016), arXiv:1606.05053.

It works for any x in [-1, 1]^d, not only for bit vectors (as Fu et al., Section 2.3.2, have it). The server learns
which coordinate was drawn; the draw does not depend on x. The error of a mean is of the same order as that of Duchi's
mechanism for vectors, at one bit per user.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit

from sordino.core import check
from sordino.core.rng import RowStream
from sordino.privacy.events import Event
from sordino.privacy.mechanisms.duchi import coordinate, mean, numbers
from sordino.privacy.mechanisms.randomized_response import Floats, coins, level

__all__ = ["Harmony"]


@dataclass(frozen=True)
class HarmonyEvent(Event):
    """One report of Harmony."""

    replaces: ClassVar[bool] = True
    epsilon: float

    def __post_init__(self) -> None:
        level(self.epsilon)

    def pure(self) -> float:
        return self.epsilon  # two vectors may differ in every coordinate, so this is no better than randomized response


@dataclass(frozen=True)
class Harmony:
    """Report one bit for a random coordinate, scaled by d, and zero elsewhere."""

    epsilon: float  # epsilon of one report (pure DP)
    dim: int  # d: number of coordinates of a value, each in [-1, 1]

    geometry: ClassVar[str] = "one value a report"
    exact: ClassVar[bool] = True
    calibrated: ClassVar[str] = "epsilon"

    def __post_init__(self) -> None:
        level(self.epsilon)
        check.count(dim=self.dim)

    @property
    def scale(self) -> float:
        """The absolute value of the reported coordinate: d (e^eps + 1)/(e^eps - 1)."""
        return self.dim / math.tanh(self.epsilon / 2)

    def randomize(self, values: ArrayLike, rng: RowStream) -> Floats:
        """Return one report for each value, in the shape of `values` ([n, d], or [n] for d = 1)."""
        x = numbers(values, self.dim, rng)
        words, rows = rng.words(2), np.arange(len(x))
        drawn = (words[:, 0] % np.uint64(self.dim)).astype(np.int64)
        out = np.zeros(x.shape)
        out[rows, drawn] = self.scale * tilted(words[:, 1], x[rows, drawn], self.epsilon)
        return out.reshape(np.shape(values))

    def probabilities(self, value: ArrayLike) -> Floats:
        """Return the probabilities of the reports (coordinate, minus or plus) [d, 2]."""
        x = numbers([np.atleast_1d(value)], self.dim)[0]
        tilt = x * math.tanh(self.epsilon / 2)
        return np.asarray(np.stack([1 - tilt, 1 + tilt], axis=1) / (2 * self.dim))

    def estimate(self, reports: ArrayLike) -> Floats:
        """Return the unbiased estimate of the mean of every coordinate [d]."""
        return mean(reports, self.dim)

    def variance(self, value: float) -> float:
        """Return the variance of one coordinate of one report: d ((e^eps + 1)/(e^eps - 1))^2 - x^2."""
        return self.scale**2 / self.dim - coordinate(value) ** 2

    def event(self) -> Event:
        """Return the event of one report."""
        return HarmonyEvent(self.epsilon)


def tilted(words: NDArray[np.uint64], x: Floats, epsilon: float) -> Floats:
    """Return -1 or 1 with mean x (e^eps - 1)/(e^eps + 1), the sign of Duchi's mechanism.

    Each sign has probability at least 1/(1 + e^eps).
    """
    against = expit(-epsilon) + (1 - np.abs(x)) / 2 * math.tanh(epsilon / 2)  # probability of the opposite sign
    sign = np.where(x < 0, -1.0, 1.0)
    return np.where(coins(words, against), -sign, sign)
