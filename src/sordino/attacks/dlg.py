"""Deep leakage from gradients: records and soft labels whose gradient equals a client's.

Zhu, Liu and Han (2019), "Deep leakage from gradients", arXiv:1906.08935, Algorithm 1: start from Gaussian noise and
minimise the squared distance of the gradients over x and the labels' logits by L-BFGS. It needs a network that can be
differentiated twice; with ReLU it often stops early. The distance is taken as a share of the gradient's squared length.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from sordino.attacks import _gradient_matching as matching
from sordino.attacks._record_form import form_of
from sordino.attacks.base import RECONSTRUCTION, ROWS, Knowledge, Victim, require
from sordino.core import check
from sordino.core.types import Batch
from sordino.core.view import View

__all__ = ["DeepLeakage"]


@dataclass(frozen=True)
class DeepLeakage:
    """Reconstruct a client's records and labels from the gradient of one local step."""

    iterations: int = 100  # of L-BFGS, each with up to 20 evaluations
    restarts: int = 3  # random starts, of which the one with the least distance is returned
    field: str = "update"  # field of the message that holds the change of the weights
    shape: tuple[int, ...] = ()  # of a record; default: that of the known records

    name: ClassVar[str] = "dlg"
    kind: ClassVar[str] = RECONSTRUCTION
    sees: ClassVar[tuple[str, ...]] = ("server", "wire")
    reads: ClassVar[str] = ROWS
    needs: ClassVar[tuple[str, ...]] = ("local", "classes")

    def __post_init__(self) -> None:
        check.count(iterations=self.iterations, restarts=self.restarts)

    def reconstruct(self, views: Sequence[View], knowledge: Knowledge, victim: Victim) -> Batch:
        """Return the records whose gradient is nearest to that of the victim, with their most likely labels."""
        require(self, views, knowledge)
        leak = matching.leak(self.name, views, knowledge, victim, self.field)
        form = form_of(self.name, knowledge, self.shape, None, None, leak.params.device)
        draw = torch.Generator().manual_seed(knowledge.seed)

        def noise(*size: int) -> Tensor:
            return torch.randn(*size, generator=draw).to(leak.params.device)

        best: tuple[float, Tensor, Tensor] | None = None
        for _ in range(self.restarts):
            x, logits = noise(victim.records, *form.shape), noise(victim.records, knowledge.classes or 1)
            free = [x, logits]
            distance = matching.lbfgs(free, leak, knowledge.model, matching.soft(logits), self.iterations)
            if best is None or distance < best[0]:
                best = distance, x.detach(), logits.detach().argmax(dim=1)
        if best is None:  # restarts is positive
            raise RuntimeError("no start was made")
        return Batch(best[1], best[2], (victim.records,))
