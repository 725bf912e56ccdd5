"""NbAFL as printed.  Wei et al. (2020), "Federated learning with differential privacy: algorithms and performance
analysis", arXiv:1911.00222, Algorithm 1; unit record, viewer server; the claim does not hold.

A client clips its trained WEIGHTS, w / max(1, |w| / C), and adds N(0, sigma_U^2), sigma_U = c L (2C/m) / eps with
c = sqrt(2 ln(1.25 / delta)), where m is the size of the smallest client and L its number of uploads. The server
averages by the clients' records and adds N(0, sigma_D^2) if T > L sqrt(N) (claims.nbafl_*). The proximal term of the
local loss is `--algorithm fedprox`. In the paper C is the median of the unclipped norms, which would be one more
release of private data; here it is given. L is the largest number of participations.

If K of N clients take part in a round, `scheduling` selects sigma_D:

    all     the one above, whoever takes part
    k-of-n  that of the paper's K-client random scheduling (claims.nbafl_scheduled_std), where K is the expected cohort
            of a round. This reading is uncertain: the formula is from notes that we could not check against the text;
            at K = N it is the one above, and its condition is that its square root exists

As printed, C bounds the L2 norm, and noise of that size on each of d weights is sqrt(d) times as long, whatever C is:
more than present models tolerate at the epsilons used in later comparisons. With `clip_by = coordinate` C bounds every
weight by itself; a client then moves what is seen by 2C sqrt(d).

The claim is for L uploads together. Comparisons that state an epsilon per round (Li et al. 2025) take L = T = 1: `scope
= round`. Our accounting counts every round in both cases.

Not sound: 2C/m would be the sensitivity of a mean over m records; weights that are trained and then clipped move by up
to 2C, m times as far, when one record is replaced. What does hold, and is charged: the whole client moves what the
server sees by at most 2C, so every upload is a Gaussian of multiplier sigma_U / (2C) for a replaced client (with
`clip_by = coordinate`: 2C sqrt(d))."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch

from sordino.contract import local_sgd
from sordino.contract.claim import SCOPES
from sordino.contract.method import Claim, Method, Own, Plan, Release, Site
from sordino.core import check
from sordino.core.message import Message
from sordino.core.types import Rows, State
from sordino.methods import _claims as claims
from sordino.methods.nbafl import on_the_mean
from sordino.privacy.clip import Bounded, clip_rows
from sordino.privacy.mechanisms.gaussian import Gaussian

__all__ = ["NbAFLPaper"]

CLIPS = ("norm", "coordinate")
SCHEDULING = ("all", "k-of-n")
WHY_NOT = (
    "weights are clipped to C after training, so replacing one record can turn them from C to -C: they move by 2C, not "
    "by the 2C/m of a mean over m records"
)


def clip_weights(rows: Rows, clip: float, by: str) -> Rows:
    """Clip each row to C, in the L2 norm or by coordinate; rows that are not finite become zero."""
    if by == "norm":
        return clip_rows(rows, clip).value
    return torch.where(torch.isfinite(rows).all(dim=1, keepdim=True), rows, 0.0).clamp(-clip, clip)


@dataclass(frozen=True)
class NbAFLPaper(Method):
    """NbAFL as printed; its claim does not hold."""

    clip: float = 20.0  # C: bound on the L2 norm of a client's weights
    clip_by: str = "norm"  # norm: C bounds the L2 norm of the weights; coordinate: every weight by itself
    scope: str = "total"  # whether the claimed epsilon is for all uploads of a client (total) or for one (round)
    scheduling: str = "all"  # clients assumed for the noise in the mean: all, or k-of-n (an uncertain reading)

    private: ClassVar[bool] = False
    units: ClassVar[tuple[str, ...]] = ("client",)  # the accounted unit; the claim is for a record
    algorithms: ClassVar[tuple[str, ...]] = ("fedavg", "fedsgd", "fedavgm", "fedopt", "fedprox")
    by_records: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check.positive(clip=self.clip)
        check.one_of(CLIPS, clip_by=self.clip_by)
        check.one_of(SCOPES, scope=self.scope)
        check.one_of(SCHEDULING, scheduling=self.scheduling)

    def counted(self, plan: Plan) -> tuple[int, int]:
        """Return T and L, the rounds and the uploads of a client that the claimed epsilon covers."""
        return (plan.rounds, plan.participations) if self.scope == "total" else (1, 1)

    def reach(self, plan: Plan) -> float:
        """Return the largest L2 distance between the clipped weights of two clients."""
        return 2 * self.clip * (math.sqrt(plan.dim) if self.clip_by == "coordinate" else 1.0)

    def uplink(self, plan: Plan, round: int) -> float:
        """Return the standard deviation of the noise in one client's weights."""
        return claims.nbafl_uplink_std(
            self.clip, plan.smallest_client, plan.epsilon, plan.delta, exposures=self.counted(plan)[1]
        )

    def downlink_std(self, plan: Plan) -> float:
        """Return the standard deviation of the noise in the mean that the server sends back."""
        rounds, exposures = self.counted(plan)
        meant = (self.clip, plan.smallest_client, plan.epsilon, plan.delta, rounds, exposures, plan.population)
        if self.scheduling == "k-of-n":
            return claims.nbafl_scheduled_std(*meant, drawn=plan.expected_cohort)
        return claims.nbafl_downlink_std(*meant)

    def claim(self, plan: Plan) -> Claim:
        return Claim(plan.epsilon, plan.delta, "Wei et al. (2020), Theorem 1", WHY_NOT, self.scope)

    def releases(self, plan: Plan, round: int = 0, state: State | None = None) -> tuple[Release, ...]:
        """Declare each client's noisy weights, and the noise in the mean if there is any."""
        bound = self.reach(plan) / 2  # L2 bound of the clipped weights
        noise = Gaussian(self.uplink(plan, round) / bound)
        up = Release("update", noise, "client", bound, relation="replace", terms=1, key="release/uplink")
        down = self.downlink_std(plan)
        return (up, on_the_mean(down / bound, bound, plan, round)) if down else (up,)

    def linear(self, plan: Plan) -> bool:
        return True

    def train(self, state: State, site: Site) -> tuple[Message, Own]:
        """Send the noisy clipped weights less the public ones received, weighted by the client's records."""
        update, mine = local_sgd.sgd(state, site)
        clipped = clip_weights(state.params + update, self.clip, self.clip_by)
        noisy = site.out["update"](Bounded(clipped, self.reach(site.plan) / 2))
        weight = torch.tensor(site.data.sizes, dtype=update.dtype, device=update.device) / site.plan.mean_client
        return Message({"update": noisy - state.params}, weight), site.kept(mine)

    def noise(self, state: State, plan: Plan) -> float | None:
        return self.uplink(plan, state.round)
