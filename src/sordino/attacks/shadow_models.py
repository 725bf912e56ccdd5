"""Membership inference by attack models that were trained on the outputs of shadow models.

Shokri et al. (2017), arXiv:1610.05820, Sections V.B and V.D: outputs of shadow models on records of theirs and on
others are examples of members and of non-members; one attack model for each class learns to tell them apart.

Differs from the paper: shadow models come with the attacker's knowledge; an attack model sees the largest confidences
in order and that of the true class, as logarithms; a class with few examples uses the attack model of all classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from sordino.attacks import _confidence as confidence
from sordino.attacks._classifier import fit
from sordino.attacks.base import MEMBERSHIP, MODELS, Knowledge, Shadows, Targets, last_model, require
from sordino.core import check
from sordino.core.rng import Floats
from sordino.core.view import View

__all__ = ["ShadowAttack"]

FEW = 100  # examples of a class up to which the attack model of all classes is used


@dataclass(frozen=True)
class ShadowAttack:
    """Score records by attack models, one for each class."""

    top: int = 3  # how many of the largest confidences an attack model sees
    records: int = 5000  # records of the pool from which examples are made, with every shadow model
    examples: int = 20_000  # largest number of examples for one attack model

    name: ClassVar[str] = "shadow-models"
    kind: ClassVar[str] = MEMBERSHIP
    sees: ClassVar[tuple[str, ...]] = ("public", "client", "server")
    reads: ClassVar[str] = MODELS
    needs: ClassVar[tuple[str, ...]] = ("shadows",)

    def __post_init__(self) -> None:
        check.count(top=self.top, records=self.records, examples=self.examples)

    def score(self, views: Sequence[View], knowledge: Knowledge, targets: Targets) -> Floats:
        """Return the log-odds of membership of every record, according to the attack model of its class."""
        require(self, views, knowledge)
        shadows, model, batch = confidence.known_shadows(self.name, knowledge), knowledge.model, targets.batch
        confidence.check_classes(self.name, batch)
        attacked = last_model(views)
        logits = confidence.outputs(model, attacked, batch.x)
        mine = confidence.sorted_confidences(logits, batch.y, min(self.top, logits.shape[1]))
        draw = np.random.default_rng(knowledge.seed)
        features, labels, members = self._examples(shadows, knowledge, draw)
        features = features.to(mine)
        everyone = self._some(np.arange(len(labels)), draw)
        shared = fit(features[everyone], members[everyone], knowledge.seed)
        scores = shared(mine)
        for label in np.unique(batch.y.cpu().numpy()):
            rows = np.flatnonzero(labels == label)
            if len(rows) <= FEW or not 0 < int(members[rows].sum()) < len(rows):
                continue
            rows = self._some(rows, draw)
            here = (batch.y == int(label)).to(scores.device)
            scores[here] = fit(features[rows], members[rows], knowledge.seed)(mine[here])
        return scores.double().cpu().numpy()

    def _some(self, rows: np.ndarray, draw: np.random.Generator) -> np.ndarray:
        return rows if len(rows) <= self.examples else draw.permutation(rows)[: self.examples]

    def _examples(
        self, shadows: Shadows, knowledge: Knowledge, draw: np.random.Generator
    ) -> tuple[Tensor, np.ndarray, Tensor]:
        """Return features, labels and membership of records of the pool, with every shadow model."""
        index = draw.permutation(len(shadows.pool.y))[: self.records]
        x, y = shadows.pool.x[index], shadows.pool.y[index]
        parts = [
            confidence.sorted_confidences(out, y, min(self.top, out.shape[1]))
            for out in confidence.each(knowledge.model, shadows.params, x)
        ]
        labels = np.tile(y.cpu().numpy(), len(parts))
        members = torch.from_numpy(shadows.members[:, index].reshape(-1))
        return torch.cat(parts), labels, members.to(parts[0].device)
