"""The part of the ledger that belongs to one job: its rounds and who took part in them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sordino.core.errors import BudgetError, RunError
from sordino.ledger.chain import Chain
from sordino.privacy.events import Cost
from sordino.privacy.written import to_json

Ints = NDArray[np.int64]


def blob(owners: Sequence[int] | Ints) -> bytes:
    """Encode client numbers as little-endian int64, as ledger entries hold them."""
    return np.asarray(owners, dtype="<i8").tobytes()


def ids(owners: bytes) -> Ints:
    """Decode client numbers written by `blob`."""
    return np.frombuffer(owners, dtype="<i8").astype(np.int64)


class Account:
    """The charges of one job: at most `rounds` in total, and at most `participations` (or its own cap) for one client.

    Args:
        chain: The chain of ledger entries.
        job: Id of the job.
        data: Name of the data in the ledger.
        rounds: Largest number of rounds that can be charged.
        participations: Largest number of rounds in which one client may take part.
        repeatable: Whether a round that is run again makes the same release, as in research mode.
        caps: Largest number of participations of each client [clients], by personal budgets.
        owner_notes: Messages for the owner of the data, and for nobody else.
    """

    def __init__(
        self,
        chain: Chain,
        job: str,
        data: str,
        rounds: int,
        participations: int,
        repeatable: bool,
        caps: Ints | None = None,
        owner_notes: tuple[str, ...] = (),
    ) -> None:
        self._chain, self.job, self.data = chain, job, data
        self.rounds, self.participations, self.repeatable, self.caps = rounds, participations, repeatable, caps
        self.owner_notes = owner_notes
        self.paid: list[tuple[int, int]] = []  # (round, row of the ledger), in the order of the charges
        self._first: dict[int, int] = {}  # round -> row of its first charge
        self._clients: Ints = np.empty(0, np.int64)  # clients that took part, sorted
        self._counts: Ints = np.empty(0, np.int64)  # their numbers of participations
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
        """Return the index of each client among those that took part, and whether it took part."""
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
        """Return in how many rounds each of these clients has taken part."""
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
        """Largest number of participations of one client so far."""
        return int(self._counts.max(initial=0))

    @property
    def charged(self) -> int:
        """Number of rounds charged so far, including interrupted ones."""
        return len(self.paid)

    def free(self, cohort: Ints) -> Ints:
        """Return the clients of a cohort that may still take part."""
        if self.caps is None and self.participations >= self.rounds:
            return cohort
        return cohort[self.counts(cohort) < self._caps(cohort)]

    def repeats(self, number: int) -> Ints | None:
        """Return the cohort of a round that was charged already and whose re-run is the same release.

        Return None if the round was not charged or is not repeatable; only rounds in research mode are.
        """
        row = self._first.get(number) if self.repeatable else None
        if row is None:
            return None
        return ids(next(self._chain.select("id = ?", [row])).owners or b"")

    def cohorts(self) -> Iterator[tuple[int, Ints]]:
        """Yield every charge of a round, numbered from 0, with the clients that took part."""
        for entry in self._chain.select("job = ? AND kind = 'round'", [self.job]):
            yield int(entry.details()["round"]), ids(entry.owners or b"")

    def has_paid(self, number: int) -> bool:
        """Return whether this round was charged."""
        return number in self._first

    def last_cohort(self) -> Ints:
        """Return the cohort of the round that was charged last; it is empty before the first."""
        return ids(next(self._chain.select("id = ?", [self.paid[-1][1]])).owners or b"") if self.paid else ids(b"")

    def spend(self, number: int, cohort: Ints, cost: Cost) -> None:
        """Charge a round to its cohort and write the entry to disk, or raise an error if it exceeds the budget."""
        try:
            with self._chain.writing():
                self._catch_up()  # read the charges of other processes of this job
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
        """Return the head of the chain, which a run folder keeps to detect a truncated or replaced ledger."""
        entries, hash = self._chain.head()
        return {"job": self.job, "entries": entries, "head": hash}
