"""Imprint: records read exactly off the gradient of a first layer that the server chose.

Fowl et al. (2022), "Robbing the fed: directly obtaining private data in federated learning with modified models",
arXiv:2110.13057, Section 3.2. The units of a first linear layer all measure the same number of a record, such as its
mean, and unit i fires above the i-th of many thresholds; behind them all units count alike. A record moves the gradient
of all units below its measure, so the difference of two neighbouring units' gradients holds the records between two
thresholds, and the ratio of weight and bias gradient is their mean: exact if it is one record.

The server must have sent such a model: `red_team/active_server.py` makes it. Clipping of every record's gradient does
not stop this; noise does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from sordino.attacks import _gradient_matching as matching
from sordino.attacks.base import RECONSTRUCTION, ROWS, Knowledge, Victim, require
from sordino.core.errors import SpecError
from sordino.core.types import Batch
from sordino.core.view import View

__all__ = ["Imprint"]


@dataclass(frozen=True)
class Imprint:
    """Read records off the gradients of an imprinted first layer."""

    field: str = "update"  # field of the message that holds the change of the weights
    shape: tuple[int, ...] = ()  # of a record; default: that of the known records, or flat

    name: ClassVar[str] = "imprint"
    kind: ClassVar[str] = RECONSTRUCTION
    sees: ClassVar[tuple[str, ...]] = ("server", "wire")
    reads: ClassVar[str] = ROWS
    needs: ClassVar[tuple[str, ...]] = ("local",)

    def reconstruct(self, views: Sequence[View], knowledge: Knowledge, victim: Victim) -> Batch:
        """Return as many records as the victim has, from the bins that moved most; labels are not read (-1)."""
        require(self, views, knowledge)
        leak = matching.leak(self.name, views, knowledge, victim, self.field)
        layout = knowledge.model.layout
        names = [slot.name for slot in layout.slots[:2]]
        sent, slopes = layout.views(leak.params), layout.views(leak.gradient)
        weight = sent[names[0]]
        if len(names) < 2 or weight.ndim != 2 or sent[names[1]].ndim != 1 or bool((weight != weight[0]).any()):
            raise SpecError(
                "imprint reads a first linear layer whose units all measure the same; the model that was sent has "
                "none. Let an active server send one (red_team/active_server.py)."
            )
        order = sent[names[1]].argsort(descending=True)  # from the lowest threshold to the highest
        rows, shifts = slopes[names[0]][order], slopes[names[1]][order]
        bins = torch.cat([rows[:-1] - rows[1:], rows[-1:]])  # the last bin is open above
        counts = torch.cat([shifts[:-1] - shifts[1:], shifts[-1:]])
        at = counts.abs().argsort(descending=True)[: victim.records]
        x = bins[at] / counts[at, None]
        x = torch.where(counts[at, None] == 0, 0.0, x)  # fewer bins were hit than there are records
        known = knowledge.auxiliary or knowledge.own
        shape = self.shape or (tuple(known.x.shape[1:]) if known is not None else (x.shape[1],))
        return Batch(x.reshape(-1, *shape), torch.full((len(x),), -1, device=x.device), (len(x),))
