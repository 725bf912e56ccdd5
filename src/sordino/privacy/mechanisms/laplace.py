"""Laplace noise, for an L1 or an L2 bound.  Dwork, McSherry, Nissim, Smith (2006), "Calibrating noise to sensitivity".

L1 bound: (1/b)-DP, where b is the noise multiplier. Renyi curve: Mironov (2017), arXiv:1702.07476, Proposition 6.
The one-dimensional pair dominates in every dimension. In units of b, its hockey-stick divergence at e^l for a shift of
h is 1 - e^{(l-h)/2}, |l| <= h. Two coordinates shifted by h1 >= h2 give, by integration,
    1 - e^{(l-h1-h2)/2} (1 + h2/2)              where |l| <= h1 - h2,
    1 - e^{(l-h1-h2)/2} (1 + (h1+h2-l)/4)       where h1 - h2 <= l <= h1 + h2,
and the rest follows by symmetry: it never exceeds that of one coordinate shifted by h1 + h2. Further coordinates follow
one at a time.

L2 bound: each coordinate is (h_i/b)^2/2-zCDP (Bun and Steinke 2016, Proposition 3.3), which together gives 1/(2 b^2) in
every dimension: the curve of a Gaussian with sigma = b, at sqrt(2) times its standard deviation. The pure epsilon would
grow with the dimension.

The noise is drawn in float64 and rounded to the rows' type: neither rounding is covered by the proofs (Mironov 2012,
"On significance of the least significant bits for differential privacy").
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from sordino.core import check
from sordino.core.errors import SpecError
from sordino.core.rng import RowStream
from sordino.core.types import Rows
from sordino.privacy.clip import Bounded
from sordino.privacy.events import Event
from sordino.privacy.pairs import Masses, Pair

__all__ = ["Laplace"]

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class LaplacePair:
    """Lap(0, b) against Lap(1, b) with epsilon = 1/b; half of P's mass sits at the loss epsilon."""

    epsilon: float
    symmetric: bool = True

    def _inside(self, loss: Floats) -> Masses:
        """Return P(L <= loss) and Q(L > loss) where |loss| < epsilon."""
        at = np.clip(loss, -self.epsilon, self.epsilon)
        return np.exp((at - self.epsilon) / 2) / 2, np.exp(-(at + self.epsilon) / 2) / 2

    def above(self, loss: Floats) -> Masses:
        p, q = self._inside(loss)
        high, low = loss >= self.epsilon, loss < -self.epsilon
        return np.where(high, 0.0, np.where(low, 1.0, 1 - p)), np.where(high, 0.0, np.where(low, 1.0, q))

    def below(self, loss: Floats) -> Masses:
        p, q = self._inside(loss)
        high, low = loss >= self.epsilon, loss < -self.epsilon
        return np.where(high, 1.0, np.where(low, 0.0, p)), np.where(high, 1.0, np.where(low, 0.0, 1 - q))

    def reversed(self) -> Pair:
        return self


@dataclass(frozen=True)
class LaplaceEvent(Event):
    """Laplace noise of scale noise_multiplier * L1 sensitivity on every coordinate."""

    noise_multiplier: float

    def __post_init__(self) -> None:
        check.positive(noise_multiplier=self.noise_multiplier)

    def pure(self) -> float:
        return 1 / self.noise_multiplier

    def renyi(self, orders: Floats) -> Floats:
        """Return ln( a/(2a-1) e^{(a-1)s} + (a-1)/(2a-1) e^{-as} )/(a-1) with s = 1/b."""
        s, a = self.pure(), np.asarray(orders, dtype=np.float64)
        near, far = a / (2 * a - 1), (a - 1) / (2 * a - 1)
        with np.errstate(over="ignore"):
            steep = (a - 1) * s > 1
            t = np.where(steep, 1 / a, s)
            flat = np.log1p(near * np.expm1((a - 1) * t) + far * np.expm1(-a * t)) / (a - 1)
            large = s + np.log(near + far * np.exp(-(2 * a - 1) * s)) / (a - 1)
            return np.asarray(np.minimum(np.where(steep, large, flat), np.minimum(s, a * s * s / 2)))

    def pair(self) -> Pair:
        return LaplacePair(self.pure())

    def grouped(self, k: int) -> Event:
        return LaplaceEvent(self.noise_multiplier / k)


@dataclass(frozen=True)
class LaplaceL2Event(Event):
    """Laplace noise of scale noise_multiplier * L2 sensitivity on every coordinate, in any dimension."""

    noise_multiplier: float

    def __post_init__(self) -> None:
        check.positive(noise_multiplier=self.noise_multiplier)

    def rho(self) -> float:
        return 0.5 / self.noise_multiplier / self.noise_multiplier

    def grouped(self, k: int) -> Event:
        return LaplaceL2Event(self.noise_multiplier / k)


def laplace_noise(rng: RowStream, n: int) -> Floats:
    """Draw Lap(0, 1) noise [rows, n], each value by the inverse distribution function of one uniform."""
    u = rng.uniform(n)
    return np.where(u < 0.5, np.log(2 * u), -np.log(2 * (1 - u)))


def plus(rows: Bounded, noise: Floats | Tensor) -> Rows:
    """Return rows plus noise [rows, dim], in the type and on the device of the rows."""
    if not rows.value.is_floating_point():
        raise SpecError(f"noise with a density needs floating-point rows, not {rows.value.dtype}.")
    drawn = noise if isinstance(noise, Tensor) else torch.from_numpy(noise)
    return rows.value + drawn.to(rows.value)


@dataclass(frozen=True)
class Laplace:
    """Add Lap(noise_multiplier * bound) to every coordinate."""

    noise_multiplier: float  # noise scale over the bound of a row
    norm: float = 1  # the norm rows are clipped in: 1 (pure DP) or 2 (zCDP)

    geometry: ClassVar[str] = "L1 or L2"
    exact: ClassVar[bool] = False
    calibrated: ClassVar[str] = "noise_multiplier"

    def __post_init__(self) -> None:
        check.positive(noise_multiplier=self.noise_multiplier)
        if isinstance(self.norm, bool) or self.norm not in (1, 2):
            raise SpecError(f"laplace is made for the L1 or the L2 norm: norm must be 1 or 2, not {self.norm!r}.")

    def add(self, rows: Bounded, rng: RowStream) -> Rows:
        """Add independent noise to every row, drawn from the stream of its client."""
        rows.require(self.norm, "laplace")
        return plus(rows, self._scale(rows.bound) * laplace_noise(rng, rows.value.shape[1]))

    def event(self) -> Event:
        """Return the event of one use, for the norm in which rows are clipped."""
        return LaplaceEvent(self.noise_multiplier) if self.norm == 1 else LaplaceL2Event(self.noise_multiplier)

    def density(self, x: ArrayLike, bound: float) -> Floats:
        """Return the density of the noise on one coordinate."""
        b = self._scale(bound)
        return np.asarray(np.exp(-np.abs(np.asarray(x, dtype=np.float64)) / b) / (2 * b))

    def cdf(self, x: ArrayLike, bound: float) -> Floats:
        """Return the distribution function of the noise on one coordinate."""
        t = np.asarray(x, dtype=np.float64) / self._scale(bound)
        tail = np.exp(-np.abs(t)) / 2
        return np.where(t < 0, tail, 1 - tail)

    def variance(self, bound: float) -> float:
        """Return the variance of the noise on one coordinate."""
        b = self._scale(bound)
        return 2 * b * b

    def _scale(self, bound: float) -> float:
        check.positive(bound=bound)
        return self.noise_multiplier * bound
