"""Optimisers over rows: all clients step at once, each with its own state.

A user's own optimiser (`optimizer = own`) is a class or function that is called with the public settings (`Local`) at
the start of every round, and returns a function from gradients [clients, dim] to the steps to subtract, like
`Optimizer` below:

    class Signs:
        def __init__(self, local):
            self.lr = local.learning_rate

        def __call__(self, g):
            return self.lr * g.sign()
"""

from __future__ import annotations

import torch
from torch import Tensor

from sordino.core.errors import SpecError
from sordino.core.local_training import Local
from sordino.core.types import Rows

OPTIMIZERS = ("sgd", "momentum", "adam", "rmsprop")


class Optimizer:
    """Maps gradients [clients, dim] to the steps, learning rate included, to subtract from the weights."""

    def __init__(self, local: Local) -> None:
        self.name, self.lr, self.beta = local.optimizer, local.learning_rate, local.momentum
        self.count = 0
        self.kept: dict[str, Tensor] = {}
        self.own = None if local.own_optimizer is None else local.own_optimizer(local)

    def __call__(self, g: Rows) -> Rows:
        self.count += 1
        if self.own is not None:
            return _checked(self.own(g), g)
        if self.name == "sgd":
            return self.lr * g
        if self.name == "momentum":
            return self.lr * self._smooth("velocity", g, self.beta, 1.0)
        if self.name == "rmsprop":
            return self.lr * g / (torch.sqrt(self._smooth("square", g * g, self.beta, 1 - self.beta)) + 1e-8)
        mean = self._smooth("mean", g, self.beta, 1 - self.beta) / (1 - self.beta**self.count)
        square = self._smooth("square", g * g, 0.999, 0.001) / (1 - 0.999**self.count)
        return self.lr * mean / (torch.sqrt(square) + 1e-8)

    def would(self, g: Rows) -> Rows:
        """Return the step that this gradient would cause next, without changing the state."""
        count, averages = self.count, dict(self.kept)
        step = self(g)
        self.count, self.kept = count, averages
        return step

    def _smooth(self, name: str, value: Rows, decay: float, gain: float) -> Rows:
        self.kept[name] = decay * self.kept[name] + gain * value if name in self.kept else gain * value
        return self.kept[name]


def _checked(step: object, g: Rows) -> Rows:
    """Return the step of a user's own optimiser; raise SpecError unless it is shaped like the gradients."""
    if not isinstance(step, Tensor) or step.shape != g.shape or not step.is_floating_point():
        given = list(step.shape) if isinstance(step, Tensor) else type(step).__name__
        raise SpecError(f"your optimizer must return steps shaped like the gradients, {list(g.shape)}, not {given}.")
    return step.to(g)
