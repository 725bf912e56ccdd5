"""The privacy ledger of a user: budgets, the charges of all jobs, and what is left.

A job first writes its plan: the total (epsilon_j, delta_j) is charged, before any work, to everyone in its data. The
plan is refused if, for anyone in the data, a budget does not cover the earlier charges together with this one. Then
every round is an entry, which is on disk before anything is computed. An interrupted round stays charged. In research
mode its re-run draws the same random numbers and is the same release, so it is not charged again; in secure mode the
noise is fresh, and it is. Releases outside the rounds (an evaluation on private data, a trial, an audit) are charged
in the same way as plans, by `Ledger.charge`.

Hashes in a file beside the ledger tell who is in which data (ledger/units.py, docs/decisions/0011). Without hashes, or
if they cannot be compared, data are considered the same if they have the same name.
"""

from __future__ import annotations

import json
import math
import secrets
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sordino.core import check
from sordino.core.errors import BudgetError, RunError, SpecError
from sordino.core.rounding import small_up, up
from sordino.ledger import home, overlap
from sordino.ledger.account import Account, Ints, blob
from sordino.ledger.chain import WAIT, Chain, Entry
from sordino.ledger.charges import Budget, Charge, ChargeView, Filter, charge_of, pay, total
from sordino.ledger.labels import UNNAMED, apart_by_name, is_name, look_alikes
from sordino.ledger.overlap import Overlap
from sordino.ledger.units import Units, UnitStore
from sordino.privacy import trust
from sordino.privacy.written import to_json

__all__ = ["CHARGED", "RELATIONS", "UNITS", "Budget", "Charge", "ChargeView", "Ledger", "charge_of"]

CHARGED = ("plan", "evaluation", "trial", "audit")  # kinds of entries that count against a budget
UNITS, RELATIONS = ("record", "client", "user"), ("add/remove", "replace")
_CHARGED = f"kind <> 'round' AND kind IN ({', '.join('?' * len(CHARGED))})"  # uses the index without rounds


class Ledger:
    """A ledger file, with the file of units beside it."""

    def __init__(self, path: str | Path, mode: str = "create", wait: float = WAIT) -> None:
        """Open a ledger.

        Args:
            path: The ledger file.
            mode: "create" (create the file if it does not exist), "write" (the file must exist) or "read".
            wait: Seconds to wait for other writers.
        """
        path = Path(path)
        if mode == "create" and path.absolute() == home.registry():
            home.made(path)
        self.chain = Chain(path, mode, wait)
        self._mode, self._units = mode, home.units_beside(path)
        self._store: UnitStore | None = None

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def path(self) -> Path:
        """The ledger file."""
        return self.chain.path

    def store(self, make: bool = False) -> UnitStore | None:
        """Return the file of units beside the ledger, or None if there is none and `make` is False."""
        if self._store is None and (make or self._units.is_file()):
            self._store = UnitStore(self._units, "read" if self._mode == "read" else "create")
        return self._store

    def close(self) -> None:
        """Close the ledger and its file of units."""
        self.chain.close()
        if self._store is not None:
            self._store.close()

    # --- budgets

    def set_budget(self, budget: Budget, data: str = "") -> Entry:
        """Set the budget of these data or, without `data`, of all data without a budget of their own.

        It replaces earlier budgets, and must not be less than what is already spent.
        """
        check.positive(epsilon=budget.epsilon)
        budget.filter()  # raises an error for a delta that the theory cannot use
        view = budget.view or ChargeView("", "", "")
        with self.chain.writing():
            for name in [data] if data else [d for d in self.data() if self._own_budget(d) is None]:
                try:
                    self._spent(budget, name)
                except BudgetError as error:
                    raise BudgetError(
                        f"more than this budget has already been spent on data {name}: {error}"
                    ) from error
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
        """Return the budget that holds for these data: their own, else the general one."""
        return self._own_budget(data) or self._own_budget("")

    def _own_budget(self, data: str) -> Budget | None:
        entries = list(self.chain.select("data = ? AND kind = 'budget'", [data]))
        if not entries:
            return None
        last = entries[-1]
        view = ChargeView(last.unit, last.relation, last.viewer) if last.unit else None
        return Budget(last.epsilon or 0.0, last.delta or 0.0, last.details()["theory"], view)

    def budgets(self, data: str, units: Units | None = None) -> list[Budget]:
        """Return all budgets that hold for someone in these data, including those of data that overlap with them."""
        labels = dict.fromkeys([data, *self.overlap(data, units).shared()])
        return [b for b in dict.fromkeys(self.budget(label) for label in labels) if b is not None]

    def data(self) -> list[str]:
        """Return the names of all data with charges."""
        return list(dict.fromkeys(e.data for e in self.chain.select(_CHARGED, CHARGED)))

    def charges(self, data: str) -> list[Entry]:
        """Return all charges under this name."""
        return list(self.chain.select(f"data = ? AND {_CHARGED}", [data, *CHARGED]))

    def left(self, data: str) -> dict[str, float] | None:
        """Return what the budget has left for the unit that was charged most, or None without a budget.

        The quantities are those of the budget's theory.
        """
        budget = self.budget(data)
        return None if budget is None else self._spent(budget, data).left()

    def check(
        self, data: str, asked: Charge, owners: Iterable[int] | None = None, units: Units | None = None
    ) -> Overlap:
        """Raise an error if a budget does not cover this charge; nothing is written.

        Args:
            data: Name of the data.
            asked: The charge.
            owners: Numbers of the clients to charge; None: all of them.
            units: Everyone in the data; without it, data are compared by name.

        Returns:
            The earlier charges to anyone in the data.
        """
        earlier = self.overlap(data, units)
        wanted = None if owners is None else list(owners)
        known = {label: self.budget(label) for label in dict.fromkeys([data, *earlier.shared()])}
        try:
            for history in earlier.histories(wanted):
                held = dict.fromkeys(known[label] for label in [data, *(e.data for e in history)])
                for budget in held:
                    if budget is not None:
                        self._paid(budget, earlier, history, asked)
        except BudgetError as error:
            refusal = BudgetError(" ".join([str(error), *look_alikes(earlier, units)]))
            refusal.public = "a budget in the ledger does not cover it; its owner was told why"
            raise refusal from error
        return earlier

    def _spent(self, budget: Budget, data: str) -> Filter:
        """Return the filter of the unit that was charged most, after all charges so far, or raise an error."""
        after = [self._paid(budget, each, h, None) for each in self._subjects(data) for h in each.histories()]
        return min(after, key=lambda f: math.fsum(f.left().values()), default=budget.filter())

    def _paid(self, budget: Budget, earlier: Overlap, history: list[Entry], asked: Charge | None) -> Filter:
        view = budget.view or (charge_of(earlier.entries[0]).view if earlier.entries else asked.view if asked else None)
        filter = budget.filter()
        for entry in history:
            filter = pay(filter, charge_of(entry), view, budget, f"{self.path}: job {entry.job or entry.kind}")
        if asked is not None:
            on = f"on data {earlier.data}" if earlier.data else "on data without a name"
            filter = pay(filter, asked, view, budget, f"{self.path}: a new job {on}")
        return filter

    # --- who is in which data

    def overlap(self, data: str, units: Units | None = None) -> Overlap:
        """Return the earlier charges to anyone in these data."""
        count = 1 if units is None else units.count
        everyone = np.ones(count, np.bool_)
        apart = apart_by_name(data, self.chain.select("kind <> 'round' AND kind = 'distinct'"))
        store = None if units is None else self.store()
        members = {} if store is None else store.members()
        entries, masks, seen = [], [], {}
        for entry in self.chain.select(_CHARGED, CHARGED):
            same, mask = bool(data) and entry.data == data, None
            if apart(entry.data):
                continue
            if units is not None:
                old, parts = entry.details().get("fingerprint"), members.get(entry.job, ())
                if old is not None and units.fingerprint is not None:
                    mask = everyone if units.fingerprint() == old else None
                elif parts and store is not None:
                    key = (*parts, entry.unit == units.unit)
                    if key not in seen:
                        seen[key] = overlap.known(units, parts, store, entry.unit == units.unit)
                    mask = seen[key]
            if mask is None and same:
                mask = everyone
            if mask is not None and mask.any():
                entries.append(entry)
                masks.append(mask)
        return Overlap(data, count, tuple(entries), tuple(masks))

    def _subjects(self, data: str) -> Iterator[Overlap]:
        """Yield, for each set of units that was charged under this name, all their charges under any name."""
        store = self.store()
        members = {} if store is None else store.members()
        for parts, unit in dict.fromkeys((members.get(e.job, ()), e.unit) for e in self.charges(data)):
            units = store.units(parts, unit) if parts and store is not None else None
            yield self.overlap(data, units)

    def declare_distinct(self, name: str, other: str) -> Entry:
        """Declare that data of these two names are about different people, whose rows coincide by chance."""
        if name == other:
            raise SpecError(f"{name} was given twice; name two different data.")
        if not {name, other} & set(self.data()):
            raise SpecError(f"{self.path} has no data named {name} or {other}. `sordino ledger show` lists them.")
        with self.chain.writing():
            return self.chain.append(kind="distinct", what={"names": sorted([name, other])})

    # --- charges

    def charge(
        self,
        kind: str,
        data: str,
        asked: Charge,
        what: dict[str, Any] | None = None,
        job: str = "",
        owners: Sequence[int] | Ints | None = None,
        units: Units | None = None,
    ) -> Entry:
        """Charge a release (or a plan) to the data, or raise an error if a budget does not cover it.

        The charge is on disk when this returns; make the release only then.

        Args:
            kind: One of CHARGED.
            data: Name of the data; "" if they have none.
            asked: The charge.
            what: Further details for the entry.
            job: Id of the job.
            owners: Numbers of the clients to charge; None: all of them.
            units: Everyone in the data; without it, data are compared by name.
        """
        check.one_of(CHARGED, kind=kind)
        with self.chain.writing():
            return self._charge(kind, data, asked, what or {}, job, owners, units)[0]

    def _charge(
        self,
        kind: str,
        data: str,
        asked: Charge,
        what: dict[str, Any],
        job: str,
        owners: Sequence[int] | Ints | None,
        units: Units | None,
    ) -> tuple[Entry, tuple[str, ...]]:
        if math.isnan(asked.epsilon) or asked.epsilon < 0 or not 0 <= asked.delta < 1:
            raise SpecError(f"epsilon {asked.epsilon!r} at delta {asked.delta!r} cannot be charged.")
        trust.viewer(asked.cost.viewer)
        earlier = self.check(data, asked, owners, units)
        notes: tuple[str, ...] = ()
        if units is not None:
            job = job or secrets.token_hex(8)
            notes = (*units.notes, *look_alikes(earlier, units), *self._imported(earlier))
            store = self.store(make=True)
            if store is not None:
                store.add(job, units)
        entry = self.chain.append(
            kind=kind,
            job=job,
            data=data or self._unnamed(earlier),
            owners=None if owners is None else blob(owners),
            what=what,
            event=json.dumps(to_json(asked.cost.event)),
            unit=asked.cost.unit,
            relation=asked.cost.relation,
            viewer=asked.cost.viewer,
            epsilon=float(asked.epsilon),
            delta=float(asked.delta),
        )
        return entry, notes

    def _unnamed(self, earlier: Overlap) -> str:
        """Return a label for data without a name: that of the unnamed data they overlap with most, else a new one."""
        near = {label: n for label, (n, _) in earlier.shared().items() if label.startswith(UNNAMED)}
        if near:
            return max(near, key=lambda label: near[label])
        return f"{UNNAMED}{1 + sum(d.startswith(UNNAMED) for d in self.data())})"

    def _imported(self, earlier: Overlap) -> Iterator[str]:
        """Yield a message for the owner about imported charges that count only for exactly the same data."""
        met = {e.id for e in earlier.entries}
        other = [e for e in self.chain.select(_CHARGED, CHARGED) if "fingerprint" in e.details() and e.id not in met]
        if other:
            epsilon = up(total(charge_of(e).epsilon for e in other))
            yield (
                f"{len(other)} imported charges of an earlier version (epsilon {epsilon} in all) are on data that can "
                "only be compared by their exact content; these data differ, so they are not counted here."
            )

    def note(self, what: dict[str, Any], data: str = "", job: str = "") -> Entry:
        """Append an entry that charges nothing."""
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
        units: Units | None = None,
        **what: Any,
    ) -> Account:
        """Return the account of a job.

        The first time, the whole plan is charged, or an error is raised if a budget does not cover it. Later, the job
        continues where it stopped.

        Args:
            job: Id of the job.
            data: Name of the data; "" if they have none.
            plan: The charge of the whole plan.
            rounds: Number of rounds that the plan pays for.
            participations: Largest number of rounds in which one client may take part.
            repeatable: Whether a round that is run again makes the same release, as in research mode.
            caps: Largest number of participations of each client [clients], by personal budgets.
            units: Everyone in the data; without it, data are compared by name.
            **what: Further details for the entry of the plan.
        """
        notes: tuple[str, ...] = ()
        with self.chain.writing():
            entry = next(self.chain.select("job = ? AND kind = 'plan'", [job]), None)
            if entry is None:
                more = what | {"rounds": rounds, "participations": participations}
                entry, notes = self._charge("plan", data, plan, more, job, None, units)
        details = entry.details()
        same = (details.get("rounds"), details.get("participations")) == (rounds, participations)
        if not same or entry.data != (data or entry.data):
            raise RunError(f"{self.path}: job {job} was planned with other data or rounds; it cannot be continued.")
        return Account(self.chain, job, entry.data, rounds, participations, repeatable, caps, notes)

    # --- sums

    def totals(self, data: str) -> list[dict[str, Any]]:
        """Return plain sums over all charges to the unit that was charged most, in every view where they are finite.

        If they are finite in no view, all views are returned. "without" lists jobs that give no guarantee in a view.
        """
        views = [charge_of(e).view for e in self.charges(data)]
        kinds = dict.fromkeys((v.unit, v.relation) for v in views)
        subjects = list(self._subjects(data))
        out: list[dict[str, Any]] = []
        for view in (ChargeView(*kind, viewer) for kind in kinds for viewer in dict.fromkeys(v.viewer for v in views)):
            epsilon, delta, unknown = 0.0, 0.0, set()
            for history in (h for each in subjects for h in each.histories()):
                charges = [(charge_of(e).at(view), e.job or e.kind) for e in history]
                unknown |= {name for c, name in charges if c is None or math.isinf(c.epsilon)}
                epsilon = max(epsilon, total(math.inf if c is None else c.epsilon for c, _ in charges))
                delta = max(delta, total(0.0 if c is None else c.delta for c, _ in charges))
            out.append({"view": view, "epsilon": epsilon, "delta": delta, "without": sorted(unknown)})
        finite = [t for t in out if math.isfinite(t["epsilon"])]
        return finite or out

    def together(self, job: str) -> str | None:
        """Return the joint guarantee of this job and earlier ones under the same name, as text.

        Return None for data without a name. The guarantee is a plain sum over the charges under that name, which is as
        public as the name itself; whose data really overlap is not public. Charges that give no guarantee in the view
        of this job are mentioned, not summed.
        """
        plan = next(self.chain.select("job = ? AND kind = 'plan'", [job]), None)
        if plan is None or not is_name(plan.data):
            return None
        view = charge_of(plan).view
        before = [e for e in self.charges(plan.data) if e.id <= plan.id]
        seen = [charge_of(e).at(view) for e in before]
        held = [c for c in seen if c is not None and math.isfinite(c.epsilon)]
        runs = sum(e.kind == "plan" for e in before)
        spent = f"epsilon {up(total(c.epsilon for c in held))}, delta {small_up(total(c.delta for c in held))}"
        text = f"run {runs} on these data ({plan.data}), together {spent} for {view}"
        beside = len(before) - len(held)
        return text + (f", not including charges that give no such guarantee: {beside}" if beside else "")
