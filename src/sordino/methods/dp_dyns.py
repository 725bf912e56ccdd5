"""DP-dyns, its sound core: DP-SGD with noise and clip that decrease over the rounds by a public schedule.

Based on Wei and Liu (2021), "Gradient leakage attack resilient deep learning", IEEE TIFS 17, arXiv:2112.13178.

Protects a record from the server, as DP-SGD does: z_t = z f(t/T), C_t = C g(t/T), both fixed before the first round;
rounds with different noise are composed exactly. The four shapes are those of the authors' public code
(git-disl/Fed-alphaCDP), in which the noise scale decreases from 15 to 4.85:

    linear       1 - (1 - e) u          staircase    the same in ten steps
    exponential  e^u                    cyclic       cos(u arccos e)

Differs from the paper (`dp-dyns-paper`): the sensitivity is the clip bound, never a norm measured on the batch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from sordino.core import check
from sordino.methods.dp_sgd import DpSgd, Recipe, Whole

__all__ = ["DpDyns"]

SHAPES = ("linear", "staircase", "exponential", "cyclic")
ENDS_AT = round(4.85 / 15, 4)  # final over initial noise scale of the authors


@dataclass(frozen=True)
class DpDyns(DpSgd):
    """DP-SGD with decreasing noise and clip; see the module docstring."""

    decay_shape: str = "linear"  # shape of the decrease of noise and clip: linear, staircase, exponential or cyclic
    noise_decay: float = ENDS_AT  # final over initial noise multiplier
    clip_decay: float = 1.0  # final over initial clip

    def __post_init__(self) -> None:
        super().__post_init__()
        check_decay(self.decay_shape, noise_decay=self.noise_decay, clip_decay=self.clip_decay)

    def recipe(self) -> Recipe:
        shape = self.decay_shape
        return Recipe(
            Whole(self.clip),
            noise_schedule=lambda t, rounds: decayed(shape, self.noise_decay, t / rounds),
            clip_schedule=lambda t, rounds: decayed(shape, self.clip_decay, t / rounds),
        )


def check_decay(shape: str, **ends: float) -> None:
    """Raise an error unless the shape is known and all final values lie in (0, 1]."""
    check.one_of(SHAPES, decay_shape=shape)
    check.probability(**ends)  # in (0, 1]: decreasing, never to zero


def decayed(shape: str, end: float, through: float) -> float:
    """Return the factor, from 1 to `end`, when a fraction `through` in [0, 1] of the rounds has passed."""
    if shape == "linear":
        return 1 - (1 - end) * through
    if shape == "staircase":
        return 1 - (1 - end) * math.floor(10 * through) / 10
    if shape == "exponential":
        return math.exp(math.log(end) * through)
    return math.cos(math.acos(end) * through)
