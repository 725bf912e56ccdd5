"""Fed-CDP, sound: per-example, per-layer clipping.  After Wei, Liu, Wu, Su, Iyengar (2021), "Gradient-leakage resilient
federated learning", ICDCS, arXiv:2107.01154, Algorithm 2.

Protects a record from the server, as DP-SGD: at every local step each layer's part of a record's gradient is clipped to
C, and the sum of a batch, which one record then moves by C sqrt(layers) at most, gets noise in proportion to that.

Differs from the paper (`fed-cdp-paper`): its noise is sigma C in every layer, counted as one Gaussian of multiplier
sigma, which leaves out the root of the number of layers; here noise is drawn once for the sum (as in the authors' code,
git-disl/Fed-CDP), not once an example (as printed, from memory)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from sordino.core.types import Batch, Model, State
from sordino.methods.base import Plan
from sordino.methods.dp_sgd import DpSgd, Groups
from sordino.privacy.clip import Bounded

__all__ = ["FedCdp"]


@dataclass(frozen=True)
class FedCdp(DpSgd):
    clip: float = 1.0  # C: bound on the L2 norm of each layer's part of one record's (or user's) gradient

    def layer_bound(self, state: State, plan: Plan) -> float:
        """The clip of every layer in the round that begins with this state."""
        return self.clip

    def bound(self, state: State, plan: Plan) -> float:
        return self.layer_bound(state, plan) * math.sqrt(plan.layers)

    def clipped(
        self, weights: Tensor, batch: Batch, model: Model, state: State, plan: Plan, seeds: list[int], groups: Groups
    ) -> Bounded:
        bounds = [self.layer_bound(state, plan)] * len(model.layout.layers())
        sums = model.gradients.sums(weights, batch, None, seeds=seeds, groups=groups, layers=bounds)
        return Bounded(sums, math.hypot(*bounds))
