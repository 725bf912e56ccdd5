"""PrivateDL as far as we could read it.  Han, Li, Ouyang, Liu, Wang, Wu, Chen (2021), "Accurate differentially private
deep learning on the edge", IEEE TPDS 32(9); unit record, viewer server; the claim does not hold.

Nothing is clipped: the sensitivity is estimated from samples by the PauTa criterion, which treats everything beyond
three standard deviations as an outlier. We did not have the text. The abstract and the authors' public description
(github.com/LINC-BIT/PrivateDL, which holds no code) confirm that nothing is clipped, that the sensitivity follows from
the standard deviation of a random sample of the gradients, and that the noise is added to the local gradient that a
client sends to the server. The criterion is named by Xue et al. (Section II). Not confirmed: whether values of single
components or norms are sampled, whether their mean is added, how many are sampled, and how epsilon composes.

Our reading: at every step the norms of the batch's gradients have mean a and standard deviation s, S = a + 3s is taken
as the sensitivity of their sum, and the sum gets N(0, (sigma S)^2), with sigma calibrated as if this were a Gaussian of
multiplier sigma. A client there sends one gradient a round; with several local steps `noised` says whether every step
is noisy or the update alone (_measured.py). The other parts, large batches and the choice of critical data, are not
reproduced.

No sound form exists: an estimate from the data does not bound other data, and without clipping there is no bound at
all; with clipping and noise for the clip bound, it is DP-SGD. It is unsound for two reasons: one record can have a
gradient far beyond S (a batch of n others of equal norm makes S only 3/sqrt(n) of it), and S itself is private."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from sordino.contract import local_sgd
from sordino.contract.augment import augment
from sordino.contract.method import Claim, Method, Own, Plan, Release, Site
from sordino.core import check
from sordino.core.message import Message
from sordino.core.types import Batch, Rows, State
from sordino.methods._measured import (
    NOISED,
    OF_UPLOADS,
    Largest,
    of_clients,
    require_plain,
    sigma,
    sums_and_norms,
    upload,
)
from sordino.privacy.mechanisms.gaussian import Gaussian
from sordino.privacy.release import Unproven

__all__ = ["PrivateDlPaper"]

WHY_NOT = (
    "three standard deviations of the gradient norms are not a bound on the sensitivity: a single outlier can change "
    "the sum of a batch by many times that, and the scale of the noise, computed from the same batch, reveals it"
)


@dataclass(frozen=True)
class PrivateDlPaper(Method):
    """PrivateDL as far as we could read it; its claim does not hold."""

    noised: str = "step"  # where the noise is added: step (to every gradient sum) or upload (once to the update)

    private: ClassVar[bool] = False
    algorithms: ClassVar[tuple[str, ...]] = ("fedavg", "fedsgd", "fedavgm", "fedopt", "fedprox")

    def __post_init__(self) -> None:
        check.one_of(NOISED, noised=self.noised)

    def require(self, plan: Plan) -> None:
        require_plain(plan)

    def _why_not(self) -> str:
        return WHY_NOT + (OF_UPLOADS if self.noised == "upload" else "")

    def releases(self, plan: Plan, round: int = 0, state: State | None = None) -> tuple[Release, ...]:
        if self.noised == "upload":
            return upload(self._why_not())
        times = max(plan.local.count(n) for n in plan.sizes)
        noise = Unproven(self._why_not(), Gaussian(1.0))
        return (Release("gradient", noise, "record", times=times, key="train/noise #"),)

    def claim(self, plan: Plan) -> Claim:
        return Claim(plan.epsilon, plan.delta, "Han et al. (2021)", self._why_not())

    def train(self, state: State, site: Site) -> tuple[Message, Own]:
        """Send the update of SGD with unclipped gradients and noise scaled by S."""
        scale, plan, rng = sigma(site.plan, noised=self.noised), site.plan, site.rng
        largest = Largest()

        def gradient(weights: Tensor, batch: Batch, number: int) -> Rows:
            seen, _ = augment(batch, plan.local.augment, 1, rng.at("augment", number))
            seeds = rng.at("model", number).integers()
            sums, norms = sums_and_norms(weights, seen, site.model, seeds, None)
            spread = of_clients(norms, batch.sizes, three_sigma)
            if self.noised == "upload":
                largest.saw(spread)
            else:
                sums = site.out["gradient"](sums, multiplier=scale * spread)
            return sums / torch.tensor(batch.sizes).to(sums)[:, None].clamp_min(1)

        update, mine = local_sgd.sgd(state, site, gradient)
        if self.noised == "upload":
            update = largest.noisy(update, scale, state, site)
        return Message({"update": update}), site.kept(mine)


def three_sigma(values: Tensor) -> Tensor:
    """Return the threshold [parts] beyond which the PauTa criterion calls a value [records, parts] an outlier."""
    return values.mean(dim=0) + 3 * values.std(dim=0, correction=0)
