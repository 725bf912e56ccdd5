"""Everything a run needs, checked and ready; and what it promises."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from sordino.channels.direct import Direct
from sordino.core.rng import Ints, Stream
from sordino.core.types import Clients, Model
from sordino.engines.base import Engine
from sordino.methods.base import Method, Plan
from sordino.privacy import account, personal, price
from sordino.privacy.accountants import pld
from sordino.privacy.events import Cost, Event
from sordino.privacy.guarantee import Guarantee
from sordino.privacy.samplers import Poisson, Sampler
from sordino.runs.held_out import HeldOut
from sordino.runs.spec import Spec


@dataclass(frozen=True)
class Job:
    spec: Spec
    method: Method
    plan: Plan
    model: Model
    clients: Clients
    brought: Clients  # all records as they came, before any was held out or left out: what a ledger knows the data by
    test: tuple[Tensor, Tensor] | None
    engine: Engine
    channel: Direct
    rng: Stream
    viewer: str
    notes: tuple[str, ...]  # what was changed or chosen on the way
    once: tuple[Event, ...] = ()  # released beside the rounds: private statistics, noisy evaluations
    test_clients: Ints | None = None  # whose part of the test data a record is
    held_out: HeldOut | None = None  # records of clients that are evaluated on, with noise
    budgets: personal.Budgets | None = None  # of the clients, where they have their own
    caps: Ints | None = None  # [clients]: in how many rounds each may take part for its own budget

    def guarantee(self, viewer: str, rounds: int, participations: int, rough: bool = False) -> Guarantee:
        """What so many rounds cost; `rough` is quicker and still an upper bound."""
        costs, plan, spec = self.method.costs(self.plan), self.plan, self.spec
        cells = pld.ROUGH if rough else pld.FINE
        draw = seen_draw(plan, price.cost_to(viewer, costs))
        return price.guarantee(
            costs, viewer, draw, plan.population, rounds, participations, spec.delta, spec.mode, cells, self.once
        )

    @property
    def viewers(self) -> tuple[str, ...]:
        """Against whom a guarantee is reported."""
        return tuple(dict.fromkeys((*price.VIEWERS, self.viewer)))

    def promise(self) -> Guarantee:
        """What the whole plan costs the viewer the budget is meant against."""
        return self.guarantee(self.viewer, self.plan.rounds, self.plan.participations)

    def whole(self) -> Cost:
        """The whole plan as one event, against the viewer of the budget."""
        plan = self.plan
        cost = price.cost_to(self.viewer, self.method.costs(plan))
        found = price.total(
            cost, self.viewer, seen_draw(plan, cost), plan.population, plan.rounds, plan.participations, self.once
        )
        event = found[0] if len(found) == 1 else min(found, key=lambda e: account.epsilon(e, self.spec.delta))
        return Cost(cost.unit, cost.relation, self.viewer, event)


def seen_draw(plan: Plan, cost: Cost) -> Sampler:
    """The draw as it amplifies, given who may be late: see methods/stragglers.py."""
    if plan.stragglers.late and cost.draw == "changed":
        return Poisson(
            1.0
        )  # a client whose data change may be late in both worlds, at odds that differ: none is claimed
    return plan.sampler
