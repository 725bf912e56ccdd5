"""What DP-SGD is made of: how a record's gradient is clipped, which noise its sum gets, how both change by round."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from sordino.core.types import Batch, Model
from sordino.methods._steps import Groups
from sordino.privacy.clip import Bounded
from sordino.privacy.mechanisms.gaussian import Gaussian
from sordino.privacy.release import Mechanism

Schedule = Callable[[int, int], float]  # (round, rounds) -> factor


def constant(round: int, rounds: int) -> float:
    return 1.0


class Clip(Protocol):
    """Clips every record's gradient; `factor` is that of the round."""

    def bound(self, layers: int, factor: float) -> float:
        """Return how far one record moves the clipped sum of a model with so many layers."""

    def sums(
        self, weights: Tensor, batch: Batch, model: Model, factor: float, seeds: list[int], groups: Groups
    ) -> Bounded:
        """Return each client's sum of clipped gradients."""


@dataclass(frozen=True)
class Whole:
    """Clips the gradient as one vector, in the L2 norm."""

    clip: float

    def bound(self, layers: int, factor: float) -> float:
        return self.clip * factor

    def sums(
        self, weights: Tensor, batch: Batch, model: Model, factor: float, seeds: list[int], groups: Groups
    ) -> Bounded:
        bound = self.clip * factor
        return Bounded(model.gradients.sums(weights, batch, bound, seeds=seeds, groups=groups), bound)


@dataclass(frozen=True)
class ByLayer:
    """Clips every layer's part of the gradient by itself, so that the whole moves by the root of the layers as far."""

    clip: float

    def bound(self, layers: int, factor: float) -> float:
        return math.hypot(*[self.clip * factor] * layers)

    def sums(
        self, weights: Tensor, batch: Batch, model: Model, factor: float, seeds: list[int], groups: Groups
    ) -> Bounded:
        bounds = [self.clip * factor] * len(model.layout.layers())
        sums = model.gradients.sums(weights, batch, None, seeds=seeds, groups=groups, layers=bounds)
        return Bounded(sums, math.hypot(*bounds))


@dataclass(frozen=True)
class Recipe:
    """DP-SGD by its parts."""

    clip: Clip
    noise: Callable[[float], Mechanism] = Gaussian  # noise multiplier -> mechanism
    noise_schedule: Schedule = constant  # of the noise multiplier, over the rounds
    clip_schedule: Schedule = constant  # of the clip
