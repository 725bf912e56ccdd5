"""Fed-CDP, sound: per-example, per-layer clipping.

Based on Wei, Liu, Wu, Su, Iyengar (2021), "Gradient-leakage resilient federated learning", ICDCS, arXiv:2107.01154,
Algorithm 2.

Protects a record from the server, as DP-SGD does: at every local step each layer's part of a record's gradient is
clipped to C, and the sum over a batch, which one record then moves by at most C sqrt(layers), gets noise in proportion
to that.

Differs from the paper (`fed-cdp-paper`): the paper's noise is sigma C in every layer, accounted as one Gaussian of
multiplier sigma, which omits the root of the number of layers; here noise is drawn once for the sum (as in the authors'
code, git-disl/Fed-CDP), not once per example (as printed, from memory).
"""

from __future__ import annotations

from dataclasses import dataclass

from sordino.methods.dp_sgd import ByLayer, DpSgd, Recipe

__all__ = ["FedCdp"]


@dataclass(frozen=True)
class FedCdp(DpSgd):
    """DP-SGD with a clip bound for each layer."""

    clip: float = 1.0  # C: bound on the L2 norm of each layer's part of one record's (or user's) gradient

    def recipe(self) -> Recipe:
        return Recipe(ByLayer(self.clip))
