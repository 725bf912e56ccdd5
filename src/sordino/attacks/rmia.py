"""Membership inference by many likelihood ratios: RMIA.

Zarifzadeh, Liu, Shokri (2024), arXiv:2312.03262, Equations 2 to 4 and Algorithm 1. How much more the attacked model
likes a target than shadow models do is compared with the same ratio of many other records z; the score is the fraction
of records z over which the target wins by the factor gamma. It works with few shadow models.

Offline, the mean confidence of all models is estimated from models that never saw the target (Section 3 of the paper,
with its coefficient a). Records z are the attacker's auxiliary records or, if there are none, those of the pool.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from sordino.attacks import _confidence as confidence
from sordino.attacks.base import MEMBERSHIP, MODELS, Bools, Knowledge, Shadows, Targets, last_model, require
from sordino.core import check
from sordino.core.rng import Floats
from sordino.core.types import Batch, Vector
from sordino.core.view import View

__all__ = ["Rmia"]

LEAST = 1e-12  # smallest confidence


@dataclass(frozen=True)
class Rmia:
    """Score records by how many others they beat in likelihood ratio."""

    gamma: float = 1.0  # factor by which a target must beat a record z; the paper uses 2, where models are confident
    offline: bool = False  # use only shadow models that never saw the target
    a: float = 0.3  # offline: how far the mean confidence of all models lies from that of models without the target
    population: int = 10_000  # largest number of records z

    name: ClassVar[str] = "rmia"
    kind: ClassVar[str] = MEMBERSHIP
    sees: ClassVar[tuple[str, ...]] = ("public", "client", "server")
    reads: ClassVar[str] = MODELS
    needs: ClassVar[tuple[str, ...]] = ("shadows",)

    def __post_init__(self) -> None:
        check.positive(gamma=self.gamma)
        check.fraction(a=self.a)
        check.count(population=self.population)

    def score(self, views: Sequence[View], knowledge: Knowledge, targets: Targets) -> Floats:
        """Return the fraction of other records that every target beats."""
        require(self, views, knowledge)
        shadows = confidence.known_shadows(self.name, knowledge)
        confidence.check_classes(self.name, targets.batch)
        attacked, rng = last_model(views), np.random.default_rng(knowledge.seed)
        members = confidence.inside(self.name, shadows, targets, self.offline)
        mine = self._ratios(attacked, knowledge, shadows, targets.batch, members, self.offline)
        others = shadows.pool if knowledge.auxiliary is None else knowledge.auxiliary
        index = rng.permutation(len(others.y))[: self.population]
        some = Batch(others.x[index], others.y[index], (len(index),))
        where = np.zeros((len(shadows.params), len(index)), dtype=np.bool_)
        if knowledge.auxiliary is None:
            where = shadows.members[:, index]
        theirs = self._ratios(attacked, knowledge, shadows, some, where, not where.any())
        return np.searchsorted(np.sort(theirs), mine / self.gamma, side="right") / len(theirs)

    def _ratios(
        self, attacked: Vector, knowledge: Knowledge, shadows: Shadows, batch: Batch, members: Bools, offline: bool
    ) -> Floats:
        """Return p(x | attacked model) / p(x) of every record, where p(x) is the mean over models."""
        model = knowledge.model
        seen = confidence.probabilities(confidence.of_model(model, attacked, batch.x, batch.y))
        others = confidence.probabilities(confidence.of_models(model, shadows.params, batch.x, batch.y))
        outside = np.where(members, 0.0, others).sum(axis=0) / np.maximum((~members).sum(axis=0), 1)
        if offline:
            mean = 0.5 * ((1 + self.a) * outside + (1 - self.a))
        else:
            mean = 0.5 * (outside + np.where(members, others, 0.0).sum(axis=0) / np.maximum(members.sum(axis=0), 1))
        return np.asarray(np.maximum(seen, LEAST) / np.maximum(mean, LEAST), dtype=np.float64)
