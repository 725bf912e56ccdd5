"""DP-FedAvg: clip each client's update, noise the sum at the server.  McMahan et al. (2018), arXiv:1710.06963.

Protects a client from the public (whoever sees the models); the server is trusted with the clipped updates.
What is clipped is the whole message, whatever the algorithm puts into it. Every client weighs the same, or
`min(1, records / weight_cap)`, never more than the clip allows; the sum is divided by the expected number of answers.
With `adaptive_clip` the bound follows a quantile of the update norms: Andrew, Thakkar, McMahan, Ramaswamy (2021),
arXiv:1905.03871, Algorithm 1 and Theorem 1. Its noisy count is part of the same Gaussian release, so the total noise
multiplier stays what was calibrated.

With `unit = user` and users whose records lie in m clients at most, removing a user changes up to m messages, each by
up to 2C."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch

from sordino.core import check
from sordino.core.errors import SpecError
from sordino.core.rng import RowStream, Stream
from sordino.core.types import Batch, Model, Rows, State, Vector
from sordino.core.vector import Layout
from sordino.methods import local
from sordino.methods.base import Method, Plan
from sordino.privacy.clip import Bounded, clip_rows
from sordino.privacy.events import Cost, NonPrivate
from sordino.privacy.events import Gaussian as GaussianEvent
from sordino.privacy.mechanisms.gaussian import Gaussian

__all__ = ["DpFedAvg"]


@dataclass(frozen=True)
class DpFedAvg(Method):
    clip: float = 1.0  # C: bound on the L2 norm of a client's update; where adaptive, the first one
    adaptive_clip: bool = False  # let the bound follow a private quantile of the norms
    quantile: float = 0.5  # gamma: the share of updates that should stay unclipped
    clip_lr: float = 0.2  # eta_C: the bound moves by a factor exp(-eta_C (share - gamma))
    count_noise: float = 0.0  # sigma_b: noise on the count; 0 means expected cohort / 20 (the paper's), at least z
    weight_cap: float = 0.0  # records at which a client's weight reaches 1; 0 weighs all clients alike

    viewer: ClassVar[str] = "public"
    units: ClassVar[tuple[str, ...]] = ("client", "user")

    def __post_init__(self) -> None:
        check.positive(clip=self.clip, clip_lr=self.clip_lr)
        check.below_one(quantile=self.quantile)
        check.non_negative(count_noise=self.count_noise, weight_cap=self.weight_cap)

    def costs(self, plan: Plan, round: int = 0) -> tuple[Cost, ...]:
        relation = plan.sampler.relation
        # removing a client moves the sum by C; replacing it, with a cohort of a fixed size, by 2C
        moves = 1 if relation == "add/remove" else 2
        seen = NonPrivate("the server receives the clipped updates and adds the noise itself")
        if plan.unit == "user":  # the messages of up to `copies` clients change
            event, draw = GaussianEvent(plan.z), "changed"
            shown = Cost("user", "add/remove", "public", event, draw=draw, copies=plan.clients_per_user)
            return Cost("user", "add/remove", "server", seen), shown
        return (
            Cost("client", relation, "server", seen),
            Cost("client", relation, "public", GaussianEvent(plan.z / moves)),
        )

    def begin(self, state: State, layout: Layout, plan: Plan) -> State:
        state = plan.algorithm.begin(state, layout)
        self._update_noise(plan)  # refuse a count that eats the whole budget before the first round
        return replace(state, extra=state.extra | {"clip": torch.tensor(float(self.clip), dtype=torch.float64)})

    def train(
        self, state: State, data: Batch, own: Rows, model: Model, plan: Plan, rng: RowStream
    ) -> tuple[Rows, Rows]:
        return local.sgd(state, data, own, model, plan, rng)

    def release(self, rows: Rows, sizes: tuple[int, ...], state: State, plan: Plan, rng: RowStream) -> Rows:
        """Clipped, weighted rows; where the clip adapts, a last column of +-1/2: was the norm within it?"""
        bound = float(state.extra["clip"])
        clipped = clip_rows(rows, bound).value
        if self.weight_cap:
            weights = torch.tensor([min(1.0, n / self.weight_cap) for n in sizes], device=rows.device)
            clipped = clipped * weights[:, None]
        if not self.adaptive_clip:
            return clipped
        within = (rows.double().norm(dim=1, keepdim=True) <= bound).to(rows.dtype)
        return torch.cat([clipped, within - 0.5], dim=1)

    def merge(self, state: State, rows: Rows, plan: Plan, rng: Stream) -> State:
        bound = float(state.extra["clip"])
        if plan.stragglers.late and self.adaptive_clip:  # a late row was clipped with an older bound
            rows = torch.cat([clip_rows(rows[:, :-1], bound).value, rows[:, -1:]], dim=1)
        total = rows.sum(dim=0, keepdim=True)
        update, counts = (total[:, :-1], total[:, -1:]) if self.adaptive_clip else (total, None)
        z = self._update_noise(plan)
        noisy = Gaussian(z).add(Bounded(update, bound), rng.at("update").rows([0]))[0]
        answers = plan.expected_answers(state.round)
        state = plan.algorithm.update(state, noisy / answers, plan.server(answers / plan.population))
        return state if counts is None else self._move_clip(state, counts[0], plan, rng.at("count"))

    def noise(self, state: State, plan: Plan) -> float | None:
        """The server's noise, as if every client had brought its part of it."""
        bound, answers = float(state.extra["clip"]), plan.expected_answers(state.round)
        return self._update_noise(plan) * bound / math.sqrt(answers)

    def _move_clip(self, state: State, counts: Vector, plan: Plan, rng: Stream) -> State:
        """Geometric update of the bound by the noisy share of unclipped updates (Andrew et al., Section 2)."""
        noise = rng.rows([0]).normal(1, like=counts.double())[0, 0]
        share = 0.5 + (float(counts.double()[0]) + self._count_noise(plan) * float(noise)) / plan.expected_answers(
            state.round
        )
        factor = math.exp(-self.clip_lr * (min(max(share, 0.0), 1.0) - self.quantile))
        return replace(state, extra=state.extra | {"clip": state.extra["clip"] * factor})

    def decided(self, state: State, plan: Plan) -> dict[str, Any] | None:
        return {"next_clip": float(state.extra["clip"])} if self.adaptive_clip else None

    def explain(self, rounds: list[dict[str, Any]]) -> list[str]:
        known = [r for r in rounds if r.get("clip") is not None]
        if not self.adaptive_clip or not known:
            return []
        first, last = known[0], known[-1]
        return [
            f"Updates were clipped at {first['clip']:.3g} in round {first['round']} and at {last['clip']:.3g} in round "
            f"{last['round']}: the bound follows the norm under which {100 * self.quantile:g} % of the updates stay, "
            f"by a noisy count of them, and was between {min(r['clip'] for r in known):.3g} and "
            f"{max(r['clip'] for r in known):.3g}."
        ]

    def _count_noise(self, plan: Plan) -> float:
        return self.count_noise or max(plan.expected_cohort / 20, plan.z)

    def _update_noise(self, plan: Plan) -> float:
        """The multiplier left for the update: z_update^-2 = z^-2 - (2 sigma_b)^-2 (Andrew et al., Theorem 1)."""
        if not self.adaptive_clip:
            return plan.z
        left = plan.z**-2 - (2 * self._count_noise(plan)) ** -2
        if left <= 0:
            raise SpecError(
                f"count_noise {self._count_noise(plan):g} costs more than the whole noise multiplier {plan.z:.3g} "
                f"allows. Use count_noise above {plan.z / 2:.3g}."
            )
        return 1 / math.sqrt(left)
