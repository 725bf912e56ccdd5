"""Fed-CDP as printed.  Wei, Liu, Wu, Su, Iyengar (2021), "Gradient-leakage resilient federated learning", ICDCS,
arXiv:2107.01154, Algorithm 2; unit record, viewer server; the claim does not hold, except for models of one layer.

At every local step each layer's part of a record's gradient is clipped to C, and each layer of a batch's sum gets noise
N(0, (sigma C)^2). The paper uses the moments accountant as if a record moved the sum by C; we calibrate sigma with our
accountant for the sampled Gaussian, which is a little tighter. Records are treated as sampled from those of all
clients, at the rate q = B K_t / N (in the authors' code, git-disl/Fed-CDP, 0.01 for B = 5, 100 clients per round and
50,000 records), in all T rounds: the sampling of clients is accounted as if the server could not see it. As in that
code, noise is added once to the sum; added to every example, as printed (from memory), it would be more.

Not sound: one record moves each layer by up to C, and so all layers together by up to C sqrt(layers). What does hold,
and is charged: every step is a Gaussian of multiplier sigma / sqrt(layers), in every round in which the client takes
part, with the sampling rate of the client's own batches. With one layer, all clients in every round and Poisson (or
full) batches, this is DP-SGD: the claim holds, and there is nothing to correct."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

from sordino.contract.method import Claim, Plan, Release
from sordino.core.types import State
from sordino.methods._measured import sigma
from sordino.methods.fed_cdp import FedCdp

__all__ = ["FedCdpPaper"]

WHY_NOT = (
    "each layer is clipped by itself, so one record moves the sum by C times the root of the number of layers; the "
    "noise is counted as if it moved by C"
)
DRAWN = "the draw of clients counts as if it were hidden from the server, which sees whose messages arrive"
FIXED = "batches of a fixed size count as if they were Poisson samples"


@dataclass(frozen=True)
class FedCdpPaper(FedCdp):
    """Fed-CDP as printed; its claim does not hold, except for models of one layer."""

    private: ClassVar[bool] = False
    units: ClassVar[tuple[str, ...]] = ("record",)
    channels: ClassVar[tuple[str, ...]] = ("direct",)
    algorithms: ClassVar[tuple[str, ...]] = ("fedavg", "fedsgd", "fedavgm", "fedopt", "fedprox")

    def require(self, plan: Plan) -> None:
        self.releases(plan)  # raises if there is no accounting

    def sigma(self, plan: Plan) -> float:
        """Return the sigma with which the paper claims (epsilon, delta)."""
        local, rate = plan.local, max(plan.local.rate(n) for n in plan.sizes)
        steps = local.count(plan.smallest_client)
        hidden = replace(local, steps=steps, epochs=None, batch_size=None, batch_rate=plan.share * rate)
        return sigma(replace(plan, local=hidden, max_participations=None))

    def printed(self, plan: Plan) -> Plan:
        """Return the plan with the true noise multiplier: sigma C over the true sensitivity C sqrt(layers)."""
        return replace(plan, noise_multiplier=self.sigma(plan) / math.sqrt(plan.layers))

    def releases(self, plan: Plan, round: int = 0, state: State | None = None) -> tuple[Release, ...]:
        """Declare the noisy steps with their true noise multiplier sigma / sqrt(layers)."""
        return super().releases(self.printed(plan), round, state)

    def remarks(self, plan: Plan) -> tuple[str, ...]:
        if self._wrong(plan):
            return ()
        return ("with one layer and all clients in every round fed-cdp-paper is dp-sgd, and its claim holds",)

    def _wrong(self, plan: Plan) -> str | None:
        """Return why the claim does not hold; None if it does."""
        if plan.layers > 1:
            return WHY_NOT
        if plan.share < 1:
            return DRAWN
        return FIXED if self.releases(plan)[0].draw.fixed else None

    def claim(self, plan: Plan) -> Claim | None:
        """Return the paper's claim; None where it holds."""
        why = self._wrong(plan)
        return None if why is None else Claim(plan.epsilon, plan.delta, "Wei et al. (2021)", why)

    def noise(self, state: State, plan: Plan) -> float | None:
        return super().noise(state, self.printed(plan))
