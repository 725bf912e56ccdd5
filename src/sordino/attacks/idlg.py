"""Improved deep leakage: the label of a single record from signs of the last layer's gradient, then the record.

Zhao, Mopuri and Bilen (2020), "iDLG: improved deep leakage from gradients", arXiv:2001.02610: with cross-entropy the
gradient in the last layer's outputs is negative at the label alone (Eq. 3 and 4), so the label is exact; the record is
then found as by DLG, without labels to optimise. `labels` reads the labels of many clients at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from sordino.attacks import _gradient_matching as matching
from sordino.attacks._record_form import form_of
from sordino.attacks.base import RECONSTRUCTION, ROWS, Knowledge, Victim, require, single_rows
from sordino.core import check
from sordino.core.errors import SpecError
from sordino.core.types import Batch
from sordino.core.view import View

__all__ = ["ImprovedDeepLeakage"]


@dataclass(frozen=True)
class ImprovedDeepLeakage:
    """Reconstruct the label and the single record behind a gradient."""

    iterations: int = 100  # of L-BFGS, each with up to 20 evaluations
    restarts: int = 3  # random starts, of which the one with the least distance is returned
    field: str = "update"  # field of the message that holds the change of the weights
    shape: tuple[int, ...] = ()  # of a record; default: that of the known records

    name: ClassVar[str] = "idlg"
    kind: ClassVar[str] = RECONSTRUCTION
    sees: ClassVar[tuple[str, ...]] = ("server", "wire")
    reads: ClassVar[str] = ROWS
    needs: ClassVar[tuple[str, ...]] = ("local",)

    def __post_init__(self) -> None:
        check.count(iterations=self.iterations, restarts=self.restarts)

    def labels(self, view: View, knowledge: Knowledge) -> Tensor:
        """Return the label [clients] of the one record of every client whose row is in a view."""
        require(self, [view], knowledge)
        _, rows = single_rows(self.name, view, self.field)
        return matching.single_labels(-rows, knowledge.model.layout)

    def reconstruct(self, views: Sequence[View], knowledge: Knowledge, victim: Victim) -> Batch:
        """Return the record whose gradient is nearest to that of the victim."""
        require(self, views, knowledge)
        if victim.records != 1:
            raise SpecError(
                f"idlg reads the label of a single record, and this client has {victim.records}. "
                "Use inverting-gradients for batches."
            )
        model, leak = knowledge.model, matching.leak(self.name, views, knowledge, victim, self.field)
        device = leak.params.device
        form = form_of(self.name, knowledge, self.shape, None, None, device)
        y = matching.single_labels(leak.gradient[None], model.layout)
        draw = torch.Generator().manual_seed(knowledge.seed)
        results = []
        for _ in range(self.restarts):
            x = torch.randn(1, *form.shape, generator=draw).to(device)
            distance = matching.lbfgs([x], leak, model, matching.hard(model, y), self.iterations)
            results.append((distance, x.detach()))
        return Batch(min(results, key=lambda pair: pair[0])[1], y, (1,))
