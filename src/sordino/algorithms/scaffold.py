"""SCAFFOLD: control variates undo client drift.  Karimireddy et al. (2020), arXiv:1910.06378, Algorithm 1, option II.

Each client keeps c_i, the server c; a local step follows g - c_i + c, and afterwards c_i becomes
c_i - c + (x - y_i) / (K lr). The message is (what the weights moved by, what c_i moved by), so it is twice as long.
With noisy gradients this is DP-SCAFFOLD: Noble, Bellet, Dieuleveut (2022), arXiv:2111.09278, Algorithm 1."""

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
    control: Vector  # c


@dataclass(frozen=True)
class Scaffold(Algorithm):
    mirrored: ClassVar[bool] = True
    plain_sgd: ClassVar[bool] = True
    needs_steps: ClassVar[bool] = True
    condition: ClassVar[str] = "local optimizer sgd"
    with_clipped_message: ClassVar[str] = "noise gathers in the control variate and little is learnt: use dp-sgd"

    def variables(self, state: State, layout: Layout) -> Control:
        return Control(0 * state.params)

    def numbers_down(self, state: State) -> int:
        return 2 * state.params.numel()  # c too

    def keeps(self, state: State, clients: int) -> Rows:
        return state.params.new_zeros(clients, len(state.params))  # c_i

    def correct(self, gradient: Rows, weights: Tensor, own: Rows, state: State, number: int, local: Local) -> Rows:
        control: Tensor = state.algorithm.control
        return gradient - own + control

    def message(self, moved: Rows, own: Rows, state: State, work: LocalWork) -> tuple[Rows, Rows]:
        drift = -moved / (work.steps.clamp_min(1) * work.local.learning_rate)
        change = torch.where(work.steps > 0, drift - state.algorithm.control, 0.0)
        return torch.cat([moved, change], dim=1), own + change

    def update(self, state: State, mean: Vector, server: Server) -> State:
        moved, change = mean.chunk(2)
        control = state.algorithm.control + server.share * change  # |S| / N
        state = replace(state, algorithm=Control(control))
        return super().update(state, moved, server)
