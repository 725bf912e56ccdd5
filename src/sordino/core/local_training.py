"""How a client trains in one round: steps, batches, optimiser, learning rate and its schedule; all of it public."""

from __future__ import annotations

import math
from dataclasses import dataclass

from sordino.core import check

SCHEDULES = ("constant", "linear", "cosine", "step")
AUGMENTATIONS = ("none", "flip", "flip-crop")


@dataclass(frozen=True)
class Local:
    steps: int | None = 1  # K local steps; or
    epochs: float | None = None  # E passes over the client's data
    batch_size: int | None = None  # expected records a step; or
    batch_rate: float | None = 1.0  # expected share of the client's records a step
    optimizer: str = "sgd"
    learning_rate: float = 0.1
    momentum: float = 0.9  # of the momentum, Adam (beta1) and RMSprop (decay) optimisers
    weight_decay: float = 0.0  # pulls the weights to zero: weight_decay times the weights joins the gradient
    schedule: str = "constant"  # of the learning rate over the rounds
    warmup: int = 0  # first rounds over which the learning rate rises
    augment: str = "none"  # random changes of pictures, made anew for every step
    views: int = 1  # augmented views of a record whose mean gradient is clipped as one

    def __post_init__(self) -> None:
        check.positive(learning_rate=self.learning_rate)
        check.fraction(momentum=self.momentum)
        check.non_negative(weight_decay=self.weight_decay, warmup=self.warmup)
        check.one_of(SCHEDULES, schedule=self.schedule)
        check.one_of(AUGMENTATIONS, augment=self.augment)
        check.count(views=self.views)

    def rate(self, size: float) -> float:
        """The share of a client's records that one step is expected to use."""
        if self.batch_rate is not None:
            return self.batch_rate
        return min(1.0, (self.batch_size or size) / max(size, 1))

    def expected_batch(self, size: float) -> float:
        """Public divisor of a gradient sum; at least one record, so that a step never explodes."""
        return max(1.0, self.rate(size) * size)

    def count(self, size: int) -> int:
        """Local steps of a client with that many records."""
        if self.steps is not None:
            return self.steps
        return max(1, round((self.epochs or 1.0) / self.rate(size)))

    def rate_in(self, round: int, rounds: int) -> float:
        """The learning rate in a round (from 0): warm-up, then the schedule; never zero."""
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
