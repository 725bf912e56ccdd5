"""Membership inference by a likelihood ratio: LiRA.

Carlini et al. (2022), arXiv:2112.03570, Algorithm 1 (online) and Section V.D (offline). For every target the log-odds
of the true class under shadow models that were trained on it, and under those that were not, are taken as Gaussian; the
score is the logarithm of the ratio of the two densities at the attacked model. Offline, only models that never saw the
target are used, and the score is the number of standard deviations above their mean.

Differs from the paper: with several queries their log-densities are added, as if they were independent; the variance
that all targets share, for few shadow models, is the mean of their own variances.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from sordino.attacks import _confidence as confidence
from sordino.attacks._likelihood import VARIANCES, ratios
from sordino.attacks.base import MEMBERSHIP, MODELS, Knowledge, Targets, last_model, require
from sordino.core import check
from sordino.core.rng import Floats
from sordino.core.view import View

__all__ = ["Lira"]


@dataclass(frozen=True)
class Lira:
    """Score records by the likelihood ratio of their confidence, with and without them in training."""

    offline: bool = False  # use only shadow models that never saw the target
    queries: int = 1  # views of every picture that are asked about: as it is, mirrored, shifted
    variance: str = "auto"  # own: of every target; shared by all targets; auto: own if there are 64 shadow models

    name: ClassVar[str] = "lira"
    kind: ClassVar[str] = MEMBERSHIP
    sees: ClassVar[tuple[str, ...]] = ("public", "client", "server")
    reads: ClassVar[str] = MODELS
    needs: ClassVar[tuple[str, ...]] = ("shadows",)

    def __post_init__(self) -> None:
        check.count(queries=self.queries)
        check.one_of(VARIANCES, variance=self.variance)

    def score(self, views: Sequence[View], knowledge: Knowledge, targets: Targets) -> Floats:
        """Return the log-likelihood ratio of every record or, offline, how unusual its confidence is."""
        require(self, views, knowledge)
        shadows, batch, model = confidence.known_shadows(self.name, knowledge), targets.batch, knowledge.model
        confidence.check_classes(self.name, batch)
        members = confidence.inside(self.name, shadows, targets, self.offline)
        attacked, total = last_model(views), np.zeros(len(batch.y))
        for x in confidence.views_of(batch.x, self.queries):
            seen = confidence.of_model(model, attacked, x, batch.y)
            others = confidence.of_models(model, shadows.params, x, batch.y)
            total += ratios(seen, others, members, self.offline, self.variance)
        return total
