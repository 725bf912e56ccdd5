"""Ditto: a personal model beside the shared one.

Li et al. (2021), arXiv:2012.04221, Algorithm 1.

The shared model is that of FedAvg. In addition every client trains v_k on F_k(v) + lambda/2 |v - w_t|^2 by plain SGD
with exact gradients, starting from the shared model of its first round, and keeps it: v_k never leaves the client and
the shared model never depends on it, so it costs nothing against server and public. There is no guarantee for a
client's data against anyone who is shown its personal model.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from sordino.algorithms.base import Algorithm, Gradient
from sordino.core import check
from sordino.core.errors import SpecError
from sordino.core.local_training import Local
from sordino.core.types import Batch, Rows, State

__all__ = ["Ditto"]


@dataclass(frozen=True)
class Ditto(Algorithm):
    """FedAvg with a personal model at every client, pulled towards the shared model."""

    pull: float = 0.1  # lambda: strength of the pull of a personal model towards the shared one

    personal: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check.non_negative(pull=self.pull)

    def local(self, local: Local) -> Local:
        """Refuse a step size with which the pull towards the shared model diverges."""
        if local.learning_rate * self.pull >= 2:
            raise SpecError(f"pull {self.pull:g} times learning_rate {local.learning_rate:g} must stay below 2.")
        return local

    def keeps(self, state: State, clients: int) -> Rows:
        """Return the initial personal models: the shared model."""
        return state.params.expand(clients, -1).clone()  # v_k

    def aside(
        self, client_state: Rows, state: State, batches: Iterable[Batch], gradient: Gradient, local: Local
    ) -> Rows:
        """Train the personal models by plain SGD on the local loss plus the pull towards the shared model."""
        for number, batch in enumerate(batches):
            took = torch.tensor(batch.sizes, device=client_state.device)[:, None] > 0
            step = gradient(client_state, batch, number) + self.pull * (client_state - state.params)
            client_state = torch.where(took, client_state - local.learning_rate * step, client_state)
        return client_state

    def own_models(self, state: State, client_state: Rows) -> Tensor:
        """Return the personal models."""
        return client_state
