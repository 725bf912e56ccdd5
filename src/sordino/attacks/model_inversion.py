"""Model inversion: what a model takes for a typical record of a class, from the model alone.

Fredrikson, Jha and Ristenpart (2015), "Model inversion attacks that exploit confidence information and basic
countermeasures", CCS, Algorithm 1 (MI-FACE): gradient descent on 1 - confidence(label), which stops when it no longer
falls, and a step that keeps the record a picture. Here the cost is -log confidence, whose slope does not vanish where
the model is sure of another class, all classes descend at once, and that step (`Process`) is the box of inputs and a
penalty on differences of neighbouring pixels. The result is a record of a class, not of a person, unless
the class is one person, as in the paper.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch.func import functional_call

from sordino.attacks import _gradient_matching as matching
from sordino.attacks._generators import wanted
from sordino.attacks._record_form import form_of
from sordino.attacks.base import MODELS, RECONSTRUCTION, Knowledge, Victim, last_model, require
from sordino.core import check
from sordino.core.types import Batch
from sordino.core.view import View

__all__ = ["ModelInversion"]


@dataclass(frozen=True)
class ModelInversion:
    """Reconstruct a typical record of each class by raising the model's confidence."""

    iterations: int = 500  # alpha
    patience: int = 50  # beta: iterations without a lower cost after which a record stays
    confident: float = 0.999  # 1 - gamma: confidence at which a record stays
    step: float = 0.05  # lambda: learning rate, of Adam
    total_variation: float = 0.1  # weight of the mean difference of neighbouring pixels
    shape: tuple[int, ...] = ()  # of a record; default: that of the known records
    low: float | None = None  # least input; default: that of the known records
    high: float | None = None  # largest input; default: that of the known records

    name: ClassVar[str] = "model-inversion"
    kind: ClassVar[str] = RECONSTRUCTION
    sees: ClassVar[tuple[str, ...]] = ("public", "client", "server")
    reads: ClassVar[str] = MODELS
    needs: ClassVar[tuple[str, ...]] = ("classes",)

    def __post_init__(self) -> None:
        check.count(iterations=self.iterations, patience=self.patience)
        check.positive(step=self.step)
        check.non_negative(total_variation=self.total_variation)

    def reconstruct(self, views: Sequence[View], knowledge: Knowledge, victim: Victim) -> Batch:
        """Return records of the victim's labels, or of all classes in turn."""
        require(self, views, knowledge)
        params = last_model(views)
        form = form_of(self.name, knowledge, self.shape, self.low, self.high, params.device)
        y = wanted(victim, knowledge).to(params.device)
        draw = torch.Generator().manual_seed(knowledge.seed)
        start = 0.1 * torch.randn(len(y), *form.shape, generator=draw).to(params.device)
        if knowledge.auxiliary is not None:  # the paper starts from any side knowledge, such as a mean face
            start = start + knowledge.auxiliary.x.to(params.device).mean(dim=0)
        x = form.clamped(start).requires_grad_()
        weights = knowledge.model.layout.views(params)
        best, least = x.detach().clone(), torch.full((len(y),), torch.inf, device=params.device)
        since = torch.zeros(len(y), device=params.device)
        adam = torch.optim.Adam([x], lr=self.step)
        for _ in range(self.iterations):
            logits = functional_call(knowledge.model.module, weights, (x,)).log_softmax(dim=1)
            confidence = logits.gather(1, y[:, None])[:, 0]
            smooth = self.total_variation * matching.total_variation(x) * len(y)
            cost = -confidence.detach()
            better, since = cost < least, since + 1
            best[better], least[better], since[better] = x.detach()[better], cost[better], 0
            active = (since < self.patience) & (confidence.detach().exp() < self.confident)
            if not bool(active.any()):
                break
            (x.grad,) = torch.autograd.grad(-confidence.sum() + smooth, [x])
            adam.step()
            with torch.no_grad():
                x.copy_(form.clamped(x))
        return Batch(best, y, (len(y),))
