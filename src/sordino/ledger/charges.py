"""What a release costs in a ledger's terms, and what a budget allows."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from sordino.core.errors import BudgetError, SordinoError
from sordino.ledger.chain import Entry
from sordino.privacy import filters, trust
from sordino.privacy.algebra import grouped
from sordino.privacy.events import Approximate, Cost, Event, NonPrivate
from sordino.privacy.written import from_json

Filter = filters.PlanFilter | filters.RdpFilter | filters.GdpFilter


@dataclass(frozen=True)
class ChargeView:
    """Whose data, in which relation, against whom: an epsilon means nothing without it."""

    unit: str
    relation: str
    viewer: str

    def __str__(self) -> str:
        return f"a {self.unit} ({self.relation}) against the {self.viewer}"


@dataclass(frozen=True)
class Charge:
    """What a release, or a whole plan of them, costs in total."""

    cost: Cost  # its event is the whole
    epsilon: float
    delta: float

    @property
    def view(self) -> ChargeView:
        return ChargeView(self.cost.unit, self.cost.relation, self.cost.viewer)

    def at(self, view: ChargeView) -> Charge | None:
        """The same release as another view has it; None where nothing is promised there.

        A promise holds against whoever sees less. Whoever may be removed may be replaced at the price of two. A
        changed record is a client replaced.
        """
        here = self.view
        if _sight(view.viewer) > _sight(here.viewer):
            return None
        if (here.unit, here.relation) == (view.unit, view.relation):
            return self
        inner = here.unit in ("client", "user") and view.unit == "record"
        if not inner and (here.unit != view.unit or here.relation == "replace"):
            return None
        times = 2 if here.relation == "add/remove" else 1
        pair = Approximate(self.epsilon, self.delta).grouped(times) if math.isfinite(self.epsilon) else None
        epsilon, delta = (pair.epsilon, pair.delta) if isinstance(pair, Approximate) else (math.inf, self.delta)
        cost = Cost(view.unit, view.relation, view.viewer, grouped(self.cost.event, times))
        return Charge(cost, epsilon, delta)

    def event(self, theory: str) -> Event:
        """As a filter of that theory counts it."""
        if theory != "plans":
            return self.cost.event
        if math.isinf(self.epsilon):
            return NonPrivate("no guarantee")
        return Approximate(self.epsilon, self.delta)


@dataclass(frozen=True)
class Budget:
    """What all jobs on some data may cost together."""

    epsilon: float
    delta: float
    theory: str
    view: ChargeView | None  # None: that of the first charge

    def filter(self) -> Filter:
        return filters.make(self.theory, self.epsilon, self.delta)


def _sight(viewer: str) -> int:
    """Return how much a viewer sees: the public the models, another client also when it was not drawn itself, the
    server every message, and with colluders more still."""
    found = trust.viewer(viewer)
    return 2 + found.colluders if found.kind == "server" else int(found.kind == "client")


@lru_cache(maxsize=4096)
def _event(text: str) -> Event:
    return from_json(json.loads(text))


def charge_of(entry: Entry) -> Charge:
    """The charge that an entry holds."""
    event = _event(entry.event)
    epsilon = math.inf if entry.epsilon is None else entry.epsilon
    return Charge(Cost(entry.unit, entry.relation, entry.viewer, event), epsilon, entry.delta or 0.0)


def pay(filter: Any, charge: Charge, view: ChargeView | None, budget: Budget, who: str) -> Any:
    """The filter after one more charge, or a refusal that says who asked for what and what would fit."""
    seen = charge if view is None else charge.at(view)
    words = f"epsilon {charge.epsilon:.6g} at delta {charge.delta:.3g} for {charge.view}"
    limit = f"the budget is epsilon {budget.epsilon:g}, delta {budget.delta:g} ({budget.theory}) for {view}"
    if seen is not None and seen is not charge:
        words += f", there epsilon {seen.epsilon:.6g} at delta {seen.delta:.3g}"
    if seen is None:
        raise BudgetError(f"{who} asks for {words}, which promises nothing there: {limit}.")
    try:
        return filter.spend(seen.event(budget.theory))
    except BudgetError as error:
        left = ", ".join(f"{k} {v:.6g}" for k, v in filter.left().items()) or "nothing"
        raise BudgetError(
            f"{who} asks for {words}; {limit}, of which is left: {left}. "
            f"What would fit: {filter.room(charge.delta)}; or raise the budget (`sordino ledger budget`)."
        ) from error
    except SordinoError as error:
        raise BudgetError(f"{who} asks for {words}; {limit}: {error}") from error


def total(values: Iterable[float]) -> float:
    """Return the sum, rounded up."""
    terms = list(values)
    found = math.fsum(terms)
    if math.isinf(found):
        return found
    return math.nextafter(found, math.inf) if math.fsum([*terms, -found]) > 0 else found
