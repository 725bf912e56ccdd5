"""GeoDP, its sound core: DP-SGD whose noise changes geometrically over the rounds.

Based on Yuan et al. (2023), "Amplitude-varying perturbation for balancing privacy and utility in federated learning",
arXiv:2303.04274; Xue et al. call it GeoDP. It is not the GeoDP of Duan et al. (2025), arXiv:2504.05618.

Protects a record from the server, as DP-SGD does: z_t^2 = z_1^2 r^(t-1) with a public ratio r, the true sensitivity,
and the smallest z_1 for the whole budget; with full batches z_1 solves sum_t 1 / z_t^2 = mu^2.

Differs from the paper (`geodp-paper`): gradients are clipped, not weights; the series is fixed before the first round,
whereas the paper refines it online by the training loss, which no noise protects.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from sordino.contract.method import Plan
from sordino.core import check
from sordino.core.errors import SpecError
from sordino.methods.dp_sgd import DpSgd, Recipe, Whole

__all__ = ["GeoDP"]

WIDEST = 1e3  # maximum ratio of the largest to the smallest noise of a run


@dataclass(frozen=True)
class GeoDP(DpSgd):
    """DP-SGD with noise in a geometric series; see the module docstring."""

    noise_ratio: float = 0.95  # r: noise variance of a round over that of the previous round

    def __post_init__(self) -> None:
        super().__post_init__()
        check.positive(noise_ratio=self.noise_ratio)

    def recipe(self) -> Recipe:
        return Recipe(Whole(self.clip), noise_schedule=lambda t, _: math.exp(math.log(self.noise_ratio) * t / 2))

    def require(self, plan: Plan) -> None:
        super().require(plan)
        require_ratio(self.noise_ratio, plan.rounds)


def require_ratio(ratio: float, rounds: int) -> None:
    """Raise an error if the noise would change by more than a factor `WIDEST` over the rounds."""
    if abs(math.log(ratio)) * (rounds - 1) / 2 > math.log(WIDEST):
        raise SpecError(
            f"noise_ratio = {ratio:g} over {rounds} rounds means noise that varies by more than {WIDEST:g}-fold: "
            "use a ratio nearer to 1."
        )
