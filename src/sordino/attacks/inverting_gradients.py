"""Inverting gradients: pictures whose gradient points in the direction of a client's.

Geiping et al. (2020), "Inverting gradients: how easy is it to break privacy in federated learning?", arXiv:2003.14053,
Eq. (4): minimise 1 - cos(gradient(x), gradient) + a TV(x) by Adam on the signs of its gradient, in a box. Section 6:
batches of up to 100 pictures, and updates of several local steps, which are repeated with the attacker's pictures. The
labels are read off the last layer first. Behind a secure sum it attacks the sum, as of one client with all records.

It differs from the authors' code in the unit of TV (a mean over pixels) and in how labels of batches are found.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from sordino.attacks import _gradient_matching as matching
from sordino.attacks._record_form import RecordForm, form_of
from sordino.attacks.base import RECONSTRUCTION, SUMS, Knowledge, Victim, require
from sordino.core import check
from sordino.core.types import Batch
from sordino.core.view import View

__all__ = ["InvertingGradients"]


@dataclass(frozen=True)
class InvertingGradients:
    """Reconstruct a client's records from the direction of its update."""

    iterations: int = 1000
    step: float = 0.1  # learning rate of the attacker's Adam, in units of the model's inputs
    total_variation: float = 1e-2  # a: weight of the mean difference of neighbouring pixels
    signed: bool = True  # whether Adam gets the sign of the gradient only
    by_layer: bool = False  # whether the cosine is taken layer by layer and averaged
    restarts: int = 1  # random starts, of which the one with the least cost is returned
    field: str = "update"  # field of the message that holds the change of the weights
    shape: tuple[int, ...] = ()  # of a record; default: that of the known records
    low: float | None = None  # least input; default: that of the known records
    high: float | None = None  # largest input; default: that of the known records

    name: ClassVar[str] = "inverting-gradients"
    kind: ClassVar[str] = RECONSTRUCTION
    sees: ClassVar[tuple[str, ...]] = ("server", "wire")
    reads: ClassVar[str] = SUMS
    needs: ClassVar[tuple[str, ...]] = ("local",)

    def __post_init__(self) -> None:
        check.count(iterations=self.iterations, restarts=self.restarts)
        check.positive(step=self.step)
        check.non_negative(total_variation=self.total_variation)

    def reconstruct(self, views: Sequence[View], knowledge: Knowledge, victim: Victim) -> Batch:
        """Return the records whose gradient is most like that of the victim."""
        require(self, views, knowledge)
        model, leak = knowledge.model, matching.leak(self.name, views, knowledge, victim, self.field)
        device = leak.params.device
        form = form_of(self.name, knowledge, self.shape, self.low, self.high, device)
        draw = torch.Generator().manual_seed(knowledge.seed)
        starts = torch.randn(self.restarts, victim.records, *form.shape, generator=draw).to(device)
        if victim.labels is not None:
            y = torch.tensor(victim.labels, device=device)
        else:
            known = knowledge.auxiliary
            y = matching.batch_labels(
                model, leak, victim.records, starts[0] if known is None else known.x[:1000].to(device)
            )
        results = [self._minimised(start, y, knowledge, leak, form) for start in starts]
        return Batch(min(results, key=lambda pair: pair[1])[0], y, (victim.records,))

    def _minimised(
        self, x: Tensor, y: Tensor, knowledge: Knowledge, leak: matching.Leak, form: RecordForm
    ) -> tuple[Tensor, float]:
        model, loss = knowledge.model, matching.hard(knowledge.model, y)
        layout = model.layout if self.by_layer else None
        x = form.clamped(x).requires_grad_()
        adam = torch.optim.Adam([x], lr=self.step)
        falls = torch.optim.lr_scheduler.MultiStepLR(adam, matching.milestones(self.iterations), gamma=0.1)
        value = x.new_zeros(())
        for _ in range(self.iterations):
            made = matching.simulated(model, leak, x, loss)
            value = matching.cosine(made, leak.gradient, layout) + self.total_variation * matching.total_variation(x)
            (slope,) = torch.autograd.grad(value, [x])
            x.grad = slope.sign() if self.signed else slope
            adam.step()
            falls.step()
            with torch.no_grad():
                x.copy_(form.clamped(x))
        return x.detach(), float(value.detach())
