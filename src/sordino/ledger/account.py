"""One job's pages of the ledger: its rounds and who took part in them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sordino.core.errors import BudgetError, RunError
from sordino.ledger.chain import Chain
from sordino.privacy.events import Cost
from sordino.privacy.written import to_json

Ints = NDArray[np.int64]


def blob(owners: Sequence[int] | Ints) -> bytes:
    return np.asarray(owners, dtype="<i8").tobytes()


def ids(owners: bytes) -> Ints:
    return np.frombuffer(owners, dtype="<i8").astype(np.int64)


class Account:
    """One job: at most `rounds` charges, at most `participations` (or its own cap) for one client."""

    def __init__(
        self,
        chain: Chain,
        job: str,
        data: str,
        rounds: int,
        participations: int,
        repeatable: bool,
        caps: Ints | None = None,  # [clients]: by personal budgets
        owner_notes: tuple[str, ...] = (),  # what the owner of the data must be told, and nobody else
    ) -> None:
        self._chain, self.job, self.data = chain, job, data
        self.rounds, self.participations, self.repeatable, self.caps = rounds, participations, repeatable, caps
        self.owner_notes = owner_notes
        self.paid: list[tuple[int, int]] = []  # the round and its row, in the order of payment
        self._first: dict[int, int] = {}  # the round -> the row in which it was paid for first
        self._clients: Ints = np.empty(0, np.int64)  # those who took part, sorted
        self._counts: Ints = np.empty(0, np.int64)
        self._catch_up()

    def _catch_up(self) -> None:
        last = self.paid[-1][1] if self.paid else 0
        cohorts = []
        for entry in self._chain.select("job = ? AND kind = 'round' AND id > ?", [self.job, last]):
            self._note(int(entry.details()["round"]), entry.id)
            cohorts.append(ids(entry.owners or b""))
        if cohorts:
            self._add(np.concatenate(cohorts))

    def _note(self, number: int, row: int) -> None:
        self.paid.append((number, row))
        self._first.setdefault(number, row)

    def _find(self, clients: Ints) -> tuple[Ints, NDArray[np.bool_]]:
        """Where each stands among those who took part, and whether it does."""
        at = np.searchsorted(self._clients, clients)
        if not len(self._clients):
            return at, np.zeros(len(clients), np.bool_)
        at = np.minimum(at, len(self._clients) - 1)
        return at, self._clients[at] == clients

    def _add(self, clients: Ints) -> None:
        who, times = np.unique(clients, return_counts=True)
        at, known = self._find(who)
        self._counts[at[known]] += times[known]
        if not known.all():
            fresh = np.searchsorted(self._clients, who[~known])
            self._clients = np.insert(self._clients, fresh, who[~known])
            self._counts = np.insert(self._counts, fresh, times[~known])

    def counts(self, clients: Ints) -> Ints:
        """In how many rounds each of them has taken part."""
        at, known = self._find(clients)
        out = np.zeros(len(clients), np.int64)
        out[known] = self._counts[at[known]]
        return out

    def _caps(self, clients: Ints) -> Ints:
        if self.caps is None:
            return np.full(len(clients), self.participations, np.int64)
        return np.minimum(self.caps[clients], self.participations)

    @property
    def most(self) -> int:
        """Participations of the busiest client so far."""
        return int(self._counts.max(initial=0))

    @property
    def charged(self) -> int:
        """Rounds charged so far, interrupted ones included."""
        return len(self.paid)

    def free(self, cohort: Ints) -> Ints:
        """Those of a cohort who may still take part."""
        if self.caps is None and self.participations >= self.rounds:
            return cohort
        return cohort[self.counts(cohort) < self._caps(cohort)]

    def repeats(self, number: int) -> Ints | None:
        """The cohort of a research round that was paid for already, whose re-run is the same release."""
        row = self._first.get(number) if self.repeatable else None
        if row is None:
            return None
        return ids(next(self._chain.select("id = ?", [row])).owners or b"")

    def has_paid(self, number: int) -> bool:
        return number in self._first

    def last_cohort(self) -> Ints:
        """Of the round that was charged last."""
        return ids(next(self._chain.select("id = ?", [self.paid[-1][1]])).owners or b"") if self.paid else ids(b"")

    def spend(self, number: int, cohort: Ints, cost: Cost) -> None:
        """Charge a round to its cohort, durably, or refuse."""
        try:
            with self._chain.writing():
                self._catch_up()  # what other processes of this job have spent
                self._refuse(number, cohort)
                entry = self._chain.append(
                    kind="round",
                    job=self.job,
                    data=self.data,
                    owners=blob(cohort),
                    what={"round": number},
                    event=json.dumps(to_json(cost.event)),
                    unit=cost.unit,
                    relation=cost.relation,
                    viewer=cost.viewer,
                )
        except RunError as error:
            raise RunError(f"{str(error).rstrip('.')}; so round {number + 1} was not run.") from error
        self._note(number, entry.id)
        self._add(np.asarray(cohort, dtype=np.int64))

    def _refuse(self, number: int, cohort: Ints) -> None:
        if self.charged + 1 > self.rounds:
            raise BudgetError(
                f"round {number + 1} asks for one more charge; all {self.rounds} that the budget pays for are "
                "spent. Start a new run with more rounds (and more noise)."
            )
        who, times = np.unique(cohort, return_counts=True)
        over = who[self.counts(who) + times > self._caps(who)]
        if len(over):
            cap = int(self._caps(over[:1])[0])
            raise BudgetError(
                f"round {number + 1} asks client {int(over[0])} to take part once more; it has used all {cap} "
                "participations that the budget pays for."
            )

    def head(self) -> dict[str, Any]:
        """What a run folder keeps, so that a cut or replaced ledger is noticed."""
        entries, hash = self._chain.head()
        return {"job": self.job, "entries": entries, "head": hash}
