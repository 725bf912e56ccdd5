"""Report noisy max: the index of the largest utility after Gumbel noise, and nothing else.

With Gumbel noise of scale 2 bound / epsilon (monotone: bound / epsilon) the output has exactly the distribution of the
exponential mechanism (Gumbel 1954; Durfee and Rogers 2019, arXiv:1905.04273), and hence the same privacy cost. The
noisy value itself must stay secret. Utilities, `clip` and `monotone` are those of the exponential mechanism.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from sordino.core.rng import RowStream
from sordino.privacy.clip import Bounded
from sordino.privacy.events import Event
from sordino.privacy.mechanisms.exponential import Exponential, ExponentialEvent, checked

__all__ = ["NoisyMax"]


@dataclass(frozen=True)
class NoisyMaxEvent(ExponentialEvent):
    """One choice among candidates by Gumbel noise."""


@dataclass(frozen=True)
class NoisyMax(Exponential):
    """Choose the candidate whose utility plus Gumbel noise is largest."""

    def select(self, rows: Bounded, rng: RowStream) -> torch.Tensor:
        """Return the index of one chosen candidate per row, from utilities [rows, candidates]."""
        utilities = checked(rows, "noisy-max", self.monotone)
        gumbel = -np.log(-np.log(rng.uniform(utilities.shape[1])))
        return torch.from_numpy(np.argmax(utilities / self._scale(rows.bound) + gumbel, axis=1)).to(rows.value.device)

    def event(self) -> Event:
        """Return the event of one choice."""
        return NoisyMaxEvent(self.epsilon)
