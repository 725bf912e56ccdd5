"""Optimisers over rows: every client steps with its own state, all at once."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from sordino.algorithms.local import Local
from sordino.core.types import Rows

OPTIMIZERS = ("sgd", "momentum", "adam", "rmsprop")
Step = Callable[[Rows], Rows]  # gradients [clients, dim] -> what to subtract from the weights


def make(local: Local) -> Step:
    """A fresh optimiser. Gradients go in, the step (learning rate included) comes out."""
    lr, beta = local.learning_rate, local.momentum
    kept: dict[str, Tensor] = {}

    def smooth(name: str, value: Rows, decay: float, gain: float) -> Rows:
        kept[name] = decay * kept[name] + gain * value if name in kept else gain * value
        return kept[name]

    def sgd(g: Rows) -> Rows:
        return lr * g

    def momentum(g: Rows) -> Rows:
        return lr * smooth("velocity", g, beta, 1.0)

    def rmsprop(g: Rows) -> Rows:
        return lr * g / (torch.sqrt(smooth("square", g * g, beta, 1 - beta)) + 1e-8)

    count = 0

    def adam(g: Rows) -> Rows:
        nonlocal count
        count += 1
        mean = smooth("mean", g, beta, 1 - beta) / (1 - beta**count)
        square = smooth("square", g * g, 0.999, 0.001) / (1 - 0.999**count)
        return lr * mean / (torch.sqrt(square) + 1e-8)

    return {"sgd": sgd, "momentum": momentum, "rmsprop": rmsprop, "adam": adam}[local.optimizer]
