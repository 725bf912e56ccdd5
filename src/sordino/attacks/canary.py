"""Membership inference with ensembles of adversarial queries: Canary in a Coalmine.

Wen et al. (2022), arXiv:2210.10750, Algorithm 1 (online). Instead of the target itself the attacker asks about pictures
near it, which were optimised so that shadow models trained on the target recognise its class and the others do not. The
answers to the queries of a target are scored as LiRA does, and the scores are added.

Differs from the paper: at every step a few random shadow models look at all targets at once, each of them with or
without the target; the bound on the change is given in standard deviations of the targets' values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call

from sordino.attacks import _confidence as confidence
from sordino.attacks._likelihood import ratios
from sordino.attacks.base import MEMBERSHIP, MODELS, Bools, Knowledge, Shadows, Targets, last_model, require
from sordino.core import check
from sordino.core.errors import SpecError
from sordino.core.rng import Floats
from sordino.core.view import View

__all__ = ["CanaryQueries"]

PASSES = 4  # a backward pass keeps so many times the memory of a forward pass


@dataclass(frozen=True)
class CanaryQueries:
    """Score records by likelihood ratios of queries that were optimised to tell members from others."""

    queries: int = 4  # optimised queries for each target, from different starting points
    steps: int = 20  # steps of Adam
    models: int = 4  # shadow models that look at a query in every step
    learning_rate: float = 0.05  # of Adam, in standard deviations of the targets' values
    bound: float = 0.5  # largest change of a value, in standard deviations of the targets' values

    name: ClassVar[str] = "canary"
    kind: ClassVar[str] = MEMBERSHIP
    sees: ClassVar[tuple[str, ...]] = ("public", "client", "server")
    reads: ClassVar[str] = MODELS
    needs: ClassVar[tuple[str, ...]] = ("shadows",)

    def __post_init__(self) -> None:
        check.count(queries=self.queries, steps=self.steps, models=self.models)
        check.positive(learning_rate=self.learning_rate, bound=self.bound)

    def score(self, views: Sequence[View], knowledge: Knowledge, targets: Targets) -> Floats:
        """Return the sum over queries of the log-likelihood ratios of every record."""
        require(self, views, knowledge)
        shadows, batch, model = confidence.known_shadows(self.name, knowledge), targets.batch, knowledge.model
        confidence.check_classes(self.name, batch)
        if not batch.x.is_floating_point():
            raise SpecError(f"{self.name} changes the values of records a little, so they must be floats. Use lira.")
        members = confidence.inside(self.name, shadows, targets, offline=False)
        attacked, total = last_model(views), np.zeros(len(batch.y))
        draw = torch.Generator().manual_seed(knowledge.seed)
        for _ in range(self.queries):
            x = self._optimised(knowledge, shadows, targets, members, draw)
            seen = confidence.of_model(model, attacked, x, batch.y)
            others = confidence.of_models(model, shadows.params, x, batch.y)
            total += ratios(seen, others, members)
        return total

    def _optimised(
        self, knowledge: Knowledge, shadows: Shadows, targets: Targets, members: Bools, draw: torch.Generator
    ) -> Tensor:
        """Return one query for every target, near the target."""
        device = shadows.params.device
        width = max(1, confidence.records_at_once(device) // PASSES)
        scale = float(targets.batch.x.std()) or 1.0
        inside = torch.from_numpy(members).to(device)
        parts = []
        for first in range(0, len(targets.batch.y), width):
            rows = slice(first, first + width)
            x, y = targets.batch.x[rows].to(device), targets.batch.y[rows].to(device)
            shift = self.bound * scale * (2 * torch.rand(x.shape, generator=draw).to(x) - 1)
            chosen = [torch.randperm(len(members), generator=draw)[: self.models].tolist() for _ in range(self.steps)]
            parts.append(self._descend(knowledge, shadows, (x, y), shift, inside[:, rows], chosen, scale))
        return torch.cat(parts)

    def _descend(
        self,
        knowledge: Knowledge,
        shadows: Shadows,
        records: tuple[Tensor, Tensor],
        shift: Tensor,
        inside: Tensor,
        chosen: Sequence[Sequence[int]],
        scale: float,
    ) -> Tensor:
        """Return records whose class models with them recognise, and models without them do not."""
        model, (x, y) = knowledge.model, records
        module = confidence.evaluated(model, x.device)
        module.requires_grad_(False)
        shift = shift.requires_grad_()
        optimizer = torch.optim.Adam([shift], lr=self.learning_rate * scale)
        with torch.enable_grad():
            for models in chosen:
                optimizer.zero_grad(set_to_none=True)
                for k in models:
                    out = functional_call(module, model.layout.views(shadows.params[k]), (x + shift,))
                    odds = confidence.log_odds(out, y)
                    # -log p for members and -log (1 - p) for others
                    F.softplus(torch.where(inside[k], -odds, odds)).sum().div(len(models)).backward()
                optimizer.step()
                with torch.no_grad():
                    shift.clamp_(-self.bound * scale, self.bound * scale)
        return (x + shift).detach()
