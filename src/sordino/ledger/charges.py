"""Charges for releases as the ledger records them, and budgets that limit them."""

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
    """The unit of privacy, the neighbouring relation and the viewer, without which an epsilon has no meaning."""

    unit: str
    relation: str
    viewer: str

    def __str__(self) -> str:
        return f"a {self.unit} ({self.relation}) against the {self.viewer}"


@dataclass(frozen=True)
class Charge:
    """The total privacy cost of a release, or of a whole plan of releases."""

    cost: Cost  # its event covers the whole release or plan
    epsilon: float
    delta: float

    @property
    def view(self) -> ChargeView:
        """The view in which the charge is stated."""
        return ChargeView(self.cost.unit, self.cost.relation, self.cost.viewer)

    def at(self, view: ChargeView) -> Charge | None:
        """Return the charge of the same release in another view, or None if it gives no guarantee there.

        A guarantee also holds against a viewer that sees less. An add/remove guarantee also covers replacement, as two
        changes (group privacy). Changing a record is a case of replacing its client or user.
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
        """Return the event that a filter of this theory counts."""
        if theory != "plans":
            return self.cost.event
        if math.isinf(self.epsilon):
            return NonPrivate("no guarantee")
        return Approximate(self.epsilon, self.delta)


@dataclass(frozen=True)
class Budget:
    """The limit on the total cost of all jobs on some data."""

    epsilon: float
    delta: float
    theory: str  # how charges add up, see privacy/filters.py
    view: ChargeView | None  # None: the view of the first charge

    def filter(self) -> Filter:
        """Return a new filter for this budget, before any charge."""
        return filters.make(self.theory, self.epsilon, self.delta)


def _sight(viewer: str) -> int:
    """Return a rank of how much a viewer sees.

    The public sees the released models; another client also sees whether it was sampled itself; the server sees every
    message, and more with every colluding client.
    """
    parsed = trust.viewer(viewer)
    return 2 + parsed.colluders if parsed.kind == "server" else int(parsed.kind == "client")


@lru_cache(maxsize=4096)
def _event(text: str) -> Event:
    return from_json(json.loads(text))


def charge_of(entry: Entry) -> Charge:
    """Return the charge that an entry records."""
    event = _event(entry.event)
    epsilon = math.inf if entry.epsilon is None else entry.epsilon
    return Charge(Cost(entry.unit, entry.relation, entry.viewer, event), epsilon, entry.delta or 0.0)


def pay(filter: Any, charge: Charge, view: ChargeView | None, budget: Budget, who: str) -> Any:
    """Return the filter after one more charge, or raise an error that says who asked for what and what would fit.

    Args:
        filter: The filter so far.
        charge: The charge to add.
        view: The view of the budget; None: that of the charge.
        budget: The budget, for the error message.
        who: Who asks, for the error message.
    """
    seen = charge if view is None else charge.at(view)
    words = f"epsilon {charge.epsilon:.6g} at delta {charge.delta:.3g} for {charge.view}"
    limit = f"the budget is epsilon {budget.epsilon:g}, delta {budget.delta:g} ({budget.theory}) for {view}"
    if seen is not None and seen is not charge:
        words += f", which is epsilon {seen.epsilon:.6g} at delta {seen.delta:.3g} in the budget's terms"
    if seen is None:
        raise BudgetError(f"{who} asks for {words}, which gives no guarantee in the budget's terms: {limit}.")
    try:
        return filter.spend(seen.event(budget.theory))
    except BudgetError as error:
        left = ", ".join(f"{k} {v:.6g}" for k, v in filter.left().items()) or "nothing"
        raise BudgetError(
            f"{who} asks for {words}; {limit}, of which this is left: {left}. "
            f"What would fit: {filter.room(charge.delta)}; or raise the budget (`sordino ledger budget`)."
        ) from error
    except SordinoError as error:
        raise BudgetError(f"{who} asks for {words}; {limit}: {error}") from error


def total(values: Iterable[float]) -> float:
    """Return the sum, rounded up."""
    terms = list(values)
    nearest = math.fsum(terms)
    if math.isinf(nearest):
        return nearest
    return math.nextafter(nearest, math.inf) if math.fsum([*terms, -nearest]) > 0 else nearest
