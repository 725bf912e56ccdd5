"""Fed-alpha-CDP, its sound core: Fed-CDP with clip and noise that decrease over the rounds by a public schedule.

Based on Wei, Liu, Zhou, Chow, Wu (2023), "Securing distributed SGD against gradient leakage threats", IEEE TPDS 34,
arXiv:2305.06473.

Protects a record from the server: each layer's part of a record's gradient is clipped to C_t = C g(t/T), one record
moves a sum by C_t sqrt(layers), and the noise multiplier is z_t = z f(t/T); shapes as in `dp-dyns`. A clip that ends at
a third of its initial value is that of Fed-CDP(decay), 6 to 2 (from memory).

Differs from the paper (`fed-alpha-cdp-paper`): the paper follows the gradients by the largest norm in each batch, which
is private; a decreasing public clip follows their trend and reveals nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from sordino.methods.dp_dyns import ENDS_AT, check_decay, decayed
from sordino.methods.dp_sgd import ByLayer, Recipe
from sordino.methods.fed_cdp import FedCdp

__all__ = ["FedAlphaCdp"]


@dataclass(frozen=True)
class FedAlphaCdp(FedCdp):
    """Fed-CDP with decreasing noise and clip; see the module docstring."""

    decay_shape: str = "linear"  # shape of the decrease of noise and clip: linear, staircase, exponential or cyclic
    noise_decay: float = ENDS_AT  # final over initial noise multiplier
    clip_decay: float = 0.3333  # final over initial clip

    def __post_init__(self) -> None:
        super().__post_init__()
        check_decay(self.decay_shape, noise_decay=self.noise_decay, clip_decay=self.clip_decay)

    def recipe(self) -> Recipe:
        shape = self.decay_shape
        return Recipe(
            ByLayer(self.clip),
            noise_schedule=lambda t, rounds: decayed(shape, self.noise_decay, t / rounds),
            clip_schedule=lambda t, rounds: decayed(shape, self.clip_decay, t / rounds),
        )
