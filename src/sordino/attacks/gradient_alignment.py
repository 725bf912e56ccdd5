"""Membership inference by gradient alignment: does a record's gradient point in the direction of its client's update?

This is the attack of a server that sees the rows of single clients. The score is the inner product of each row with the
direction in which the record alone would have moved the model, summed over the rounds. It resembles the gradient
matching of white-box membership attacks (Nasr et al. 2019, arXiv:1812.00910) without a trained attack model. Behind a
secure sum there are no rows to read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from sordino.attacks.base import MEMBERSHIP, ROWS, Knowledge, Targets, require, single_rows
from sordino.core.errors import SpecError
from sordino.core.rng import Floats
from sordino.core.view import View

__all__ = ["GradientAlignment"]


@dataclass(frozen=True)
class GradientAlignment:
    """Score records by the inner product of their gradients with the updates of their clients."""

    field: str = "update"  # field of the message that holds the change of the weights

    name: ClassVar[str] = "gradient-alignment"
    kind: ClassVar[str] = MEMBERSHIP
    sees: ClassVar[tuple[str, ...]] = ("server", "wire")
    reads: ClassVar[str] = ROWS
    needs: ClassVar[tuple[str, ...]] = ()

    def score(self, views: Sequence[View], knowledge: Knowledge, targets: Targets) -> Floats:
        """Return one score per record, summed over the views that hold a row of its client."""
        require(self, views, knowledge)
        owners, batch = targets.owners, targets.batch
        alone = replace(batch, sizes=(1,) * len(owners), groups=None)  # treat every record as a client
        scores, heard = np.zeros(len(owners)), set()
        for view in views:
            ids, rows = single_rows(self.name, view, self.field)
            at = {int(client): k for k, client in enumerate(ids)}
            asked = [r for r, client in enumerate(owners) if client in at]
            if not asked:
                continue
            seeds = [0] * len(owners)
            steps = -knowledge.model.gradients.sums(view.state.params, alone, None, seeds=seeds)[asked]
            updates = rows[[at[owners[r]] for r in asked]]
            lengths = steps.norm(dim=1).clamp(min=1e-12)
            scores[asked] += ((steps * updates).sum(dim=1) / lengths).double().cpu().numpy()
            heard |= {owners[r] for r in asked}
        if missing := set(owners) - heard:
            raise SpecError(
                f"{self.name}: no view holds a row of client {min(missing)}. Record more rounds, or ask of others."
            )
        return scores
