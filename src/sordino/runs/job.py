"""A job: everything that a run needs, checked and ready, with the guarantee that it promises."""

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
from sordino.data.records import RecordFormat
from sordino.federations.base import Federation
from sordino.measures.held_out import Held
from sordino.measures.row_moments import RowNoise
from sordino.measures.settings import Evaluation
from sordino.privacy import personal, price, tightest, trust
from sordino.privacy.accountants import pld
from sordino.privacy.events import Composed, Cost, Event
from sordino.privacy.guarantee import Guarantee
from sordino.privacy.release import Release
from sordino.privacy.samplers import Poisson, Sampler
from sordino.runs.initial_weights import InitialWeights
from sordino.runs.planted import Planted
from sordino.spec.spec import Spec
from sordino.tasks.own_metric import OwnMetric
from sordino.tasks.task import CLASSIFICATION

Costs = tuple[Cost, ...]  # the costs of one round, one per viewer


@dataclass(frozen=True)
class Owner:
    """What the owner of the data provided; only the owner's ledger uses it."""

    brought: Clients  # all records as provided, before any was held out or left out
    raw: Raw | None = None  # the rows as provided, before any encoding; None: those of `brought`
    benchmark: str | None = None  # for public data: the shipped name or the path, its only identity in a ledger
    notes: tuple[str, ...] = ()  # how many records were left out or changed; the owner is told before the run starts
    remote: str | None = None  # of clients that hold their data themselves: the name of the data in the server's ledger
    digests: tuple[str, ...] = ()  # of users and private attributes; a resumed run must share them


@dataclass(frozen=True)
class Job:
    """A run that is ready to start."""

    spec: Spec
    method: Method
    plan: Plan
    model: Model
    test: tuple[Tensor, Tensor] | None
    owner: Owner  # how the owner's ledger identifies the data; the server's code never reads it
    federation: Federation  # runs the clients and holds their data
    device: torch.device
    rng: Stream
    viewer: str
    notes: tuple[str, ...]  # what was changed or chosen while preparing the run
    once: tuple[Event, ...] = ()  # released outside the rounds, from the same data: private statistics
    apart: tuple[Event, ...] = ()  # released from records that no round touches: noisy evaluations
    task: str = CLASSIFICATION  # what the model is trained for: see tasks/task.py
    own_metric: OwnMetric | None = None  # the caller's own metric, on public test records
    test_clients: Ints | None = None  # [records]: the client that each test record belongs to
    held_out: Held | None = None  # held-out records of clients, evaluated with noise
    budgets: personal.Budgets | None = None  # the clients' personal budgets, if they have any
    caps: Ints | None = None  # [clients]: the rounds in which each may take part within its own budget
    evaluation: Evaluation = field(default_factory=Evaluation)  # which records, how often, how much noise
    rows: RowNoise | None = None  # the noise of the statistics by which rows are centred and scaled, if they are
    public: tuple[str, ...] = ()  # what the guarantee treats as public, in words
    public_data: bool = False  # whether the records are already public, as in a shipped benchmark
    form: RecordFormat | None = None  # of the records, for whoever gives the model others
    planted: Planted | None = None  # canaries among the records, if the run is audited
    initial: InitialWeights | None = None  # the file that the model started from, if it did

    def guarantee(
        self, viewer: str, rounds: int, participations: int, rough: bool = False, evaluated: bool = True
    ) -> Guarantee:
        """Return the guarantee after a number of rounds.

        If the method may stop early, depending on what it released, and has no cost for the run as a whole, all rounds
        of the plan are charged from the first round on: when it stopped is an answer too. A viewer who does not see the
        draw is told the most that one client can pay, not what some client did pay, which is a function of the draw.

        Args:
            viewer: against whom the guarantee holds.
            rounds: the number of rounds.
            participations: the largest number of these rounds in which one client took part.
            rough: compute faster; the result is still an upper bound.
            evaluated: False leaves out an evaluation apart from the rounds that has not taken place yet.
        """
        plan = self.plan
        cost, events, rounds = self.total(viewer, rounds, participations, evaluated)
        cells = pld.ROUGH if rough else pld.FINE
        guarantee = price.of(events, cost, viewer, rounds, plan.spendable(self.spec.delta), self.mode, cells)
        delta = self.spec.delta
        proven = self.mode == "secure" and math.isfinite(guarantee.epsilon) and self.doubt(viewer) is None
        return replace(guarantee, delta=delta, channel=plan.channel.name, public=self.public, exact=proven)

    def total(
        self, viewer: str, rounds: int, participations: int, evaluated: bool = True
    ) -> tuple[Cost, tuple[Event, ...], int]:
        """Return the total cost of a number of rounds, events that each bound it, and the number of rounds charged.

        The arguments are those of `guarantee`, and so is the rule which rounds and participations are charged.
        """
        plan = self.plan
        if rounds and self.may_end and self.whole_costs is None:
            rounds, participations = plan.rounds, plan.participations
        elif not trust.viewer(viewer).sees_draw:
            participations = min(rounds, plan.participations)
        apart = self.apart if evaluated else ()
        known = self._by_round
        return *totals(self.method, plan, viewer, rounds, participations, self.outside, apart, known=known), rounds

    @property
    def outside(self) -> tuple[Event, ...]:
        """What is released outside the rounds, from the same data: statistics, and what initial weights hold."""
        return self.once if self.initial is None else (*self.once, *self.initial.events())

    @property
    def charged_as_a_whole(self) -> bool:
        """Whether the whole run is charged from its first round on."""
        return self.may_end or self.whole_costs is not None

    def doubt(self, viewer: str) -> str | None:
        """Return why the proof against a viewer does not cover floating point rounding; None if it does."""
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
        """Whether the method itself may end the run early."""
        return getattr(self.method.over, "__func__", None) is not Method.over

    def planned(self, rounds: int) -> int:
        """Return in how many of the first `rounds` rounds one client may have taken part.

        In how many it really did is a secret of the draw.
        """
        return min(rounds, self.plan.participations)

    @property
    def statistics(self) -> bool:
        """Whether private statistics are released before the rounds."""
        return self.spec.standardise or self.rows is not None

    @property
    def mode(self) -> str:
        """The source of the noise: research (a seed) or secure (the operating system)."""
        return self.spec.mode or "secure"

    @property
    def viewers(self) -> tuple[str, ...]:
        """The viewers against whom a guarantee is reported."""
        return tuple(dict.fromkeys((*price.VIEWERS, self.viewer)))

    @property
    def by_round(self) -> tuple[Costs, ...]:
        """The costs of every round of the plan; empty if only the run as a whole has a price."""
        return self._by_round

    @cached_property
    def _by_round(self) -> tuple[Costs, ...]:
        """The costs of every round of the plan, cached because they are needed after each round."""
        return () if self.whole_costs is not None else by_round(self.method, self.plan, self.plan.rounds)

    @cached_property
    def whole_costs(self) -> Costs | None:
        """The costs of the run as a whole if noise is chosen during the run or correlated across rounds, else None."""
        return pricing.run_costs(self.method, self.plan)

    @property
    def alike(self) -> bool:
        """Whether every round costs the same."""
        return all(costs == self._by_round[0] for costs in self._by_round)

    @cached_property
    def promise(self) -> Guarantee:
        """The guarantee of the whole plan against the viewer of the budget."""
        return self.guarantee(self.viewer, self.plan.rounds, self.plan.participations)

    def plan_cost(self) -> Cost:
        """Return the cost of the whole plan as one event, against the viewer of the budget."""
        plan = self.plan
        rounds, most = plan.rounds, plan.participations
        known = self._by_round
        cost, events = totals(self.method, plan, self.viewer, rounds, most, self.outside, self.apart, known=known)
        event = events[0] if len(events) == 1 else min(events, key=lambda e: tightest.epsilon(e, self.spec.delta))
        return Cost(cost.unit, cost.relation, self.viewer, event)


def by_round(method: Method, plan: Plan, rounds: int) -> tuple[Costs, ...]:
    """Return the costs of each of the first `rounds` rounds."""
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
    """Return the total cost of a number of rounds against a viewer.

    Args:
        method: the method.
        plan: the plan of the run.
        viewer: against whom the cost is computed.
        rounds: the number of rounds.
        participations: the largest number of these rounds in which one client takes part.
        once: events on the data of the rounds, released outside the rounds (see `price.beside`).
        apart: events on data that no round touches (see `price.beside`).
        known: the costs of every round if they are already computed; empty if only the run as a whole has a price.

    Returns:
        A cost that states the unit and the neighbouring relation, and events each of which bounds the whole total.
    """
    whole_costs = None if known else pricing.run_costs(method, plan)
    if whole_costs is not None:  # however few rounds there were: the spending is chosen during the run
        cost = price.cost_to(viewer, whole_costs)
        return cost, (price.beside(cost.event if rounds else Composed(()), once, apart, (cost,)),)
    cost = price.cost_to(viewer, known[0] if known else pricing.costs(method, plan))
    if known is None or len(known) < rounds:
        known = by_round(method, plan, rounds)
    costs = price.by_run(lambda c: price.cost_to(viewer, c), known[:rounds])
    draw = seen_draw(plan, cost)
    return cost, price.total(costs, viewer, draw, plan.population, rounds, participations, once, apart)


def seen_draw(plan: Plan, cost: Cost) -> Sampler:
    """Return the sampler whose amplification may be claimed, given that clients may be late: contract/presence.py."""
    if plan.stragglers.late and cost.draw == "changed":
        return Poisson(
            1.0
        )  # a client whose data change may be late in both worlds, at different odds: no amplification is claimed
    return plan.sampler
