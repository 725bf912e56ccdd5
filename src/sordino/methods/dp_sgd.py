"""DP-SGD inside every client.

Abadi et al. (2016), arXiv:1607.00133, Algorithm 1, run locally at each step.

Protects a record from the server (and so from everyone else): at every local step each record's gradient is clipped,
and each client adds the full noise to its own sum. Records of different clients are disjoint, so a client pays only for
its own rounds. Differs from the paper: batches are Poisson samples (or of fixed size, accounted as such), and the sum
is divided by its expected size.

With `unit = user` the unit is a user instead of a record: users are drawn, the mean gradient of a user's records is
clipped as a whole, and a user whose records lie in m clients pays m times. Everything else that a client computes comes
from its noisy gradients; if the algorithm needs the client's loss, that is released with the same noise multiplier and
charged too.

With a secure sum (one local step of plain SGD per round) the server sees only the sum over all clients: each sends its
clipped sum with its share of the noise, so that the full noise is present once instead of once per client, and the
server takes the step that the clients would have taken.

Other methods are variants with another `recipe`: another clip rule, another noise, or schedules for either.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from sordino.contract import clipped_steps
from sordino.contract import local_sgd as training
from sordino.contract.method import Method, Own, Plan, Release, Site
from sordino.core import check
from sordino.core.errors import SpecError
from sordino.core.message import Message
from sordino.core.types import Batch, Model, State
from sordino.privacy.clip import Bounded
from sordino.privacy.mechanisms.gaussian import Gaussian
from sordino.privacy.release import GRADIENTS, Mechanism

__all__ = ["DpSgd"]


Schedule = Callable[[int, int], float]  # (round, rounds) -> factor


def constant(round: int, rounds: int) -> float:
    """Return 1: the schedule without any change over the rounds."""
    return 1.0


class ClipRule(Protocol):
    """A rule that clips every record's gradient; `factor` scales the clip bound of the round."""

    def bound(self, layers: int, factor: float) -> float:
        """Return the sensitivity of the clipped sum to one record, for a model with this number of layers."""

    def sums(
        self, weights: Tensor, batch: Batch, model: Model, factor: float, seeds: list[int], groups: clipped_steps.Groups
    ) -> Bounded:
        """Return each client's sum of clipped gradients."""


@dataclass(frozen=True)
class Whole:
    """Clips the gradient as one vector, in the L2 norm."""

    clip: float

    def bound(self, layers: int, factor: float) -> float:
        return self.clip * factor

    def sums(
        self, weights: Tensor, batch: Batch, model: Model, factor: float, seeds: list[int], groups: clipped_steps.Groups
    ) -> Bounded:
        bound = self.clip * factor
        return Bounded(model.gradients.sums(weights, batch, bound, seeds=seeds, groups=groups), bound)


@dataclass(frozen=True)
class ByLayer:
    """Clips each layer's part of the gradient separately; the bound grows with the root of the number of layers."""

    clip: float

    def bound(self, layers: int, factor: float) -> float:
        return math.hypot(*[self.clip * factor] * layers)

    def sums(
        self, weights: Tensor, batch: Batch, model: Model, factor: float, seeds: list[int], groups: clipped_steps.Groups
    ) -> Bounded:
        bounds = [self.clip * factor] * len(model.layout.layers())
        sums = model.gradients.sums(weights, batch, None, seeds=seeds, groups=groups, layers=bounds)
        return Bounded(sums, math.hypot(*bounds))


@dataclass(frozen=True)
class Recipe:
    """The components of a variant of DP-SGD."""

    clip: ClipRule
    noise: Callable[[float], Mechanism] = Gaussian  # noise multiplier -> mechanism
    noise_schedule: Schedule = constant  # factor of the noise multiplier
    clip_schedule: Schedule = constant  # factor of the clip


@dataclass(frozen=True)
class DpSgd(Method):
    """DP-SGD at every client; see the module docstring."""

    clip: float = 1.0  # C: bound on the L2 norm of one record's (or user's) gradient
    batch_sampling: str = "poisson"  # poisson, or fixed: batches of a fixed size, accounted under replace

    units: ClassVar[tuple[str, ...]] = ("record", "user")
    channels: ClassVar[tuple[str, ...]] = ("direct", "secure-sum")
    noisy_steps: ClassVar[bool] = True
    by_records: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check.positive(clip=self.clip)
        check.one_of(clipped_steps.SAMPLINGS, batch_sampling=self.batch_sampling)

    def recipe(self) -> Recipe:
        """Return the components of the method; variants override this."""
        return Recipe(Whole(self.clip))

    def _level(self, plan: Plan, round: int) -> float:
        return plan.z * self.recipe().noise_schedule(round, plan.rounds)

    def _bound(self, plan: Plan, round: int) -> float:
        recipe = self.recipe()
        return recipe.clip.bound(plan.layers, recipe.clip_schedule(round, plan.rounds))

    def releases(self, plan: Plan, round: int = 0, state: State | None = None) -> tuple[Release, ...]:
        """Declare the noisy gradient sums of the local steps and, if the algorithm needs them, the noisy losses."""
        recipe = self.recipe()
        noise, terms = recipe.noise(self._level(plan, round)), GRADIENTS if isinstance(recipe.clip, Whole) else None
        releases = clipped_steps.releases(plan, noise, self._bound(plan, round), self.batch_sampling, terms=terms)
        return tuple(replace(r, additive=True) for r in releases) if self.linear(plan) else releases

    def linear(self, plan: Plan) -> bool:
        """Return whether clients send their noisy sums themselves, as they do with a secure sum."""
        return not plan.channel.shows_rows and self._why_not_linear(plan) is None

    def _why_not_linear(self, plan: Plan) -> str | None:
        least, algorithm = plan.local.count(plan.smallest_client), plan.algorithm
        keeps_state = algorithm.personal or algorithm.keeps(State(torch.zeros(1)), 1).shape[1]
        if least > 1 or plan.local.optimizer != "sgd" or algorithm.needs or keeps_state:
            return (
                "a secure sum hides the clients' noise in one another's only if each takes one step of plain SGD a "
                "round: use local_steps = 1, optimizer = sgd and fedavg, fedavgm or fedopt."
            )
        if not plan.shares_noise or plan.local.batch_rate is None or plan.clients_per_user > 1:
            return (
                "a secure sum needs every client in every round, and one batch_rate for all: use client_rate = 1, no "
                "dropout, late answers or joining, no max_participations or budgets, and batch_rate, not batch_size. "
                "If clients may be missing, say how many of how many: min_cohort and allowed_dropouts."
            )
        if plan.local.batch_rate * plan.smallest_client < 1:  # the divisor, at least 1, would exceed its part
            return (
                f"a secure sum needs clients that expect at least one record in a batch: the smallest has "
                f"{plan.smallest_client}, so use batch_rate >= {1 / plan.smallest_client:.3g}."
            )
        if self.batch_sampling == "fixed" and plan.local.batch_rate < 1:
            return "a secure sum needs batch_sampling = poisson."
        return None

    def require(self, plan: Plan) -> None:
        """Refuse plans with which a secure sum cannot share the noise."""
        if not plan.channel.shows_rows and (why := self._why_not_linear(plan)) is not None:
            raise SpecError(why)

    def train(self, state: State, site: Site) -> tuple[Message, Own]:
        """Send updates from noisy local steps or, with a secure sum, the noisy gradient sums themselves."""
        recipe, model = self.recipe(), site.model
        factor = recipe.clip_schedule(state.round, site.plan.rounds)

        def clipped(weights: Tensor, batch: Batch, seeds: list[int], groups: clipped_steps.Groups) -> Bounded:
            return recipe.clip.sums(weights, batch, model, factor, seeds, groups)

        if self.linear(site.plan):
            sums = clipped_steps.clipped_sums(state.params, site, clipped, self.batch_sampling)
            return Message({"gradient": site.out["gradient"](sums)}), site.own
        rows, mine = clipped_steps.steps(state, site, clipped, site.out["gradient"], self.batch_sampling)
        return Message({"update": rows}, clipped_steps.weights(site, rows)), site.kept(mine)

    def merge(self, state: State, seen: Message, plan: Plan) -> State:
        """Pass the mean update to the algorithm; if gradient sums arrived, compute the update from them first."""
        if "gradient" not in seen.fields:
            return super().merge(state, seen, plan)
        answers = plan.expected_answers(state.round)
        records = plan.local.expected_batch(plan.mean_client) * answers
        update = training.one_step(state, seen.total("gradient")["gradient"] / records, plan)
        return plan.algorithm.update(state, update[0], plan.server(answers / plan.population))

    def noise(self, state: State, plan: Plan) -> float | None:
        """Return the noise deviation of one message, for plain SGD steps of the mean client."""
        local = plan.now(state)
        steps, batch = local.count(plan.smallest_client), local.expected_batch(plan.mean_client)
        multipliers = plan.multipliers or (plan.z,)
        z = self._level(plan, state.round) / plan.z * sum(multipliers) / len(multipliers) * float(plan.split**-0.5)
        return local.learning_rate * math.sqrt(steps) * z * self._bound(plan, state.round) / batch
