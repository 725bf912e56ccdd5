"""The exponential mechanism over a finite set of candidates.  McSherry and Talwar (2007).

Candidate r is chosen with probability proportional to exp(epsilon u(r) / (2 bound)), or exp(epsilon u(r) / bound) if
utilities are monotone. Here u is the sum of the units' utility rows, each clipped in the L-infinity norm (by scaling):
adding or removing one unit changes every u(r) by at most the bound, in either direction. Monotone means that an added
unit never lowers a utility; rows are then clipped to [0, bound]. `clip` does both. The same holds for one row against a
zero row.

The losses lie in an interval of width epsilon ("bounded range": Durfee and Rogers 2019, arXiv:1905.04273), which is
stronger than epsilon-DP. Let the interval be [t - epsilon, t]. Convex functions of the likelihood ratio, which has mean
1 under Q, are largest on two points at the ends (Dong, Durfee, Rogers 2020, arXiv:1909.13830). The worst t for the
hockey-stick divergence at e^l is (l + epsilon)/2 and gives (1 - e^{(l - epsilon)/2})^2 / (1 - e^{-epsilon}) for |l| <=
epsilon. A maximum of convex functions is convex, hence the curve of a pair (Zhu, Dong, Wang 2022, arXiv:2106.08567):
`BoundedRange`, which dominates. zCDP holds with rho = epsilon^2/8 (Cesar and Rogers 2021, arXiv:2004.07223): by
Hoeffding's lemma 0 = ln E_P e^{-L} <= -E_P L + epsilon^2/8, and ln E_P e^{(a-1)L} <= (a-1) E_P L + (a-1)^2 epsilon^2/8.

Probabilities are floats: a candidate with probability below 2^-54 is never chosen, which the proofs do not cover
(Mironov 2012).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.special import softmax

from sordino.core import check
from sordino.core.errors import SpecError
from sordino.core.rng import RowStream
from sordino.core.types import Rows
from sordino.privacy.clip import Bounded, clip_rows
from sordino.privacy.events import Event
from sordino.privacy.pairs import Masses, Pair

__all__ = ["Exponential"]

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class BoundedRange:
    """A pair without atoms that dominates every pair whose losses lie in some interval of width epsilon."""

    epsilon: float
    symmetric: bool = True

    def _inside(self, loss: Floats) -> tuple[Floats, float]:
        return np.clip(loss, -self.epsilon, self.epsilon), -math.expm1(-self.epsilon)

    def above(self, loss: Floats) -> Masses:
        at, total = self._inside(loss)
        p = -np.expm1((at - self.epsilon) / 2) / total
        return p, p * np.exp(-(at + self.epsilon) / 2)

    def below(self, loss: Floats) -> Masses:
        at, total = self._inside(loss)
        q = -np.expm1(-(at + self.epsilon) / 2) / total
        return q * np.exp((at - self.epsilon) / 2), q

    def reversed(self) -> Pair:
        return self


@dataclass(frozen=True)
class ExponentialEvent(Event):
    """One choice among candidates, of bounded range epsilon."""

    mirrored: ClassVar[bool] = False  # the curve is a maximum over pairs, each with its own direction
    epsilon: float

    def __post_init__(self) -> None:
        check.positive(epsilon=self.epsilon)

    def pure(self) -> float:
        return self.epsilon

    def rho(self) -> float:
        return self.epsilon * self.epsilon / 8

    def renyi(self, orders: Floats) -> Floats:
        """Return the largest Renyi divergences of two points at distance epsilon.

        E e^{aL} = x^{a-1} (c - x d) with x = e^t is maximised over x.
        """
        a, e = np.asarray(orders, dtype=np.float64), self.epsilon
        zcdp = a * self.rho()
        if e < 0.01:  # equal up to e^2, and numerically accurate
            return np.asarray(zcdp)
        with np.errstate(over="ignore"):
            log_numerator = np.log(-np.expm1(-a * e))
            peak = e + np.log((a - 1) / a) + log_numerator - np.log(-np.expm1(-(a - 1) * e))
            curve = peak + (log_numerator - np.log(a) - math.log(-math.expm1(-e))) / (a - 1)
        return np.asarray(np.minimum(curve, np.minimum(zcdp, e)))

    def pair(self) -> Pair:
        return BoundedRange(self.epsilon)

    def grouped(self, k: int) -> Event:
        return type(self)(k * self.epsilon)  # every utility changes by at most k bounds


def clip_units(rows: Rows, bound: float, monotone: bool) -> Bounded:
    """Clip the units' rows to [-bound, bound], or to [0, bound] if monotone.

    Their sum s is then Bounded(s, bound, math.inf).
    """
    return clip_rows(rows.clamp_min(0) if monotone else rows, bound, math.inf)


def checked(rows: Bounded, name: str, monotone: bool) -> Floats:
    """Check the utilities and return them as float64 on the host."""
    rows.require(math.inf, name)
    check.positive(bound=rows.bound)
    value = rows.value.detach().to("cpu", torch.float64).numpy()
    if value.ndim != 2 or value.shape[1] == 0:
        raise SpecError(f"{name} needs rows of at least one column, not shape {tuple(value.shape)}.")
    if not np.isfinite(value).all():
        raise SpecError(f"{name} met a value that is not finite; clip the units' rows first.")
    if monotone and (value < 0).any():
        raise SpecError(f"monotone {name} met a negative value; clip the units' rows with {name}'s own clip.")
    return np.asarray(value)


@dataclass(frozen=True)
class Exponential:
    """Choose one candidate per row according to its utility."""

    epsilon: float  # one choice is epsilon-DP
    monotone: bool = False  # whether adding a unit never lowers a utility

    geometry: ClassVar[str] = "L-infinity"
    exact: ClassVar[bool] = False
    calibrated: ClassVar[str] = "epsilon"

    def __post_init__(self) -> None:
        check.positive(epsilon=self.epsilon)
        if not isinstance(self.monotone, bool):
            raise SpecError(f"monotone must be true or false, not {self.monotone!r}.")

    def clip(self, rows: Rows, bound: float) -> Bounded:
        """Clip each unit's utilities to a row within [-bound, bound], or [0, bound] if monotone."""
        return clip_units(rows, bound, self.monotone)

    def select(self, rows: Bounded, rng: RowStream) -> torch.Tensor:
        """Return the index of one chosen candidate per row, from utilities [rows, candidates]."""
        utilities = checked(rows, "exponential", self.monotone)
        cumulative = np.cumsum(self.probabilities(utilities, rows.bound), axis=1)
        chosen = (cumulative < rng.uniform(1) * cumulative[:, -1:]).sum(axis=1)
        return torch.from_numpy(chosen).to(rows.value.device)

    def event(self) -> Event:
        """Return the event of one choice."""
        return ExponentialEvent(self.epsilon)

    def probabilities(self, utilities: ArrayLike, bound: float) -> Floats:
        """Return the probability of every candidate [..., candidates]."""
        return np.asarray(softmax(np.asarray(utilities, dtype=np.float64) / self._scale(bound), axis=-1))

    def _scale(self, bound: float) -> float:
        check.positive(bound=bound)
        return (1 if self.monotone else 2) * bound / self.epsilon
