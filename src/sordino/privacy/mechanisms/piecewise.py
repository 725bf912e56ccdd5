"""The piecewise mechanism (PM) for numbers in [-1, 1] and vectors.  Wang et al. (2019), arXiv:1907.00782, Algorithms 2
and 4.

With s = e^{eps/2} the report lies in [-C, C], C = (s + 1)/(s - 1) (a range that Fu et al., Eq. 14, omit). It is uniform
on [l(x), r(x)] with probability s/(s + 1) and uniform on the rest otherwise; the two densities differ by a factor of
e^eps. A vector is reported by k = max(1, min(d, floor(eps / 2.5))) random coordinates with eps/k each, times d/k.

Reports are rounded to multiples of C 2^-20, so that the low bits of a float reveal nothing about x.
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
from sordino.privacy.mechanisms.randomized_response import Floats, ThreeLosses, coins, level

__all__ = ["Piecewise"]

STEPS = 2.0**20  # reports are multiples of C / STEPS


@dataclass(frozen=True)
class PiecewiseEvent(ThreeLosses, Event):
    """One report of the piecewise mechanism."""

    epsilon: float
    coordinates: int = 1  # k: number of coordinates reported, with epsilon / k each

    def __post_init__(self) -> None:
        level(self.epsilon)
        check.count(coordinates=self.coordinates)

    def parts(self) -> int:
        """Return the number of coordinates reported."""
        return self.coordinates

    def mass(self) -> float:  # [l(-1), r(-1)] and [l(1), r(1)] are disjoint
        return float(expit(self.epsilon / (2 * self.coordinates)))


@dataclass(frozen=True)
class Piecewise:
    """Report a number that is likely to be near the value."""

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
    def bound(self) -> float:
        """C for one coordinate."""
        return 1 / math.tanh(self.epsilon / self.coordinates / 4)

    def randomize(self, values: ArrayLike, rng: RowStream) -> Floats:
        """Return one report for each value, in the shape of `values` ([n, d], or [n] for d = 1)."""
        x = numbers(values, self.dim, rng)
        drawn = draw_coordinates(rng.at("coordinates"), self.dim, self.coordinates)  # [n, k]
        near = np.take_along_axis(x, drawn, axis=1)
        said = piecewise(near, self.epsilon / self.coordinates, rng.at("report"))
        return scatter(said, drawn, self.dim).reshape(np.shape(values))

    def density(self, value: float, out: ArrayLike) -> Floats:
        """Return the density of one coordinate's report, before the factor d/k."""
        left, width = interval(coordinate(value), self.bound), self.bound - 1
        at, share = np.asarray(out, dtype=np.float64), self._inside()
        inner = np.where((at >= left) & (at <= left + width), share / width, (1 - share) / (self.bound + 1))
        return np.where(np.abs(at) <= self.bound, inner, 0.0)

    def cumulative(self, value: float, out: ArrayLike) -> Floats:
        """Return the integral of `density` up to `out`."""
        left, width = interval(coordinate(value), self.bound), self.bound - 1
        at, share = np.clip(np.asarray(out, dtype=np.float64), -self.bound, self.bound), self._inside()
        inside = np.clip(at - left, 0, width)
        return np.asarray(share / width * inside + (1 - share) / (self.bound + 1) * (at + self.bound - inside))

    def _inside(self) -> float:
        return float(expit(self.epsilon / self.coordinates / 2))

    def estimate(self, reports: ArrayLike) -> Floats:
        """Return the unbiased estimate of the mean of every coordinate [d]."""
        return mean(reports, self.dim)

    def variance(self, value: float) -> float:
        """Return the variance of one coordinate of one report.

        It is (d/k) (x^2 + V) - x^2 with V = x^2/(s - 1) + (s + 3)/(3 (s - 1)^2).
        """
        x = coordinate(value)
        base_variance = piecewise_variance(x, self.epsilon / self.coordinates)
        return self.dim / self.coordinates * (x * x + base_variance) - x * x

    def event(self) -> Event:
        """Return the event of one report."""
        return PiecewiseEvent(self.epsilon, self.coordinates)


def interval(x: Floats | float, bound: float) -> Floats | float:
    """Return l(x), where the likely interval begins; its width is C - 1."""
    return ((bound + 1) * x - (bound - 1)) / 2


def piecewise(x: Floats, epsilon: float, rng: RowStream) -> Floats:
    """Return one report for every number [n, k]."""
    bound = 1 / math.tanh(epsilon / 4)
    left, width = interval(x, bound), bound - 1
    outside = coins(rng.at("outside").words(x.shape[1]), float(expit(-epsilon / 2)))
    u = rng.at("where").uniform(x.shape[1])
    far = u * (bound + 1) - bound
    far = np.where(far < left, far, far + width)  # skip the likely interval
    said = np.where(outside, far, left + u * width)
    return np.asarray(np.round(said / bound * STEPS) / STEPS * bound)


def piecewise_variance(x: float, epsilon: float) -> float:
    """Return the variance of the report of one number (Wang et al. 2019, Lemma 1)."""
    less, gap = math.exp(-epsilon / 2), -math.expm1(-epsilon / 2)  # 1/s and 1 - 1/s
    return less * x * x / gap + less * (1 + 3 * less) / (3 * gap * gap)


def drawn_coordinates(epsilon: float, dim: int) -> int:
    """Return k, the number of coordinates to report (Wang et al. 2019, Algorithm 4)."""
    return max(1, min(dim, math.floor(epsilon / 2.5)))


def draw_coordinates(rng: RowStream, dim: int, k: int) -> NDArray[np.int64]:
    """Draw k of d coordinates without replacement for every row [n, k]."""
    if dim == 1:
        return np.zeros((len(rng.ids), 1), dtype=np.int64)
    if k == 1:
        return (rng.words(1) % np.uint64(dim)).astype(np.int64)
    return np.argpartition(rng.words(dim), k - 1, axis=1)[:, :k].astype(np.int64)


def scatter(said: Floats, drawn: NDArray[np.int64], dim: int) -> Floats:
    """Return reports of k coordinates [n, k] as rows [n, d], times d/k and zero elsewhere."""
    out = np.zeros((len(said), dim))
    np.put_along_axis(out, drawn, said * (dim / said.shape[1]), axis=1)
    return out
