"""Staircase noise in one dimension.  Geng and Viswanath (2016), arXiv:1212.1186, Algorithm 1.

The density is e^{-epsilon level} up to a constant; the level of |x| is k on [k, k + gamma) steps and k + 1 on [k +
gamma, k + 1), and a step is the bound of a row. A shift by at most one step changes the level by at most one, so the
noise is epsilon-DP. With b = e^{-epsilon} and a shift of u <= 1 steps the loss is +epsilon with P-probability

    p(u) = (b u + (1 - b) min(u, 2 gamma)) / (2 (gamma + b (1 - gamma))),

-epsilon with probability b p(u), and 0 otherwise. p grows with u, so u = 1 dominates every smaller shift, and
D_a(u) = ln(1 + p(u) (e^{(a-1) epsilon} + e^{-a epsilon} - 1 - b)) / (a - 1), in both directions, concave in u.
(Theorem 1 of Feng et al., "Harmonizing differential privacy mechanisms for federated learning", prints another formula,
which does not hold.)

Vectors are different: any shift of a coordinate, however small, can cost epsilon, so noise on each of d coordinates is
d epsilon-DP, even under an L1 bound. Vectors are refused unless `per_coordinate` accepts that cost; staircase-ball does
not have this problem.

The noise is drawn in float64 and rounded to the rows' type, which the proof does not cover (Mironov 2012).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from sordino.core import check
from sordino.core.errors import SpecError
from sordino.core.rng import RowStream
from sordino.core.types import Rows
from sordino.privacy.clip import Bounded
from sordino.privacy.events import Event
from sordino.privacy.mechanisms.laplace import plus
from sordino.privacy.pairs import Atoms, Pair

__all__ = ["Staircase"]

Floats = NDArray[np.float64]


def check_shape(epsilon: float, gamma: float) -> None:
    """Check epsilon and gamma.

    Beyond the limits on epsilon the moments leave the range of float64; below the lower limit the noise equals Laplace
    noise to all digits.
    """
    check.positive(epsilon=epsilon)
    if not 1e-6 <= epsilon <= 500:
        raise SpecError(f"a staircase needs an epsilon from 1e-6 to 500, not {epsilon!r}; use laplace below that.")
    check.non_negative(gamma=gamma)
    if gamma > 1:
        raise SpecError(f"gamma must lie in [0, 1], not {gamma!r}.")


def check_dim(dim: int) -> None:
    """Check the number of coordinates."""
    check.count(dim=dim)
    if dim > 1e12:
        raise SpecError(f"dim must be at most 1e12, not {dim!r}.")


def top(epsilon: float, gamma: float, shift: float) -> float:
    """Return P(loss = +epsilon) for a shift of 0 to 1 steps."""
    check.non_negative(shift=shift)
    if shift > 1:
        raise SpecError(f"the curve holds for shifts of at most one step, not {shift!r}.")
    b = math.exp(-epsilon)
    return (b * shift - math.expm1(-epsilon) * min(shift, 2 * gamma)) / (2 * (gamma + b * (1 - gamma)))


def renyi_at(orders: Floats, epsilon: float, gamma: float, shift: float) -> Floats:
    """Return D_a for a shift of 0 to 1 steps at any orders above 1, without overflow."""
    p, a = top(epsilon, gamma, shift), np.asarray(orders, dtype=np.float64)
    x = (a - 1) * epsilon
    weight = p * -np.expm1(-a * epsilon)  # e^x + e^{-a epsilon} - 1 - b = (e^x - 1)(1 - e^{-a epsilon})
    flat = np.log1p(weight * np.expm1(np.minimum(x, 1.0)))
    steep = x + np.log(weight * -np.expm1(-x) + np.exp(-x))
    return np.asarray(np.where(x < 1, flat, steep) / (a - 1))


@dataclass(frozen=True)
class StaircaseEvent(Event):
    """Staircase noise on one number that is moved by at most one step."""

    epsilon: float
    gamma: float

    def __post_init__(self) -> None:
        check_shape(self.epsilon, self.gamma)

    def pure(self) -> float:
        return self.epsilon

    def renyi(self, orders: Floats) -> Floats:
        return renyi_at(orders, self.epsilon, self.gamma, 1.0)

    def pair(self) -> Pair:
        p, b = top(self.epsilon, self.gamma, 1.0), math.exp(-self.epsilon)
        rest = max(0.0, 1 - p - p * b)
        return Atoms([-self.epsilon, 0.0, self.epsilon], [p * b, rest, p], [p, rest, p * b], symmetric=True)


@dataclass(frozen=True)
class PerCoordinateStaircaseEvent(Event):
    """Independent noise on `dim` numbers whose vector is moved by at most one step in the L1 or L2 norm.

    D_a(u) is concave and grows with u, so the even split is the worst case: dim D_a(1/dim) in L1, dim D_a(dim^-1/2) in
    L2.
    """

    epsilon: float
    gamma: float
    dim: int
    norm: float

    def __post_init__(self) -> None:
        check_shape(self.epsilon, self.gamma)
        check_dim(self.dim)
        check_norm(self.norm)

    def pure(self) -> float:
        return self.dim * self.epsilon

    def rho(self) -> float:
        return self.dim * self.epsilon**2 / 2  # dim releases, each epsilon-DP

    def renyi(self, orders: Floats) -> Floats:
        split = self.dim ** (-1 / self.norm)
        return self.dim * renyi_at(orders, self.epsilon, self.gamma, split)

    def pair(self) -> None:
        """Return None: randomized response at dim * epsilon would be uninformative, unlike the Renyi curve."""


def check_norm(norm: float) -> None:
    """Check that the norm is L1 or L2."""
    if isinstance(norm, bool) or norm not in (1, 2):
        raise SpecError(f"a staircase is made for the L1 or the L2 norm: norm must be 1 or 2, not {norm!r}.")


def best_gamma(epsilon: float) -> float:
    """Return the gamma with the smallest E|X| (Geng and Viswanath 2016, l1 cost)."""
    half = math.exp(-epsilon / 2)
    return half / (1 + half)


@dataclass(frozen=True)
class Staircase:
    """Add staircase noise of step `bound` to one number per row."""

    epsilon: float  # one use is epsilon-DP
    gamma: float | None = None  # upper part of a step, 0 to 1; default: minimises the mean absolute noise
    norm: float = 1  # norm in which rows are clipped, 1 or 2; with one column both are the same
    per_coordinate: bool = False  # accept rows of d columns at their true cost, d epsilon

    geometry: ClassVar[str] = "L1 or L2"
    exact: ClassVar[bool] = False
    calibrated: ClassVar[str] = "epsilon"

    def __post_init__(self) -> None:
        check_shape(self.epsilon, 0.0 if self.gamma is None else self.gamma)
        check_norm(self.norm)
        if not isinstance(self.per_coordinate, bool):
            raise SpecError(f"per_coordinate must be true or false, not {self.per_coordinate!r}.")

    @property
    def shape(self) -> float:
        """The value of gamma, or its default."""
        return best_gamma(self.epsilon) if self.gamma is None else self.gamma

    def add(self, rows: Bounded, rng: RowStream) -> Rows:
        """Add independent noise to every row, drawn from the stream of its client."""
        rows.require(self.norm, "staircase")
        check.positive(bound=rows.bound)
        n, gamma = rows.value.shape[1], self.shape
        self._accept(n)
        sign, start, part, spread = rng.unit(4 * n, rows.value.device).chunk(4, dim=1)  # each [rows, n]
        k = start.log().div(-self.epsilon).floor_()  # geometric from 0: P(K >= k) = e^{-epsilon k}
        upper = part < gamma / self._width()
        size = k + torch.where(upper, gamma * spread, gamma + (1 - gamma) * spread)
        return plus(rows, torch.where(sign < 0.5, -size, size) * rows.bound)

    def event(self, dim: int | None = None) -> Event:
        """Return the event of one use on rows of `dim` columns; with `per_coordinate`, `dim` must be given."""
        if dim is None and self.per_coordinate:
            raise SpecError("a per-coordinate staircase costs epsilon per coordinate: call event(dim=...).")
        columns = 1 if dim is None else dim
        check_dim(columns)
        self._accept(columns)
        if columns == 1:
            return StaircaseEvent(self.epsilon, self.shape)
        return PerCoordinateStaircaseEvent(self.epsilon, self.shape, columns, self.norm)

    def density(self, x: ArrayLike, bound: float) -> Floats:
        """Return the density of the noise on one number."""
        k, rest = self._place(x, bound)
        height = -math.expm1(-self.epsilon) / (2 * bound * self._width())
        return np.asarray(height * np.exp(-self.epsilon * (k + (rest >= self.shape))))

    def cdf(self, x: ArrayLike, bound: float) -> Floats:
        """Return the distribution function of the noise on one number."""
        k, rest = self._place(x, bound)
        gamma, b = self.shape, math.exp(-self.epsilon)
        inside = (np.minimum(rest, gamma) + b * np.maximum(rest - gamma, 0.0)) / self._width()
        tail = np.exp(-self.epsilon * k) * (1 + math.expm1(-self.epsilon) * inside) / 2
        return np.where(np.asarray(x) < 0, tail, 1 - tail)

    def mean_abs(self, bound: float) -> float:
        """Return E|X| of the noise."""
        check.positive(bound=bound)
        b = math.exp(-self.epsilon)
        return bound * (1 / math.expm1(self.epsilon) + self._moment(1, b))

    def variance(self, bound: float) -> float:
        """Return the variance E X^2 of the noise."""
        check.positive(bound=bound)
        b, odds = math.exp(-self.epsilon), 1 / math.expm1(self.epsilon)  # odds = b / (1 - b) = E k
        return (
            bound
            * bound
            * (odds * (1 + b) / -math.expm1(-self.epsilon) + 2 * odds * self._moment(1, b) + self._moment(2, b))
        )

    def _moment(self, n: int, b: float) -> float:
        """Return E (|X| - k)^n inside a step."""
        power = self.shape ** (n + 1)
        return (power + b * (1 - power)) / ((n + 1) * self._width())

    def _width(self) -> float:
        return self.shape + math.exp(-self.epsilon) * (1 - self.shape)

    def _place(self, x: ArrayLike, bound: float) -> tuple[Floats, Floats]:
        """Return |x| in whole steps, and the remainder."""
        check.positive(bound=bound)
        steps = np.abs(np.asarray(x, dtype=np.float64)) / bound
        k = np.floor(steps)
        return k, steps - k

    def _accept(self, columns: int) -> None:
        if columns != 1 and not self.per_coordinate:
            raise SpecError(
                f"staircase noise is for one number per row, not {columns}; use staircase-ball, or per_coordinate "
                f"at a cost of {columns} epsilon."
            )
