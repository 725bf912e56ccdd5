"""DP-dyns as printed.  Wei and Liu (2021), "Gradient leakage attack resilient deep learning", IEEE TIFS 17,
arXiv:2112.13178, dynamic sensitivity and dynamic noise scale; unit record, viewer server; the claim does not hold.

DP-SGD whose noise in a step has standard deviation sigma_t S, where S is the largest norm among the (clipped) gradients
of the batch, and sigma_t falls over the rounds (shapes as in `dp-dyns`). The paper uses the moments accountant as if S
were the sensitivity; we calibrate sigma with our accountant for the sampled Gaussian, which is a little tighter. The
authors' public code (git-disl/Fed-alphaCDP) confirms that S is the largest norm ("l2-max") and how sigma_t falls; which
norms are compared (here those of whole gradients) is from memory. `noised` says whether noise is added in every step,
as there, or once to the update (_measured.py).

Not sound: S is computed from the batch, and the scale of the noise reveals it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from sordino.contract import clipped_steps
from sordino.contract.method import Claim, Own, Plan, Release, Site
from sordino.core import check
from sordino.core.message import Message
from sordino.core.types import Batch, Model, Rows, State
from sordino.methods._measured import (
    NOISED,
    OF_UPLOADS,
    Largest,
    Measured,
    of_clients,
    require_plain,
    sigma,
    sums_and_norms,
    upload,
)
from sordino.methods.dp_dyns import ENDS_AT, check_decay, decayed
from sordino.methods.dp_sgd import DpSgd
from sordino.privacy.clip import Bounded
from sordino.privacy.mechanisms.gaussian import Gaussian
from sordino.privacy.release import Unproven

__all__ = ["DpDynsPaper"]

WHY_NOT = (
    "the noise is scaled by the largest gradient norm in the batch: if all gradients but one record's are zero, there "
    "is noise with that record and none without it, so delta is 1"
)


@dataclass(frozen=True)
class DpDynsPaper(DpSgd):
    """DP-dyns as printed; its claim does not hold."""

    decay_shape: str = "linear"  # how the noise falls over the rounds: linear, staircase, exponential or cyclic
    noise_decay: float = ENDS_AT  # where the noise multiplier ends, relative to where it starts
    noised: str = "step"  # where the noise is added: step (to every gradient sum) or upload (once to the update)

    private: ClassVar[bool] = False
    units: ClassVar[tuple[str, ...]] = ("record",)
    channels: ClassVar[tuple[str, ...]] = ("direct",)
    algorithms: ClassVar[tuple[str, ...]] = ("fedavg", "fedsgd", "fedavgm", "fedopt", "fedprox")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_decay(self.decay_shape, noise_decay=self.noise_decay)
        check.one_of(NOISED, noised=self.noised)

    def require(self, plan: Plan) -> None:
        require_plain(plan)

    def factor(self, plan: Plan, round: int) -> float:
        """Return sigma_t over the initial sigma in this round."""
        return decayed(self.decay_shape, self.noise_decay, round / plan.rounds)

    def sigma(self, plan: Plan, round: int) -> float:
        """Return sigma_t, the noise multiplier of this round."""
        return sigma(plan, lambda t: self.factor(plan, t), self.noised) * self.factor(plan, round)

    def why_not(self) -> str:
        """Return why the claim does not hold."""
        return self.reason() + (OF_UPLOADS if self.noised == "upload" else "")

    def reason(self) -> str:
        """Return why the claim does not hold, wherever the noise is added."""
        return WHY_NOT

    def releases(self, plan: Plan, round: int = 0, state: State | None = None) -> tuple[Release, ...]:
        if self.noised == "upload":
            return upload(self.why_not())
        return clipped_steps.releases(plan, Unproven(self.why_not(), Gaussian(1.0)), 1.0, self.batch_sampling)

    def measured(self, weights: Tensor, batch: Batch, model: Model, seeds: list[int]) -> Measured:
        """Return the sums of clipped gradients, with S as their measured sensitivity."""
        sums, norms = sums_and_norms(weights, batch, model, seeds, self.clip)
        return Measured(sums, 1.0, spread=of_clients(norms, batch.sizes, lambda part: part.amax(dim=0)))

    def train(self, state: State, site: Site) -> tuple[Message, Own]:
        """Send the update of DP-SGD whose noise is scaled by the measured sensitivity."""
        level, largest = self.sigma(site.plan, state.round), Largest()

        def let_out(sums: Bounded) -> Rows:
            spread = sums.spread if isinstance(sums, Measured) else sums.value.new_ones(len(sums.value), 1)
            if self.noised == "upload":
                largest.saw(spread)
                return sums.value
            return site.out["gradient"](sums, multiplier=level * spread)

        rows, mine = clipped_steps.steps(
            state,
            site,
            lambda weights, batch, seeds, groups: self.measured(weights, batch, site.model, seeds),
            let_out,
            self.batch_sampling,
        )
        if self.noised == "upload":
            rows = largest.noisy(rows, level, state, site)
        return Message({"update": rows}, clipped_steps.weights(site, rows)), site.kept(mine)

    def claim(self, plan: Plan) -> Claim:
        return Claim(plan.epsilon, plan.delta, "Wei and Liu (2021)", self.why_not())

    def noise(self, state: State, plan: Plan) -> float | None:
        return None  # it depends on the batch
