"""Membership inference by the loss: a low loss means a member.

Yeom et al. (2018), arXiv:1709.01604, Adversary 2. It needs nothing but the last model.  Differs from the paper: the
score is returned instead of a guess, so that every threshold can be tried.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from sordino.attacks import _confidence as confidence
from sordino.attacks.base import MEMBERSHIP, MODELS, Knowledge, Targets, last_model, require
from sordino.core.rng import Floats
from sordino.core.view import View

__all__ = ["LossThreshold"]

LARGEST = 1e30  # stands for a loss that is not finite


@dataclass(frozen=True)
class LossThreshold:
    """Score records by how low their loss is."""

    name: ClassVar[str] = "loss-threshold"
    kind: ClassVar[str] = MEMBERSHIP
    sees: ClassVar[tuple[str, ...]] = ("public", "client", "server")
    reads: ClassVar[str] = MODELS
    needs: ClassVar[tuple[str, ...]] = ()

    def score(self, views: Sequence[View], knowledge: Knowledge, targets: Targets) -> Floats:
        """Return minus the loss of every record."""
        require(self, views, knowledge)
        losses = confidence.losses(knowledge.model, last_model(views), targets.batch)
        return -np.nan_to_num(losses, nan=LARGEST, posinf=LARGEST)
