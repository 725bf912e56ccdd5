"""Staircase noise for vectors, on L1 balls.  Geng, Kairouz, Oh, Viswanath (2015), "The staircase mechanism".

The density is e^{-epsilon level(|x|_1)} up to a constant, with the level of the one-dimensional staircase. A shift of
L1 norm at most one step (the bound of a row) moves |x|_1 by at most one step and the level by at most one: epsilon-DP
in every dimension. No more is used: the event is that of anything epsilon-DP.

The density is a mixture of uniforms on balls of k + gamma steps with weights b^k (k + gamma)^dim, b = e^{-epsilon}, so
    noise = step * (k + gamma) * U^{1/dim} * L / |L|_1,    L of independent Laplace coordinates.
k is drawn from the weights between two ends that leave out less than 1e-18. From about ten dimensions on this is
Laplace noise of scale step / epsilon for all purposes. Drawn in float64, then rounded: the proof does not cover that
(Mironov 2012).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

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
SHELLS = 2**22  # at most so many balls are weighed


@dataclass(frozen=True)
class StaircaseBallEvent(Event):
    """A vector moved by at most one step in the L1 norm; epsilon-DP whatever the dimension."""

    epsilon: float

    def __post_init__(self) -> None:
        check_shape(self.epsilon, 0.0)

    def pure(self) -> float:
        return self.epsilon


@dataclass(frozen=True)
class StaircaseBall:
    """Add noise of density e^{-epsilon level(|x|_1 / bound)} to every row."""

    epsilon: float  # one use is epsilon-DP
    gamma: float = 0.5  # the upper part of a step, 0 to 1; moves the variance in few dimensions, never the cost

    def __post_init__(self) -> None:
        check_shape(self.epsilon, self.gamma)

    def add(self, rows: Bounded, rng: RowStream) -> Rows:
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
        return StaircaseBallEvent(self.epsilon)

    def variance(self, bound: float, dim: int) -> float:
        """Of one coordinate: E |X|_1^2 * 2 / (dim (dim + 1))."""
        check.positive(bound=bound)
        radius, logs = self._balls(dim)
        weights = np.exp(logs)
        square = float(weights @ radius**2 / weights.sum()) * dim / (dim + 2)
        return bound * bound * square * 2 / (dim * (dim + 1))

    def log_density(self, x: ArrayLike, bound: float) -> Floats:
        """Of noise vectors [..., dim]."""
        check.positive(bound=bound)
        noise = np.atleast_1d(np.asarray(x, dtype=np.float64))
        dim = noise.shape[-1]
        steps = np.abs(noise).sum(axis=-1) / bound
        k = np.floor(steps)
        level = k + (steps - k >= self.gamma)
        radius, logs = self._balls(dim)
        top = int(np.argmax(logs))
        peak = dim * math.log(radius[top]) - self.epsilon * (radius[top] - self.gamma)  # ln b^k (k + gamma)^dim there
        whole = peak - logs[top] + math.log(float(np.exp(logs).sum()))
        volume = dim * math.log(2 * bound) - float(gammaln(dim + 1))  # of the ball of one step
        return np.asarray(-self.epsilon * level - volume - whole - math.log(-math.expm1(-self.epsilon)))

    def shells(self, dim: int) -> tuple[int, int, float]:
        """The first and the last step that weigh anything, and the middle; refuses what is too many to draw from."""
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
        """Radii k + gamma in steps and their log-weights, the greatest near 0; the rest weighs less than 1e-18."""
        first, last, middle = self.shells(dim)
        radius: Floats = np.arange(first, last + 1, dtype=np.float64) + self.gamma
        radius = radius[radius > 0]
        near = max(middle, float(radius[0]))
        logs = dim * np.log(radius / near) - self.epsilon * (radius - near)
        return radius, np.asarray(logs - logs.max(), dtype=np.float64)
