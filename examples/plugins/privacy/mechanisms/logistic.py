"""Logistic noise for an L1 bound: pure differential privacy with lighter tails than it looks.

The logarithm of the logistic density with scale b has a slope of at most 1/b, so moving a value by its sensitivity
changes no probability by more than a factor of e^(sensitivity / b): with b = noise_multiplier * bound one use is
(1 / noise_multiplier)-DP.

    SORDINO_PLUGINS=examples/plugins sordino epsilon --mechanism logistic --noise 2 --steps 10 --delta 1e-5
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from sordino.core import check
from sordino.core.rng import RowStream
from sordino.core.types import Rows
from sordino.privacy.clip import Bounded
from sordino.privacy.events import Event, Pure
from sordino.privacy.release import Use

__all__ = ["Logistic"]


@dataclass(frozen=True)
class Logistic:
    """Add logistic noise of scale noise_multiplier * bound to every coordinate."""

    noise_multiplier: float  # scale / L1 bound

    norm: ClassVar[float] = 1

    def __post_init__(self) -> None:
        check.positive(noise_multiplier=self.noise_multiplier)

    def add(self, rows: Bounded, rng: RowStream) -> Rows:
        """Return the rows with noise of their own, keyed by their clients."""
        return self.apply(rows, rng, Use())

    def apply(self, x: Bounded, rng: RowStream, use: Use) -> Rows:
        """Return the rows with noise; the inverse of the distribution function turns uniform numbers into noise."""
        x.require(1, "Logistic")
        uniform = rng.uniform(x.value.shape[1])
        noise = torch.from_numpy(np.log(uniform) - np.log1p(-uniform)).to(x.value)
        return x.value + self.noise_multiplier * x.bound * noise

    def event(self, split: int = 1) -> Event:
        """Return what one use costs: a pure epsilon."""
        return Pure(1 / self.noise_multiplier)

    def std(self, bound: float) -> float:
        """Return the standard deviation of the noise in one coordinate."""
        return self.noise_multiplier * bound * math.pi / math.sqrt(3)
