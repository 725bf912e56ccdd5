"""One ledger for all jobs on the same data: what was promised, who has paid for which round, what is left.

A job first writes its plan: the whole (epsilon_j, delta_j) is charged to the budget of the data, if one was set, before
any work. Then every round is an entry, on disk before anything is computed. An interrupted round stays charged. In
research mode its re-run draws the same numbers and is the same release, so it is not charged again; in secure mode the
noise is fresh and it is. Releases outside the rounds (an evaluation on private data, a trial, an audit) are charged
the same way as plans: `Ledger.charge`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from sordino.core import check
from sordino.core.errors import BudgetError, RunError, SordinoError, SpecError
from sordino.privacy import filters, trust
from sordino.privacy.algebra import grouped
from sordino.privacy.events import Approximate, Cost, Event, NonPrivate, from_json, to_json
from sordino.runs.chain import WAIT, Chain, Entry
from sordino.runs.jobs import Account, Ints, blob, ids

CHARGED = ("plan", "evaluation", "trial", "audit")  # the kinds that a budget pays for
UNITS, RELATIONS = ("record", "client"), ("add/remove", "replace")


@dataclass(frozen=True)
class View:
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
    def view(self) -> View:
        return View(self.cost.unit, self.cost.relation, self.cost.viewer)

    def at(self, view: View) -> Charge | None:
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
    epsilon: float
    delta: float
    theory: str
    view: View | None  # None: that of the first charge

    def filter(self) -> filters.PlanFilter | filters.RdpFilter | filters.GdpFilter:
        return filters.make(self.theory, self.epsilon, self.delta)


def _sight(viewer: str) -> int:
    """The public and other clients see the models, the server sees more, with colluders more still."""
    found = trust.viewer(viewer)
    return 1 + found.colluders if found.kind == "server" else 0


@lru_cache(maxsize=4096)
def _event(text: str) -> Event:
    return from_json(json.loads(text))


def charge_of(entry: Entry) -> Charge:
    event = _event(entry.event)
    epsilon = math.inf if entry.epsilon is None else entry.epsilon
    return Charge(Cost(entry.unit, entry.relation, entry.viewer, event), epsilon, entry.delta or 0.0)


class Ledger:
    def __init__(self, path: Path, mode: str = "create", wait: float = WAIT) -> None:
        """mode: create (made if it is not there), write (must be there) or read."""
        self.chain = Chain(path, mode, wait)

    @property
    def path(self) -> Path:
        return self.chain.path

    def close(self) -> None:
        self.chain.close()

    # --- budgets

    def set_budget(self, budget: Budget, data: str = "") -> Entry:
        """From now on this is what may be spent on these data (without `data`: on each of those that have no other).

        The last one wins. It must not be less than what is spent already.
        """
        check.positive(epsilon=budget.epsilon)
        budget.filter()  # refuses a delta that its theory cannot use
        view = budget.view or View("", "", "")
        with self.chain.writing():
            for one in [data] if data else [d for d in self.data() if self._own_budget(d) is None]:
                try:
                    self._fitting(budget, one, None)
                except BudgetError as error:
                    raise BudgetError(f"more than this budget is spent on data {one[:12]} already: {error}") from error
            return self.chain.append(
                kind="budget",
                data=data,
                what={"theory": budget.theory},
                epsilon=float(budget.epsilon),
                delta=float(budget.delta),
                unit=view.unit,
                relation=view.relation,
                viewer=view.viewer,
            )

    def budget(self, data: str) -> Budget | None:
        """The one that holds for these data."""
        return self._own_budget(data) or self._own_budget("")

    def _own_budget(self, data: str) -> Budget | None:
        found = list(self.chain.select("data = ? AND kind = 'budget'", [data]))
        if not found:
            return None
        last = found[-1]
        view = View(last.unit, last.relation, last.viewer) if last.unit else None
        return Budget(last.epsilon or 0.0, last.delta or 0.0, last.details()["theory"], view)

    def data(self) -> list[str]:
        """The fingerprints of all data that anything was charged to."""
        marks = ", ".join("?" * len(CHARGED))
        return list(dict.fromkeys(e.data for e in self.chain.select(f"kind IN ({marks})", CHARGED)))

    def charges(self, data: str) -> list[Entry]:
        marks = ", ".join("?" * len(CHARGED))
        return list(self.chain.select(f"data = ? AND kind IN ({marks})", [data, *CHARGED]))

    def left(self, data: str) -> dict[str, float] | None:
        """What the budget has left for the owner who has paid most, in the terms of its theory; None without one."""
        budget = self.budget(data)
        return None if budget is None else self._fitting(budget, data, None).left()

    def check(self, data: str, asked: Charge, owners: Iterable[int] | None = None) -> None:
        """Refuse what the budget of the data cannot pay; nothing is written."""
        budget = self.budget(data)
        if budget is not None:
            self._fitting(budget, data, asked, owners)

    def _fitting(
        self, budget: Budget, data: str, asked: Charge | None, owners: Iterable[int] | None = None
    ) -> filters.PlanFilter | filters.RdpFilter | filters.GdpFilter:
        """The filter of the owner who has paid most, after all charges so far and what is asked; or a refusal."""
        entries = self.charges(data)
        view = budget.view or (charge_of(entries[0]).view if entries else asked.view if asked else None)
        after = []
        for history in _histories(entries, owners):
            filter = budget.filter()
            for entry in history:
                filter = _pay(filter, charge_of(entry), view, budget, f"{self.path}: job {entry.job or entry.kind}")
            if asked is not None:
                filter = _pay(filter, asked, view, budget, f"{self.path}: a new job on data {data[:12]}")
            after.append(filter)
        return min(after, key=lambda f: math.fsum(f.left().values()))

    # --- charges

    def charge(
        self,
        kind: str,
        data: str,
        asked: Charge,
        what: dict[str, Any] | None = None,
        job: str = "",
        owners: Sequence[int] | Ints | None = None,
    ) -> Entry:
        """Charge a release (or a plan) to the data, durably, or refuse it; then make the release, not before."""
        check.one_of(CHARGED, kind=kind)
        with self.chain.writing():
            return self._charge(kind, data, asked, what or {}, job, owners)

    def _charge(
        self, kind: str, data: str, asked: Charge, what: dict[str, Any], job: str, owners: Sequence[int] | Ints | None
    ) -> Entry:
        if math.isnan(asked.epsilon) or asked.epsilon < 0 or not 0 <= asked.delta < 1:
            raise SpecError(f"epsilon {asked.epsilon!r} at delta {asked.delta!r} cannot be charged.")
        trust.viewer(asked.cost.viewer)
        self.check(data, asked, owners)
        return self.chain.append(
            kind=kind,
            job=job,
            data=data,
            owners=None if owners is None else blob(owners),
            what=what,
            event=json.dumps(to_json(asked.cost.event)),
            unit=asked.cost.unit,
            relation=asked.cost.relation,
            viewer=asked.cost.viewer,
            epsilon=float(asked.epsilon),
            delta=float(asked.delta),
        )

    def note(self, what: dict[str, Any], data: str = "", job: str = "") -> Entry:
        with self.chain.writing():
            return self.chain.append(kind="note", data=data, job=job, what=what)

    def open_job(
        self,
        job: str,
        data: str,
        plan: Charge,
        rounds: int,
        participations: int,
        repeatable: bool,
        caps: Ints | None = None,
        **what: Any,
    ) -> Account:
        """The pages of a job. The first time its whole plan is charged, or refused; later it goes on where it was."""
        with self.chain.writing():
            found = next(self.chain.select("job = ? AND kind = 'plan'", [job]), None)
            if found is None:
                more = what | {"rounds": rounds, "participations": participations}
                found = self._charge("plan", data, plan, more, job, None)
        kept = found.details()
        if (found.data, kept["rounds"], kept["participations"]) != (data, rounds, participations):
            raise RunError(f"{self.path}: job {job} was planned with other data or rounds; it cannot go on.")
        return Account(self.chain, job, data, rounds, participations, repeatable, caps)

    def totals(self, data: str) -> list[dict[str, Any]]:
        """Plain sums over all charges, for every view in which they mean something; the owner who paid most."""
        entries = self.charges(data)
        views = [charge_of(e).view for e in entries]
        kinds = dict.fromkeys((v.unit, v.relation) for v in views)
        out: list[dict[str, Any]] = []
        for view in (View(*kind, viewer) for kind in kinds for viewer in dict.fromkeys(v.viewer for v in views)):
            epsilon, delta, unknown = 0.0, 0.0, set()
            for history in _histories(entries, None):
                found = [(charge_of(e).at(view), e.job or e.kind) for e in history]
                unknown |= {name for c, name in found if c is None or math.isinf(c.epsilon)}
                epsilon = max(epsilon, _sum(math.inf if c is None else c.epsilon for c, _ in found))
                delta = max(delta, _sum(0.0 if c is None else c.delta for c, _ in found))
            out.append({"view": view, "epsilon": epsilon, "delta": delta, "without": sorted(unknown)})
        finite = [t for t in out if math.isfinite(t["epsilon"])]
        return finite or out


def _pay(filter: Any, charge: Charge, view: View | None, budget: Budget, who: str) -> Any:
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


def _histories(entries: list[Entry], owners: Iterable[int] | None) -> list[list[Entry]]:
    """What distinct owners have paid for: one list for each set of charges that one of them (of all of them) shares."""
    named = {i: set(ids(e.owners).tolist()) for i, e in enumerate(entries) if e.owners is not None}
    everyone = frozenset(i for i in range(len(entries)) if i not in named)
    who = set().union(*named.values()) if owners is None else {int(o) for o in owners}
    found = {everyone | frozenset(i for i, s in named.items() if o in s) for o in who} if named else set()
    if owners is None or not found:
        found.add(everyone)
    return [[entries[i] for i in sorted(one)] for one in sorted(found, key=sorted)]


def _sum(values: Iterable[float]) -> float:
    """Rounded up."""
    terms = list(values)
    total = math.fsum(terms)
    if math.isinf(total):
        return total
    return math.nextafter(total, math.inf) if math.fsum([*terms, -total]) > 0 else total
