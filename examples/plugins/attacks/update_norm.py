"""Guess which clients hold unusual data from the length of their updates alone.

A server that sees single rows adds up the norms of every client's updates over the rounds: clients whose records are
unlike the others' move the model further. Clipping and noise at the client are what stands against it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from sordino.attacks.base import Targets
from sordino.core.errors import SpecError
from sordino.core.rng import Floats
from sordino.core.view import View

__all__ = ["UpdateNorm"]


@dataclass(frozen=True)
class UpdateNorm:
    field: str = "update"  # of the message

    name: ClassVar[str] = "update-norm"
    sees: ClassVar[str] = "server"

    def score(self, views: Sequence[View], targets: Targets) -> Floats:
        """Return one number a record: the mean norm of its client's rows."""
        total: dict[int, list[float]] = {}
        for view in views:
            if view.viewer != self.sees or view.seen is None or view.seen.ids is None:
                raise SpecError(f"{self.name} reads rows and their senders, which a server on a direct channel sees.")
            norms = view.seen[self.field].double().norm(dim=1).tolist()
            for client, norm in zip(view.seen.ids.tolist(), norms, strict=True):
                total.setdefault(client, []).append(norm)
        return np.array([np.mean(total.get(client, [0.0])) for client in targets.owners])
