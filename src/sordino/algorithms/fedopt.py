"""FedOpt: Adagrad, Adam or Yogi at the server.

Reddi et al. (2021), arXiv:2003.00295, Algorithm 2.

The mean message is the server's pseudo-gradient Delta_t; if Delta_t is noisy, all of this is post-processing.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from sordino.algorithms.base import Algorithm, Server
from sordino.core import check
from sordino.core.types import State, Vector
from sordino.core.vector import Layout

__all__ = ["FedOpt"]

KINDS = ("adagrad", "adam", "yogi")


@dataclass(frozen=True)
class OptimizerMoments:
    """The running moments of the server's optimiser."""

    first: Vector  # running mean of the updates
    second: Vector  # running mean of their squares


@dataclass(frozen=True)
class FedOpt(Algorithm):
    """FedAvg with an adaptive optimiser at the server."""

    server_optimizer: str = "adam"  # adagrad, adam or yogi
    server_beta1: float = 0.9  # decay of the mean of the updates; not used by Adagrad
    server_beta2: float = 0.99  # decay of the mean of their squares; not used by Adagrad
    server_tau: float = 1e-3  # added to the denominator: limits how far the steps adapt

    server_lr: ClassVar[float] = 0.1

    def __post_init__(self) -> None:
        check.one_of(KINDS, server_optimizer=self.server_optimizer)
        check.fraction(server_beta1=self.server_beta1, server_beta2=self.server_beta2)
        check.positive(server_tau=self.server_tau)

    def variables(self, state: State, layout: Layout) -> OptimizerMoments:
        """Return the initial moments: zero, and tau^2."""
        start = torch.full_like(state.params, self.server_tau**2)  # v_{-1} = tau^2
        return OptimizerMoments(0 * state.params, start)

    def update(self, state: State, mean: Vector, server: Server) -> State:
        """Update the moments by the mean message and take an adaptive step."""
        beta1 = 0.0 if self.server_optimizer == "adagrad" else self.server_beta1
        first = beta1 * state.algorithm.first + (1 - beta1) * mean
        second, square = state.algorithm.second, mean * mean
        if self.server_optimizer == "adagrad":
            second = second + square
        elif self.server_optimizer == "adam":
            second = self.server_beta2 * second + (1 - self.server_beta2) * square
        else:
            second = second - (1 - self.server_beta2) * square * torch.sign(second - square)
        state = replace(state, algorithm=OptimizerMoments(first, second))
        return super().update(state, first / (second.sqrt() + self.server_tau), server)
