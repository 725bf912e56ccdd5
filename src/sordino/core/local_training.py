"""Public settings of a client's training in one round: steps, batches, optimiser, learning rate and its schedule."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sordino.core import check

SCHEDULES = ("constant", "linear", "cosine", "step")
Step = Callable[[Any], Any]  # gradients [clients, dim] -> steps [clients, dim], learning rate included
AUGMENTATIONS = ("none", "flip", "flip-crop")


@dataclass(frozen=True)
class Local:
    """Settings of the local training of a client; all of them are public."""

    steps: int | None = 1  # K local steps; None: use epochs
    epochs: float | None = None  # E passes over the client's data, where steps is None
    batch_size: int | None = None  # expected number of records per step, where batch_rate is None
    batch_rate: float | None = 1.0  # expected fraction of the client's records per step
    optimizer: str = "sgd"
    learning_rate: float = 0.1
    momentum: float = 0.9  # momentum, Adam's beta1 or RMSprop's decay, depending on the optimiser
    weight_decay: float = 0.0  # weight_decay times the weights is added to the gradient
    schedule: str = "constant"  # schedule of the learning rate over the rounds
    warmup: int = 0  # number of first rounds over which the learning rate rises
    augment: str = "none"  # random augmentation of images, drawn again for every step
    views: int = 1  # augmented views per record; the mean gradient of its views is clipped
    own_optimizer: Callable[[Local], Step] | None = None  # makes the optimiser, where optimizer is "own"

    def __post_init__(self) -> None:
        check.positive(learning_rate=self.learning_rate)
        check.fraction(momentum=self.momentum)
        check.non_negative(weight_decay=self.weight_decay, warmup=self.warmup)
        check.one_of(SCHEDULES, schedule=self.schedule)
        check.one_of(AUGMENTATIONS, augment=self.augment)
        check.count(views=self.views)

    def rate(self, size: float) -> float:
        """Return the expected fraction of a client's records that one step uses."""
        if self.batch_rate is not None:
            return self.batch_rate
        return min(1.0, (self.batch_size or size) / max(size, 1))

    def expected_batch(self, size: float) -> float:
        """Return the public divisor of a gradient sum; at least 1, so that a step never explodes."""
        return max(1.0, self.rate(size) * size)

    def count(self, size: int) -> int:
        """Return the number of local steps of a client with `size` records."""
        if self.steps is not None:
            return self.steps
        return max(1, round((self.epochs or 1.0) / self.rate(size)))

    def rate_in(self, round: int, rounds: int) -> float:
        """Return the learning rate in a round (from 0): warm-up, then the schedule; never zero."""
        if round < self.warmup:
            return self.learning_rate * (round + 1) / (self.warmup + 1)
        through = (round - self.warmup) / max(1, rounds - self.warmup)  # in [0, 1)
        if self.schedule == "linear":
            return self.learning_rate * (1 - through)
        if self.schedule == "cosine":
            return self.learning_rate * 0.5 * (1 + math.cos(math.pi * through))
        if self.schedule == "step":  # a tenth after half of the rounds, a hundredth after three quarters
            return self.learning_rate * (1.0 if through < 0.5 else 0.1 if through < 0.75 else 0.01)
        return self.learning_rate
