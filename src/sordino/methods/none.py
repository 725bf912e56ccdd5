"""No privacy: clients send what the algorithm says, as it is.

Protects no one from anyone: the reference that says what privacy costs. Messages are averaged by the records of those
who took part (McMahan et al. 2017, arXiv:1602.05629, Algorithm 1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from sordino.core.rng import RowStream, Stream
from sordino.core.types import Batch, Model, Rows, State
from sordino.methods import local
from sordino.methods.base import Method, Plan
from sordino.privacy.events import Cost, NonPrivate

__all__ = ["NoPrivacy"]


@dataclass(frozen=True)
class NoPrivacy(Method):
    private: ClassVar[bool] = False
    units: ClassVar[tuple[str, ...]] = ("record", "client", "user")
    channels: ClassVar[tuple[str, ...]] = ("direct", "secure-sum")

    def costs(self, plan: Plan, round: int = 0) -> tuple[Cost, ...]:
        return (Cost(plan.unit or "record", "add/remove", "server", NonPrivate("no noise is added")),)

    def train(
        self, state: State, data: Batch, own: Rows, model: Model, plan: Plan, rng: RowStream
    ) -> tuple[Rows, Rows]:
        return local.sgd(state, data, own, model, plan, rng)

    def release(self, rows: Rows, sizes: tuple[int, ...], state: State, plan: Plan, rng: RowStream) -> Rows:
        weights = torch.tensor(sizes, dtype=rows.dtype, device=rows.device)[:, None]
        return torch.cat([rows * weights, weights], dim=1)  # the last column is the weight

    def merge(self, state: State, rows: Rows, plan: Plan, rng: Stream) -> State:
        total = rows.sum(dim=0)
        if not float(total[-1]) > 0:  # nobody answered
            return state
        heard = float(total[-1]) / (plan.population * plan.mean_client)
        return plan.algorithm.update(state, total[:-1] / total[-1], plan.server(heard, noisy=False))
