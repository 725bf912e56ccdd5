"""PrivUnit for unit vectors.  Bhowmick et al. (2018), arXiv:1812.00984, Algorithm 1; if tuned, optimal among unbiased
pure local randomizers: Asi, Feldman, Talwar (2022), arXiv:2205.02466.

Report z / m, where z is a point of the unit sphere whose density on the cap <z, v> >= gamma is e^eps times that on the
rest, and m makes the mean equal to v. Epsilon is exact: with a = P(<U, v> >= gamma) for a uniform U, p = e^eps a /
(e^eps a + 1 - a), whereas the paper bounds a in closed form and splits eps in two. With J = E[<U, v>; cap] = C(2k,
k)/4^k (1 - gamma^2)^k / 2, k = (d - 1)/2, m = J (e^eps - 1)/(1 + a (e^eps - 1)), which is largest where m(gamma) =
gamma.

The directions are float32 normals; rounding is not covered by the proof (Mironov 2012).
"""

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import ArrayLike
from scipy.optimize import brentq
from scipy.special import betaincc, betainccinv, betaincinv

from sordino.core import check
from sordino.core.errors import DataError, SpecError
from sordino.core.rng import RowStream
from sordino.privacy.events import Event
from sordino.privacy.mechanisms.duchi import Bools, central, mean, numbers
from sordino.privacy.mechanisms.randomized_response import Floats, ThreeLosses, coins, level

__all__ = ["PrivUnit"]


@dataclass(frozen=True)
class PrivUnitEvent(ThreeLosses, Event):
    """One report of PrivUnit."""

    epsilon: float
    dim: int

    def __post_init__(self) -> None:
        level(self.epsilon)
        sphere(self.dim)

    def mass(self) -> float:  # the caps of two opposite vectors are disjoint
        return 1 - PrivUnit(self.epsilon, self.dim).outside


@dataclass(frozen=True)
class PrivUnit:
    """Report a random direction, more likely in a cap around the true one, scaled to be unbiased."""

    epsilon: float  # epsilon of one report (pure DP)
    dim: int  # d: number of coordinates of a value; only its direction is used

    geometry: ClassVar[str] = "one value a report"
    exact: ClassVar[bool] = False
    calibrated: ClassVar[str] = "epsilon"

    def __post_init__(self) -> None:
        level(self.epsilon)
        sphere(self.dim)

    @property
    def gamma(self) -> float:
        """The threshold on <z, v> at which the cap begins."""
        return tune(self.epsilon, self.dim)

    @property
    def cap(self) -> float:
        """a: the cap's fraction of the sphere."""
        return share(self.gamma, self.dim)

    @property
    def outside(self) -> float:
        """1 - p: the probability of a report outside the cap."""
        less = math.exp(-self.epsilon)
        return (1 - self.cap) * less / (less + self.cap * (1 - less))

    @property
    def shrink(self) -> float:
        """m: the mean of <z, v>; a report has norm 1/m."""
        return pull(self.gamma, self.epsilon, self.dim)

    def randomize(self, values: ArrayLike, rng: RowStream) -> Floats:
        """Return one report for each vector [n, d]; only the directions of the vectors count."""
        v = self._unit(values, rng)
        t = self.along(coins(rng.at("cap").words(1)[:, 0], self.outside), rng.at("along").uniform(1)[:, 0])[:, None]
        across = directions(rng.at("across"), self.dim)
        across -= (across * v).sum(axis=1, keepdims=True) * v
        across /= np.linalg.norm(across, axis=1, keepdims=True)
        return (t * v + np.sqrt(1 - t * t) * across) / self.shrink

    def along(self, outside: Bools, u: Floats) -> Floats:
        """Return <z, v> by the inverse distribution function, given the side of gamma and a uniform `u`."""
        tail = np.where(outside, self.cap + u * (1 - self.cap), u * self.cap)  # P(<U, v> > t)
        both, k = 2 * np.minimum(tail, 1 - tail), (self.dim - 1) / 2
        squared = np.where(both < 0.5, betainccinv(0.5, k, both), betaincinv(0.5, k, np.abs(1 - 2 * tail)))
        t = np.copysign(np.sqrt(squared), 0.5 - tail)
        return np.asarray(np.where(outside, np.minimum(t, self.gamma), np.maximum(t, self.gamma)))

    def _unit(self, values: ArrayLike, rng: RowStream) -> Floats:
        """Return rows of norm 1.

        A row of zeros has no direction and gets a random one, which keeps its mean at zero.
        """
        rows = numbers(values, self.dim, rng, low=-math.inf, high=math.inf)
        if not np.isfinite(rows).all():
            raise DataError(
                f"row {np.flatnonzero(~np.isfinite(rows).all(axis=1))[0]} is infinite and has no direction."
            )
        largest = np.abs(rows).max(axis=1, keepdims=True)
        zero = largest[:, 0] == 0
        rows = rows / np.where(largest > 0, largest, 1.0)
        if zero.any():
            rows[zero] = directions(replace(rng.at("zero"), ids=rng.ids[zero]), self.dim)
        return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True))

    def density(self, value: ArrayLike, out: ArrayLike) -> Floats:
        """Return the density of the reports `out` [n, d] for one unit vector.

        It is relative to the uniform distribution on the sphere of reports.
        """
        inner = numbers(out, self.dim, low=-math.inf, high=math.inf) @ np.asarray(value, dtype=np.float64)
        inside = inner * self.shrink >= self.gamma
        return np.where(inside, (1 - self.outside) / self.cap, self.outside / (1 - self.cap))

    def estimate(self, reports: ArrayLike) -> Floats:
        """Return the unbiased estimate of the mean of the unit vectors [d]."""
        return mean(reports, self.dim)

    def variance(self) -> float:
        """Return E|Z - v|^2 of one report: 1/m^2 - 1."""
        return 1 / self.shrink**2 - 1

    def event(self) -> Event:
        """Return the event of one report."""
        return PrivUnitEvent(self.epsilon, self.dim)


def sphere(dim: int) -> None:
    """Check the dimension."""
    check.count(dim=dim)
    if dim < 2:
        raise SpecError("dim must be at least 2: on a line there are two directions; use randomized-response.")


def share(gamma: float, dim: int) -> float:
    """Return P(<U, v> >= gamma) for a uniform U: <U, v>^2 is Beta(1/2, (d - 1)/2)."""
    return float(betaincc(0.5, (dim - 1) / 2, gamma * gamma)) / 2


def pull(gamma: float, epsilon: float, dim: int) -> float:
    """Return m, the mean of <z, v>."""
    k, gain = (dim - 1) / 2, -math.expm1(-epsilon)
    inner = central(k) / 2 * math.exp(k * math.log1p(-gamma * gamma)) if gamma < 1 else 0.0  # J
    return inner * gain / (math.exp(-epsilon) + share(gamma, dim) * gain)


@lru_cache(maxsize=256)
def tune(epsilon: float, dim: int) -> float:
    """Return the gamma with the largest m: dm/dgamma has the sign of m - gamma."""
    return float(brentq(lambda g: pull(g, epsilon, dim) - g, 0.0, 1.0, xtol=1e-300, rtol=1e-14))


def directions(rng: RowStream, dim: int) -> Floats:
    """Return normal vectors [n, d], never all zero."""
    return np.asarray(rng.normal(dim, torch.empty(0, dtype=torch.float64)).numpy(), dtype=np.float64)
