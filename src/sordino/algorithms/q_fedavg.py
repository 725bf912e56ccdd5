"""q-FedAvg: clients with a larger loss get a larger weight.

Li et al. (2020), arXiv:1905.10497, Algorithm 2.

With L = 1 / learning rate and `moved` the change of its weights, client k sends F_k^q moved and h_k = q F_k^(q-1) L
|moved|^2 + F_k^q (numerator and denominator both divided by L); the server moves by their ratio. q = 0 is FedAvg. F_k,
the loss of the received model on the client's records, depends on private data: a private method releases it with noise
and charges it, or clips the whole message.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch

from sordino.algorithms.base import Algorithm, LocalWork, Server
from sordino.core import check
from sordino.core.types import Rows, State, Vector

__all__ = ["QFedAvg"]

LEAST_LOSS, LEAST_SHARE = 1e-6, 1e-3  # lower limits, since noise may make a loss or the denominator negative


@dataclass(frozen=True)
class QFedAvg(Algorithm):
    """FedAvg with clients weighted by a power of their loss."""

    q: float = 1.0  # exponent of the loss in the weight; 0: all clients have the same weight
    loss_clip: float = 5.0  # cap on the loss of one record, if losses are released with noise

    needs: ClassVar[tuple[str, ...]] = ("losses",)
    plain_sgd: ClassVar[bool] = True
    condition: ClassVar[str] = "local optimizer sgd"
    with_noisy_gradients: ClassVar[str] = "the client's loss is released with the same noise and charged too"
    with_clipped_message: ClassVar[str] = "numerator and denominator are clipped as one message"

    def __post_init__(self) -> None:
        check.non_negative(q=self.q)
        check.positive(loss_clip=self.loss_clip)

    def message(self, moved: Rows, client_state: Rows, state: State, work: LocalWork) -> tuple[Rows, Rows]:
        """Return numerator and denominator [clients, dim + 1] of each client's contribution."""
        if work.losses is None:
            raise ValueError("q-FedAvg needs the clients' losses")
        loss = work.losses.clamp_min(LEAST_LOSS)
        square = torch.linalg.vector_norm(moved, dim=1, keepdim=True).square()
        weight = self.q * loss ** (self.q - 1) * square / work.local.learning_rate + loss**self.q
        return torch.cat([loss**self.q * moved, weight], dim=1), client_state

    def update(self, state: State, mean: Vector, server: Server) -> State:
        """Move by the ratio of the mean numerator to the mean denominator."""
        least = LEAST_SHARE if server.noisy else 1e-30  # an exact denominator is positive
        return super().update(state, mean[:-1] / mean[-1].clamp_min(least), server)
