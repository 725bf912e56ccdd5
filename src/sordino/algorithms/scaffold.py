"""SCAFFOLD: control variates that correct client drift.

Karimireddy et al. (2020), arXiv:1910.06378, Algorithm 1, option II.

Each client keeps c_i and the server keeps c; a local step follows g - c_i + c, and afterwards c_i becomes c_i - c + (x
- y_i) / (K lr). The message consists of the change of the weights and the change of c_i, so it is twice as long. With
noisy gradients this is DP-SCAFFOLD: Noble, Bellet, Dieuleveut (2022), arXiv:2111.09278, Algorithm 1.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from sordino.algorithms.base import Algorithm, LocalWork, Server
from sordino.core.local_training import Local
from sordino.core.types import Rows, State, Vector
from sordino.core.vector import Layout

__all__ = ["Scaffold"]


@dataclass(frozen=True)
class Control:
    """The server's control variate."""

    control: Vector  # c


@dataclass(frozen=True)
class Scaffold(Algorithm):
    """FedAvg with control variates at clients and server."""

    mirrored: ClassVar[bool] = True
    plain_sgd: ClassVar[bool] = True
    needs_steps: ClassVar[bool] = True
    condition: ClassVar[str] = "local optimizer sgd"
    with_clipped_message: ClassVar[str] = "noise accumulates in the control variate and little is learnt: use dp-sgd"

    def variables(self, state: State, layout: Layout) -> Control:
        """Return a control variate c of zero."""
        return Control(0 * state.params)

    def numbers_down(self, state: State) -> int:
        """Return the size of the model and of the server's control variate."""
        return 2 * state.params.numel()

    def keeps(self, state: State, clients: int) -> Rows:
        """Return control variates c_i of zero."""
        return state.params.new_zeros(clients, len(state.params))

    def correct(
        self, gradient: Rows, weights: Tensor, client_state: Rows, state: State, number: int, local: Local
    ) -> Rows:
        """Return g - c_i + c."""
        control: Tensor = state.algorithm.control
        return gradient - client_state + control

    def message(self, moved: Rows, client_state: Rows, state: State, work: LocalWork) -> tuple[Rows, Rows]:
        """Return the changes of weights and control variates [clients, 2 dim], and the new control variates."""
        drift = -moved / (work.steps.clamp_min(1) * work.local.learning_rate)
        change = torch.where(work.steps > 0, drift - state.algorithm.control, 0.0)
        return torch.cat([moved, change], dim=1), client_state + change

    def update(self, state: State, mean: Vector, server: Server) -> State:
        """Move the model by the mean change of weights, and c by the mean change of the c_i times |S| / N."""
        moved, change = mean.chunk(2)
        control = state.algorithm.control + server.share * change  # |S| / N
        state = replace(state, algorithm=Control(control))
        return super().update(state, moved, server)
