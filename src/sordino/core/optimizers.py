"""Optimisers over rows: all clients step at once, each with its own state."""

from __future__ import annotations

import torch
from torch import Tensor

from sordino.core.local_training import Local
from sordino.core.types import Rows

OPTIMIZERS = ("sgd", "momentum", "adam", "rmsprop")


class Optimizer:
    """Maps gradients [clients, dim] to the steps, learning rate included, to subtract from the weights."""

    def __init__(self, local: Local) -> None:
        self.name, self.lr, self.beta = local.optimizer, local.learning_rate, local.momentum
        self.count = 0
        self.kept: dict[str, Tensor] = {}

    def __call__(self, g: Rows) -> Rows:
        self.count += 1
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
