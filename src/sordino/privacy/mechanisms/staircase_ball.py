"""Staircase noise for vectors, on L1 balls.  Geng, Kairouz, Oh, Viswanath (2015), "The staircase mechanism".

The density is e^{-epsilon level(|x|_1)} up to a constant, with the level of the one-dimensional staircase. A shift of
L1 norm at most one step (the bound of a row) changes |x|_1 by at most one step and the level by at most one, hence
epsilon-DP in every dimension. Nothing more is used: the event is that of any epsilon-DP mechanism.

The density is a mixture of uniforms on balls of k + gamma steps with weights b^k (k + gamma)^dim, b = e^{-epsilon}, so
    noise = step * (k + gamma) * U^{1/dim} * L / |L|_1,    L of independent Laplace coordinates.
k is drawn from the weights between two ends that leave out less than 1e-18. From about ten dimensions on this is
Laplace noise of scale step / epsilon for all practical purposes. It is drawn in float64 and then rounded, which the
proof does not cover (Mironov 2012).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import gammaln

from sordino.core import check
from sordino.core.errors import SpecError
from sordino.core.rng import RowStream
from sordino.core.types import Rows
from sordino.privacy.clip import Bounded
from sordino.privacy.events import Event
from sordino.privacy.mechanisms.laplace import laplace_noise, plus
from sordino.privacy.mechanisms.staircase import check_dim, check_shape

__all__ = ["StaircaseBall"]

Floats = NDArray[np.float64]
SHELLS = 2**22  # maximum number of balls


@dataclass(frozen=True)
class StaircaseBallEvent(Event):
    """A vector moved by at most one step in the L1 norm; epsilon-DP in any dimension."""

    epsilon: float

    def __post_init__(self) -> None:
        check_shape(self.epsilon, 0.0)

    def pure(self) -> float:
        return self.epsilon


@dataclass(frozen=True)
class StaircaseBall:
    """Add noise of density e^{-epsilon level(|x|_1 / bound)} to every row."""

    epsilon: float  # one use is epsilon-DP
    gamma: float = 0.5  # upper part of a step, 0 to 1; affects the variance in few dimensions, never the cost

    geometry: ClassVar[str] = "L1"
    exact: ClassVar[bool] = False
    calibrated: ClassVar[str] = "epsilon"

    def __post_init__(self) -> None:
        check_shape(self.epsilon, self.gamma)

    def add(self, rows: Bounded, rng: RowStream) -> Rows:
        """Add independent noise to every row, drawn from the stream of its client."""
        rows.require(1, "staircase-ball")
        check.positive(bound=rows.bound)
        dim = rows.value.shape[1]
        radius, logs = self._balls(dim)
        pick, u = np.split(rng.at("radius").uniform(2), 2, axis=1)  # each [rows, 1]
        cumulative = np.cumsum(np.exp(logs))
        ball = np.minimum(np.searchsorted(cumulative, pick * cumulative[-1]), len(radius) - 1)
        size = radius[ball] * np.exp(np.log(u) / dim)
        direction = laplace_noise(rng.at("direction"), dim)
        direction /= np.abs(direction).sum(axis=1, keepdims=True)
        return plus(rows, rows.bound * size * direction)

    def event(self) -> Event:
        """Return the event of one use."""
        return StaircaseBallEvent(self.epsilon)

    def variance(self, bound: float, dim: int) -> float:
        """Return the variance of the noise on one coordinate: E |X|_1^2 * 2 / (dim (dim + 1))."""
        check.positive(bound=bound)
        radius, logs = self._balls(dim)
        weights = np.exp(logs)
        square = float(weights @ radius**2 / weights.sum()) * dim / (dim + 2)
        return bound * bound * square * 2 / (dim * (dim + 1))

    def log_density(self, x: ArrayLike, bound: float) -> Floats:
        """Return the log-density of noise vectors [..., dim]."""
        check.positive(bound=bound)
        noise = np.atleast_1d(np.asarray(x, dtype=np.float64))
        dim = noise.shape[-1]
        steps = np.abs(noise).sum(axis=-1) / bound
        k = np.floor(steps)
        level = k + (steps - k >= self.gamma)
        radius, logs = self._balls(dim)
        top = int(np.argmax(logs))
        peak = dim * math.log(radius[top]) - self.epsilon * (radius[top] - self.gamma)  # ln b^k (k + gamma)^dim there
        log_sum = peak - logs[top] + math.log(float(np.exp(logs).sum()))
        volume = dim * math.log(2 * bound) - float(gammaln(dim + 1))  # log-volume of the ball of one step
        return np.asarray(-self.epsilon * level - volume - log_sum - math.log(-math.expm1(-self.epsilon)))

    def shells(self, dim: int) -> tuple[int, int, float]:
        """Return the first and the last step with non-negligible weight, and the middle.

        Parameters with too many steps to draw from are refused.
        """
        check_dim(dim)
        middle, spread = dim / self.epsilon, 12 * math.sqrt(dim + 1) / self.epsilon
        first = max(0, math.floor(middle - spread) - 2)
        last = math.ceil(middle + spread + 60 / self.epsilon) + 2
        if last - first > SHELLS:
            raise SpecError(
                f"staircase-ball with epsilon {self.epsilon:g} in {dim} dimensions needs {last - first} shells "
                f"(limit {SHELLS}); use laplace, which is the same noise to all digits there."
            )
        return first, last, middle

    def _balls(self, dim: int) -> tuple[Floats, Floats]:
        """Return the radii k + gamma in steps and their log-weights, the largest of which is near 0.

        The rest has a weight below 1e-18.
        """
        first, last, middle = self.shells(dim)
        radius: Floats = np.arange(first, last + 1, dtype=np.float64) + self.gamma
        radius = radius[radius > 0]
        near = max(middle, float(radius[0]))
        logs = dim * np.log(radius / near) - self.epsilon * (radius - near)
        return radius, np.asarray(logs - logs.max(), dtype=np.float64)
