"""Duchi's mechanism for numbers in [-1, 1] and for vectors in [-1, 1]^d.  Duchi, Jordan, Wainwright (2018), "Minimax
optimal procedures for locally private estimation"; constants: Nguyen et al. (2016), arXiv:1606.05053, and Wang et
al. (2019), arXiv:1907.00782, Algorithm 3. In one dimension: Fu et al., Eq. 13.

Round x to v in {-1, 1}^d with mean x, then report a corner t of {-B, B}^d with probability proportional to e^eps if t .
v > 0 and to 1 otherwise. For odd d this is a coin with probability e^eps / (1 + e^eps) that chooses between two halves.
For even d the ties t . v = 0 belong to one half only: if they belonged to both halves, with the same coin, they would
have probability 1/|T|, and the mechanism's epsilon would be ln(1 + e^eps) > eps.
"""

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sordino.core import check
from sordino.core.errors import DataError, SpecError
from sordino.core.rng import RowStream
from sordino.privacy.events import Event
from sordino.privacy.mechanisms.randomized_response import Floats, ThreeLosses, array, coins, level

__all__ = ["Duchi"]

Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class DuchiEvent(ThreeLosses, Event):
    """One report of Duchi's mechanism."""

    epsilon: float
    dim: int = 1

    def __post_init__(self) -> None:
        level(self.epsilon)
        check.count(dim=self.dim)

    def mass(self) -> float:
        return 1 - away(self.epsilon, self.dim)


@dataclass(frozen=True)
class Duchi:
    """Report a corner of a cube, where one half of the corners is e^epsilon times as likely as the other."""

    epsilon: float  # epsilon of one report (pure DP), all coordinates together
    dim: int = 1  # d: number of coordinates of a value, each in [-1, 1]

    geometry: ClassVar[str] = "one value a report"
    exact: ClassVar[bool] = True
    calibrated: ClassVar[str] = "epsilon"

    def __post_init__(self) -> None:
        level(self.epsilon)
        check.count(dim=self.dim)

    @property
    def scale(self) -> float:
        """B: every coordinate of a report is B or -B; (e^eps + 1)/(e^eps - 1) for d = 1."""
        less = math.exp(-self.epsilon)
        return 2 * (less + half(self.dim) * (1 - less)) / (-math.expm1(-self.epsilon) * central(self.dim // 2))

    def randomize(self, values: ArrayLike, rng: RowStream) -> Floats:
        """Return one report for each value, in the shape of `values` ([n, d], or [n] for d = 1)."""
        x = numbers(values, self.dim, rng)
        corner = rng.at("round").uniform(self.dim) < (1 + x) / 2  # v: true stands for 1
        far = coins(rng.at("half").words(1)[:, 0], away(self.epsilon, self.dim))
        out = np.empty(x.shape, dtype=bool)
        left, turn = np.arange(len(x)), 0
        while len(left):  # one pass for odd d; a few for even d, because of ties
            some = replace(rng.at("corner", turn), ids=rng.ids[left])
            drawn, fits = self._try(corner[left], far[left], some)
            out[left[fits]] = drawn[fits]
            left, turn = left[~fits], turn + 1
        return np.where(out, self.scale, -self.scale).reshape(np.shape(values))

    def _try(self, corner: Bools, far: Bools, rng: RowStream) -> tuple[Bools, Bools]:
        """Draw a uniform corner for every row, negated where that helps.

        Returns:
            The corners, and whether each lies in the half that was drawn.
        """
        words = rng.words(-(-self.dim // 64))
        drawn = np.unpackbits(words.view(np.uint8), axis=1)[:, : self.dim].astype(bool)
        dot = 2 * (drawn == corner).sum(axis=1) - self.dim
        if self.dim % 2:
            drawn[(dot > 0) == far] ^= True
            return drawn, np.ones(len(drawn), dtype=bool)
        drawn[(dot < 0) & ~far] ^= True
        return drawn, np.where(far, dot <= 0, dot != 0)

    def outputs(self) -> Floats:
        """Return all 2^d reports [2^d, d], for small d."""
        if self.dim > 12:
            raise SpecError(f"2^{self.dim} reports are too many to list; use dim of at most 12.")
        return self.scale * corners(self.dim)

    def probabilities(self, value: ArrayLike) -> Floats:
        """Return the probability of every report in `outputs`."""
        x, signs = numbers([np.atleast_1d(value)], self.dim)[0], np.sign(self.outputs())
        rounded = np.prod((1 + x * signs) / 2, axis=1)  # probability of every v
        weight = np.where(signs @ signs.T > 0, 1.0, math.exp(-self.epsilon))
        return np.asarray(rounded @ (weight / weight[0].sum()))

    def estimate(self, reports: ArrayLike) -> Floats:
        """Return the unbiased estimate of the mean of every coordinate [d]."""
        return mean(reports, self.dim)

    def variance(self, value: float) -> float:
        """Return the variance of one coordinate of one report: B^2 - x^2."""
        return self.scale**2 - coordinate(value) ** 2

    def event(self) -> Event:
        """Return the event of one report."""
        return DuchiEvent(self.epsilon, self.dim)


def central(m: float) -> float:
    """Return C(2m, m) / 4^m = Gamma(m + 1/2) / (sqrt(pi) Gamma(m + 1)), for integers and half-integers of any size."""
    if m < 50:
        return math.gamma(m + 0.5) / math.gamma(m + 1) / math.sqrt(math.pi)
    series = 1 - 1 / (8 * m) + 1 / (128 * m**2) + 5 / (1024 * m**3) - 21 / (32768 * m**4) - 399 / (262144 * m**5)
    return series / math.sqrt(math.pi * m)


def half(dim: int) -> float:
    """Return C_d / 2^d, the fraction of corners t with t . v > 0."""
    return 0.5 if dim % 2 else (1 - central(dim // 2)) / 2


def away(epsilon: float, dim: int) -> float:
    """Return the probability of the half with t . v <= 0: (2^d - C_d) / (2^d + C_d (e^eps - 1))."""
    less, share = math.exp(-epsilon), half(dim)
    return (1 - share) * less / (less + share * (1 - less))


def corners(dim: int) -> Floats:
    """Return all corners of {-1, 1}^d [2^d, d]."""
    return np.asarray(2.0 * ((np.arange(2**dim)[:, None] >> np.arange(dim)) & 1) - 1)


def numbers(values: ArrayLike, dim: int, rng: RowStream | None = None, low: float = -1.0, high: float = 1.0) -> Floats:
    """Return rows of numbers [n, dim], clamped to the public domain [low, high].

    For dim = 1 a plain list is accepted. If `rng` is given, there must be one row per client of it.
    """
    data = array(values, rng)
    fits = data.shape[1:] == (dim,) or (dim == 1 and data.ndim == 1)
    if not fits or data.dtype.kind not in "fiu":
        raise DataError(f"values are rows of {dim} numbers; found {data.dtype} of shape {data.shape}.")
    rows = data.astype(np.float64).reshape(len(data), dim)
    bad = np.flatnonzero(np.isnan(rows).any(axis=1))
    if len(bad):
        raise DataError(f"row {bad[0]} holds nan, which no report can stand for; leave it out or fill it in first.")
    return np.clip(rows, low, high)


def mean(reports: ArrayLike, dim: int) -> Floats:
    """Return the mean of every coordinate [d]."""
    return np.asarray(numbers(reports, dim, low=-math.inf, high=math.inf).mean(axis=0))


def coordinate(value: float, low: float = -1.0, high: float = 1.0) -> float:
    """Return a single number, clamped to the public domain."""
    return float(numbers([value], 1, low=low, high=high)[0, 0])
