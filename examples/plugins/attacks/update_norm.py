"""Guess which clients hold unusual data from the length of their updates alone.

A server that sees single rows adds up the norms of every client's updates over the rounds: clients whose records are
unlike the others' move the model further. Clipping and noise at the client are what stands against it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from sordino.attacks.base import MEMBERSHIP, ROWS, Knowledge, Targets, require, single_rows
from sordino.core.rng import Floats
from sordino.core.view import View

__all__ = ["UpdateNorm"]


@dataclass(frozen=True)
class UpdateNorm:
    field: str = "update"  # of the message

    name: ClassVar[str] = "update-norm"
    kind: ClassVar[str] = MEMBERSHIP
    sees: ClassVar[tuple[str, ...]] = ("server", "wire")
    reads: ClassVar[str] = ROWS
    needs: ClassVar[tuple[str, ...]] = ()

    def score(self, views: Sequence[View], knowledge: Knowledge, targets: Targets) -> Floats:
        """Return one number a record: the mean norm of its client's rows."""
        require(self, views, knowledge)
        total: dict[int, list[float]] = {}
        for view in views:
            ids, rows = single_rows(self.name, view, self.field)
            for client, norm in zip(ids.tolist(), rows.double().norm(dim=1).tolist(), strict=True):
                total.setdefault(client, []).append(norm)
        return np.array([np.mean(total.get(client, [0.0])) for client in targets.owners])
