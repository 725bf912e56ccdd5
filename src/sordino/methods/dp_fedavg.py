"""DP-FedAvg: clip each client's update, add noise to the sum at the server.

McMahan et al. (2018), arXiv:1710.06963.

Protects a client from the public (anyone who sees the models); the server is trusted with the clipped updates. The
whole message is clipped, whatever the algorithm puts into it. Every client has the same weight, or `min(1, records /
weight_cap)`, never more than the clip allows; the sum is divided by the expected number of answers. With
`adaptive_clip` the bound follows a quantile of the update norms: Andrew, Thakkar, McMahan, Ramaswamy (2021),
arXiv:1905.03871, Algorithm 1 and Theorem 1. Its noisy count is part of the same Gaussian release, so the total noise
multiplier stays as calibrated.

With `unit = user` and users whose records lie in at most m clients, removing a user changes up to m messages, each by
up to 2C.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch

from sordino.contract import local_sgd
from sordino.contract.method import Method, Own, Plan, Release, Site
from sordino.core import check
from sordino.core.devices import sent
from sordino.core.errors import SpecError
from sordino.core.message import Message
from sordino.core.types import Rows, State
from sordino.core.vector import Layout
from sordino.privacy.clip import Bounded
from sordino.privacy.mechanisms.gaussian import Gaussian

__all__ = ["DpFedAvg"]


@dataclass(frozen=True)
class ClipState:
    """The server's state beside the model: the clip bound of the coming round."""

    clip: float


@dataclass(frozen=True)
class DpFedAvg(Method):
    """Federated averaging with clipped updates and noise at the server; see the module docstring."""

    clip: float = 1.0  # C: bound on the L2 norm of a client's update; the initial bound if it adapts
    adaptive_clip: bool = False  # let the bound follow a private quantile of the norms
    quantile: float = 0.5  # gamma: target fraction of updates that stay unclipped
    clip_lr: float = 0.2  # eta_C: the bound changes by a factor exp(-eta_C (fraction - gamma))
    count_noise: float = 0.0  # sigma_b: noise on the count; 0 means expected cohort / 20 (the paper's), at least z
    weight_cap: float = 0.0  # number of records at which a client's weight reaches 1; 0: all weights are equal

    viewer: ClassVar[str] = "public"
    units: ClassVar[tuple[str, ...]] = ("client", "user")

    def __post_init__(self) -> None:
        check.positive(clip=self.clip, clip_lr=self.clip_lr)
        check.below_one(quantile=self.quantile)
        check.non_negative(count_noise=self.count_noise, weight_cap=self.weight_cap)

    def releases(self, plan: Plan, round: int = 0, state: State | None = None) -> tuple[Release, ...]:
        """Declare the sum of updates, noised at the server, and a noisy count of unclipped ones if the clip adapts."""
        unit, bound = plan.unit or "client", self.clip if state is None else state.method.clip
        noise = Gaussian(self._update_noise(plan))
        update = Release("update", noise, unit, bound, where="server", terms=1, key="merge/update")
        if not self.adaptive_clip:
            return (update,)
        count = Gaussian(2 * self._count_noise(plan))  # for values of +-1/2
        return update, Release("within", count, unit, 0.5, where="server", terms=1, key="merge/count")

    def variables(self, state: State, layout: Layout, plan: Plan) -> ClipState:
        self._update_noise(plan)  # refuses a count that uses up the whole budget
        return ClipState(float(self.clip))

    def train(self, state: State, site: Site) -> tuple[Message, Own]:
        update, mine = local_sgd.sgd(state, site)
        return self.message(update, state, site), site.kept(mine)

    def message(self, update: Rows, state: State, site: Site) -> Message:
        """Return clipped, weighted updates and, if the clip adapts, +-1/2 for whether the norm was within it."""
        clipped = site.out["update"](update)
        if self.weight_cap:
            weights = sent(torch.tensor([min(1.0, n / self.weight_cap) for n in site.data.sizes]), update.device)
            clipped = clipped * weights[:, None]
        if not self.adaptive_clip:
            return Message({"update": clipped})
        within = (update.double().norm(dim=1, keepdim=True) <= state.method.clip).double()
        return Message({"update": clipped, "within": site.out["within"](Bounded(within - 0.5, 0.5))})

    def merge(self, state: State, seen: Message, plan: Plan) -> State:
        """Apply the noisy mean update and adapt the clip bound if requested."""
        answers = plan.expected_answers(state.round)
        after = plan.algorithm.update(state, seen["update"][0] / answers, plan.server(answers / plan.population))
        if not self.adaptive_clip:
            return after
        # geometric update of the bound by the noisy fraction of unclipped updates (Andrew et al., Section 2)
        share = 0.5 + float(seen["within"][0, 0]) / answers
        factor = math.exp(-self.clip_lr * (min(max(share, 0.0), 1.0) - self.quantile))
        return replace(after, method=ClipState(state.method.clip * factor))

    def noise(self, state: State, plan: Plan) -> float | None:
        """Return the server's noise as if every client had contributed an equal part of it."""
        answers = plan.expected_answers(state.round)
        return self._update_noise(plan) * float(state.method.clip) / math.sqrt(answers)

    def decided(self, state: State, plan: Plan) -> dict[str, Any] | None:
        return {"next_clip": float(state.method.clip)} if self.adaptive_clip else None

    def explain(self, rounds: list[dict[str, Any]]) -> list[str]:
        known = [r for r in rounds if r.get("clip") is not None]
        if not self.adaptive_clip or not known:
            return []
        first, last = known[0], known[-1]
        return [
            f"Updates were clipped at {first['clip']:.3g} in round {first['round']} and at {last['clip']:.3g} in round "
            f"{last['round']}: the bound follows the norm below which {100 * self.quantile:g} % of the updates stay, "
            f"by a noisy count of them, and was between {min(r['clip'] for r in known):.3g} and "
            f"{max(r['clip'] for r in known):.3g}."
        ]

    def _count_noise(self, plan: Plan) -> float:
        return self.count_noise or max(plan.expected_cohort / 20, plan.z)

    def _update_noise(self, plan: Plan) -> float:
        """Return the noise multiplier of the update: z_update^-2 = z^-2 - (2 sigma_b)^-2 (Andrew et al., Theorem 1)."""
        if not self.adaptive_clip:
            return plan.z
        left = plan.z**-2 - (2 * self._count_noise(plan)) ** -2
        if left <= 0:
            raise SpecError(
                f"count_noise {self._count_noise(plan):g} costs more than the whole noise multiplier {plan.z:.3g} "
                f"allows. Use count_noise above {plan.z / 2:.3g}."
            )
        return 1 / math.sqrt(left)
