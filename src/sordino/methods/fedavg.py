"""Federated averaging without privacy.  McMahan et al. (2017), arXiv:1602.05629, Algorithm 1.

Protects no one from anyone: the reference that says what privacy costs. Differs from the paper: clients are
drawn by the plan's sampler; their updates are averaged by the weights of those who took part."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from sordino.core.rng import RowStream, Stream
from sordino.core.types import Batch, Model, Rows, State
from sordino.methods import local, server
from sordino.methods.base import Plan
from sordino.privacy.events import Cost, NonPrivate

__all__ = ["FedAvg"]


@dataclass(frozen=True)
class FedAvg:
    viewer: ClassVar[str] = "server"
    private: ClassVar[bool] = False

    def costs(self, plan: Plan) -> tuple[Cost, ...]:
        return (Cost("record", "add/remove", "server", NonPrivate("fedavg adds no noise")),)

    def begin(self, state: State, plan: Plan) -> State:
        return server.begin(state, plan)

    def train(self, state: State, data: Batch, model: Model, plan: Plan, rng: RowStream) -> Rows:
        return local.sgd(state.params, data, model, plan.local, rng)

    def release(self, rows: Rows, sizes: tuple[int, ...], state: State, plan: Plan, rng: RowStream) -> Rows:
        weights = torch.tensor(sizes, dtype=rows.dtype, device=rows.device)[:, None]
        return torch.cat([rows * weights, weights], dim=1)  # the last column is the weight

    def merge(self, state: State, rows: Rows, plan: Plan, rng: Stream) -> State:
        total = rows.sum(dim=0)
        return server.step(state, total[:-1] / total[-1].clamp_min(1), plan)
