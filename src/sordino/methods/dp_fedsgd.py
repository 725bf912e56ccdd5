"""DP-FedSGD: one gradient over all of a client's records, clipped, noised at the server.

McMahan et al. (2018), arXiv:1710.06963, Section 2 (FedSGD variant). Protects a client from the public, the server is
trusted. DP-FedAvg with one full-batch step; the client's learning rate scales the gradient before the clip."""

from __future__ import annotations

from dataclasses import dataclass, replace

from sordino.core.rng import RowStream
from sordino.core.types import Batch, Model, Rows, State
from sordino.methods import local
from sordino.methods.base import Plan
from sordino.methods.dp_fedavg import DpFedAvg

__all__ = ["DpFedSgd"]


@dataclass(frozen=True)
class DpFedSgd(DpFedAvg):
    def train(self, state: State, data: Batch, model: Model, plan: Plan, rng: RowStream) -> Rows:
        once = replace(plan.local, steps=1, epochs=None, batch_size=None, batch_rate=1.0, optimizer="sgd")
        return local.sgd(state.params, data, model, once, rng)
