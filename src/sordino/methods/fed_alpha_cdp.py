"""Fed-alpha-CDP, its sound core: Fed-CDP with a clip and noise that fall over the rounds by a public schedule.  After
Wei, Liu, Zhou, Chow, Wu (2023), "Securing distributed SGD against gradient leakage threats", IEEE TPDS 34,
arXiv:2305.06473.

Protects a record from the server: each layer's part of a record's gradient is clipped to C_t = C g(t/T), one record
moves a sum by C_t sqrt(layers), the noise multiplier is z_t = z f(t/T); shapes as in `dp-dyns`. A clip that ends at a
third of where it starts is that of Fed-CDP(decay), 6 to 2 (from memory).

Differs from the paper (`fed-alpha-cdp-paper`): it follows the gradients by the largest norm in each batch, which is
private; a falling public clip follows their trend and gives nothing away."""

from __future__ import annotations

from dataclasses import dataclass

from sordino.methods.dp_dyns import ENDS_AT, check_decay, decayed
from sordino.methods.dp_sgd import ByLayer, Recipe
from sordino.methods.fed_cdp import FedCdp

__all__ = ["FedAlphaCdp"]


@dataclass(frozen=True)
class FedAlphaCdp(FedCdp):
    decay_shape: str = "linear"  # how noise and clip fall over the rounds: linear, staircase, exponential or cyclic
    noise_decay: float = ENDS_AT  # where the noise multiplier ends, relative to where it starts
    clip_decay: float = 0.3333  # where the clip ends, relative to where it starts

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
