"""Laplace noise with outputs clamped to a public interval.

Clamping is post-processing, so one use costs as much as plain Laplace noise (Dwork and Roth 2014, Proposition 2.1). The
output is biased towards the middle of the interval, and the ends of the interval carry atoms. A density renormalised on
the interval is a different mechanism: its normalising constant depends on the data, and the same epsilon needs more
noise (Holohan et al. 2018, "The bounded Laplace mechanism in differential privacy"). This module implements neither
that mechanism nor the Clip-Laplace of Liu et al. (2023), arXiv:2304.05516.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sordino.core import check
from sordino.core.errors import SpecError
from sordino.core.rng import RowStream
from sordino.core.types import Rows
from sordino.privacy.clip import Bounded
from sordino.privacy.events import Event
from sordino.privacy.mechanisms.laplace import Laplace

__all__ = ["ClippedLaplace"]

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class ClippedLaplace:
    """Add Lap(noise_multiplier * bound) to every coordinate, then clamp it to [low, high]."""

    noise_multiplier: float  # noise scale over the L1 bound of a row
    low: float  # smallest output; public, chosen without looking at the data
    high: float  # largest output; public, chosen without looking at the data

    geometry: ClassVar[str] = "L1"
    exact: ClassVar[bool] = False
    calibrated: ClassVar[str] = "noise_multiplier"

    def __post_init__(self) -> None:
        check.positive(noise_multiplier=self.noise_multiplier)
        for name, end in (("low", self.low), ("high", self.high)):
            if isinstance(end, bool) or not isinstance(end, int | float) or not abs(end) <= 1e300:
                raise SpecError(f"{name} must be a finite number, not {end!r}.")
        if not self.low < self.high:
            raise SpecError(f"low must be below high, not {self.low!r} and {self.high!r}.")

    def add(self, rows: Bounded, rng: RowStream) -> Rows:
        """Return the rows with noise, clamped to [low, high]."""
        rows.require(1, "clipped-laplace")
        return self._noise().add(rows, rng).clamp(self.low, self.high)

    def event(self) -> Event:
        """Return the event of one use, that of plain Laplace noise."""
        return self._noise().event()

    def density(self, y: ArrayLike, x: ArrayLike, bound: float) -> Floats:
        """Return the density of the output y for the input x, strictly inside the interval.

        The rest of the probability mass is in `atoms`.
        """
        out, value = np.asarray(y, dtype=np.float64), np.asarray(x, dtype=np.float64)
        inside = (out > self.low) & (out < self.high)
        return np.where(inside, self._noise().density(out - value, bound), 0.0)

    def atoms(self, x: ArrayLike, bound: float) -> tuple[Floats, Floats]:
        """Return the probabilities of the outputs `low` and `high` for the input x."""
        value, noise = np.asarray(x, dtype=np.float64), self._noise()
        return noise.cdf(self.low - value, bound), noise.cdf(value - self.high, bound)

    def mean(self, x: ArrayLike, bound: float) -> Floats:
        """Return the mean of the output for the input x; clamping biases it inwards."""
        value = np.asarray(x, dtype=np.float64)
        return self.low + self._over(self.low - value, bound)[0] - self._over(self.high - value, bound)[0]

    def variance(self, x: ArrayLike, bound: float) -> Floats:
        """Return the variance of the output for the input x."""
        value = np.asarray(x, dtype=np.float64)
        first, second = self._over(self.low - value, bound)  # the clamped noise is a + (Z-a)+ - (Z-h)+
        first_high, second_high = self._over(self.high - value, bound)
        square = second - second_high - 2 * (self.high - self.low) * first_high
        return np.asarray(np.maximum(square - (first - first_high) ** 2, 0.0))

    def _over(self, t: Floats, bound: float) -> tuple[Floats, Floats]:
        """Return E (Z - t)+ and E (Z - t)+^2 for the noise Z."""
        b = self.noise_multiplier * bound
        tail = np.exp(-np.abs(t) / b)
        first = np.maximum(-t, 0.0) + b / 2 * tail
        second = np.where(t >= 0, b * b * tail, t * t + b * b * (2 - tail))
        return first, second

    def _noise(self) -> Laplace:
        return Laplace(self.noise_multiplier)
