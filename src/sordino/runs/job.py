"""Everything a run needs, checked and ready; and what it promises."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor

from sordino.contract import exact_noise, pricing
from sordino.contract.method import Method, Plan
from sordino.core.rng import Ints, Stream
from sordino.core.types import Clients, Model
from sordino.data.canonical import Raw
from sordino.federations.base import Federation
from sordino.privacy import personal, price, tightest, trust
from sordino.privacy.accountants import pld
from sordino.privacy.events import Composed, Cost, Event
from sordino.privacy.guarantee import Guarantee
from sordino.privacy.release import Release
from sordino.privacy.samplers import Poisson, Sampler
from sordino.runs.evaluation import Evaluation
from sordino.runs.held_out import Held
from sordino.runs.spec import Spec

Costs = tuple[Cost, ...]  # of one round, by viewer


@dataclass(frozen=True)
class Owner:
    """What the owner of the data brought, for the ledger of the owner alone."""

    brought: Clients  # all records as they came, before any was held out or left out
    raw: Raw | None = None  # the rows as they came, before any encoding; None: the records of `brought` are
    benchmark: str | None = None  # of public data: the shipped name or the path by which alone it counts in a ledger
    digests: tuple[str, ...] = ()  # of users and private attributes, which a resumed run must share


@dataclass(frozen=True)
class Job:
    spec: Spec
    method: Method
    plan: Plan
    model: Model
    test: tuple[Tensor, Tensor] | None
    owner: Owner  # what the owner's ledger knows the data by; no part of the server's code reads it
    federation: Federation  # who runs the clients, and owns their data
    device: torch.device
    rng: Stream
    viewer: str
    notes: tuple[str, ...]  # what was changed or chosen on the way
    once: tuple[Event, ...] = ()  # released beside the rounds, of the same data: private statistics
    apart: tuple[Event, ...] = ()  # released of records that no round touches: noisy evaluations on held-out ones
    test_clients: Ints | None = None  # whose part of the test data a record is
    held_out: Held | None = None  # records of clients that are evaluated on, with noise
    budgets: personal.Budgets | None = None  # of the clients, where they have their own
    caps: Ints | None = None  # [clients]: in how many rounds each may take part for its own budget
    evaluation: Evaluation = field(default_factory=Evaluation)  # on what, how often, with how much noise
    public: tuple[str, ...] = ()  # what was taken as public, in words
    public_data: bool = False  # whether the records are public already, as those of a shipped benchmark

    def guarantee(
        self, viewer: str, rounds: int, participations: int, rough: bool = False, evaluated: bool = True
    ) -> Guarantee:
        """What so many rounds cost; `rough` is quicker and still an upper bound. `evaluated` False leaves out an
        evaluation apart from the rounds that has not been made yet.

        A method that ends by what it released, with no cost of the whole run to keep to, pays for all rounds of the
        plan from the first on: when it stopped is an answer too. Who does not see the draw is told what one client can
        pay at most, not what some client did, which is a function of the draw.
        """
        plan = self.plan
        if rounds and self.may_end and self.whole_costs is None:
            rounds, participations = plan.rounds, plan.participations
        elif not trust.viewer(viewer).sees_draw:
            participations = min(rounds, plan.participations)
        apart = self.apart if evaluated else ()
        cost, events = totals(self.method, plan, viewer, rounds, participations, self.once, apart, known=self._by_round)
        cells = pld.ROUGH if rough else pld.FINE
        found = price.of(events, cost, viewer, rounds, plan.spendable(self.spec.delta), self.mode, cells)
        delta = self.spec.delta
        proven = self.mode == "secure" and math.isfinite(found.epsilon) and self.doubt(viewer) is None
        return replace(found, delta=delta, channel=plan.channel.name, public=self.public, exact=proven)

    def doubt(self, viewer: str) -> str | None:
        """Return why the rounding of floats is not covered by the proof against a viewer; None where it is."""
        costs = self._by_round[0] if self.whole_costs is None and self._by_round else ()
        server = price.cost_to("server", costs) if costs else None
        seen = price.cost_to(viewer, costs) if costs else None
        several = server is not None and seen is not None and seen.draw == "inside" and seen.event != server.event
        return exact_noise.doubt(self._declared, self.plan, several)

    @cached_property
    def _declared(self) -> tuple[Release, ...]:
        return pricing.declared(self.method, self.plan)

    @property
    def may_end(self) -> bool:
        """Whether the method has a say in when it ends."""
        return getattr(self.method.over, "__func__", None) is not Method.over

    def planned(self, rounds: int) -> int:
        """Return in how many of the first rounds one client may have been; in how many it was is the draw's secret."""
        return min(rounds, self.plan.participations)

    @property
    def mode(self) -> str:
        """Where the noise comes from: research (a seed) or secure (the operating system)."""
        return self.spec.mode or "secure"

    @property
    def viewers(self) -> tuple[str, ...]:
        """Against whom a guarantee is reported."""
        return tuple(dict.fromkeys((*price.VIEWERS, self.viewer)))

    @property
    def by_round(self) -> tuple[Costs, ...]:
        """What every round of the plan costs; nothing where the run has one price."""
        return self._by_round

    @cached_property
    def _by_round(self) -> tuple[Costs, ...]:
        """What every round of the plan costs: asked after each round, so kept."""
        return () if self.whole_costs is not None else by_round(self.method, self.plan, self.plan.rounds)

    @cached_property
    def whole_costs(self) -> Costs | None:
        """What the run costs as a whole, where noise is chosen on the way or correlated over the rounds."""
        return pricing.whole(self.method, self.plan)

    @property
    def alike(self) -> bool:
        """Whether every round costs the same."""
        return all(costs == self._by_round[0] for costs in self._by_round)

    @cached_property
    def promise(self) -> Guarantee:
        """What the whole plan costs the viewer the budget is meant against."""
        return self.guarantee(self.viewer, self.plan.rounds, self.plan.participations)

    def whole(self) -> Cost:
        """The whole plan as one event, against the viewer of the budget."""
        plan = self.plan
        rounds, most = plan.rounds, plan.participations
        cost, found = totals(self.method, plan, self.viewer, rounds, most, self.once, self.apart, known=self._by_round)
        event = found[0] if len(found) == 1 else min(found, key=lambda e: tightest.epsilon(e, self.spec.delta))
        return Cost(cost.unit, cost.relation, self.viewer, event)


def by_round(method: Method, plan: Plan, rounds: int) -> tuple[Costs, ...]:
    """What each of the first rounds costs."""
    return tuple(pricing.costs(method, plan, t) for t in range(rounds))


def totals(
    method: Method,
    plan: Plan,
    viewer: str,
    rounds: int,
    participations: int,
    once: Sequence[Event] = (),
    apart: Sequence[Event] = (),
    known: Sequence[Costs] | None = None,
) -> tuple[Cost, tuple[Event, ...]]:
    """What so many rounds cost a viewer: whose data in which relation, and events that each bound all of it. `once` and
    `apart` are released beside the rounds (price.beside). `known`: what every round costs, if asked already; it
    is empty where the run as a whole has one price."""
    whole = None if known else pricing.whole(method, plan)
    if whole is not None:  # however little has happened: what is spent on the way is chosen on the way
        cost = price.cost_to(viewer, whole)
        return cost, (price.beside(cost.event if rounds else Composed(()), once, apart, (cost,)),)
    cost = price.cost_to(viewer, known[0] if known else pricing.costs(method, plan))
    if known is None or len(known) < rounds:
        known = by_round(method, plan, rounds)
    costs = price.by_run(lambda c: price.cost_to(viewer, c), known[:rounds])
    draw = seen_draw(plan, cost)
    return cost, price.total(costs, viewer, draw, plan.population, rounds, participations, once, apart)


def seen_draw(plan: Plan, cost: Cost) -> Sampler:
    """The draw as it amplifies, given who may be late: see contract/presence.py."""
    if plan.stragglers.late and cost.draw == "changed":
        return Poisson(
            1.0
        )  # a client whose data change may be late in both worlds, at odds that differ: none is claimed
    return plan.sampler
