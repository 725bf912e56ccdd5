"""Who has paid for which round. On disk before anything is computed; refuses what the budget cannot pay.

SQLite with full synchronisation: when `spend` returns, the charge survives a power cut. An interrupted round
stays charged. In research mode its re-run draws the same numbers and is the same release, so it is not charged
again; in secure mode the noise is fresh and it is.
"""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from sordino.core.errors import BudgetError, RunError
from sordino.core.rng import Ints
from sordino.privacy.events import Cost, to_json

SCHEMA = """
CREATE TABLE IF NOT EXISTS charge (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    round INTEGER NOT NULL,
    cohort BLOB NOT NULL,
    costs TEXT NOT NULL
)"""


class Ledger:
    """The charges of one run: at most `rounds` of them, at most `participations` for one client."""

    def __init__(self, path: Path, rounds: int, participations: int, repeatable: bool) -> None:
        self.rounds, self.participations, self.repeatable = rounds, participations, repeatable
        self.charges: list[tuple[int, bytes]] = []
        self.counts: Counter[int] = Counter()
        try:
            self._db = sqlite3.connect(path, isolation_level=None)
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=FULL")
            self._db.execute(SCHEMA)
            for number, cohort in self._db.execute("SELECT round, cohort FROM charge ORDER BY id"):
                self._count(number, cohort)
        except sqlite3.Error as error:
            raise RunError(f"cannot open the ledger {path}: {error}") from error

    def _count(self, number: int, cohort: bytes) -> None:
        self.charges.append((number, cohort))
        self.counts.update(np.frombuffer(cohort, dtype="<i8").tolist())

    @property
    def most(self) -> int:
        """Participations of the busiest client so far."""
        return max(self.counts.values(), default=0)

    @property
    def charged(self) -> int:
        """Rounds charged so far, interrupted ones included."""
        return len(self.charges)

    def free(self, cohort: Ints) -> Ints:
        """Those of a cohort who may still take part."""
        if self.participations >= self.rounds:
            return cohort
        return np.array([i for i in cohort if self.counts[int(i)] < self.participations], dtype=np.int64)

    def repeats(self, number: int) -> Ints | None:
        """The cohort of a research round that was paid for already, whose re-run is the same release."""
        if not self.repeatable:
            return None
        paid = [cohort for n, cohort in self.charges if n == number]
        return np.frombuffer(paid[0], dtype="<i8") if paid else None

    def spend(self, number: int, cohort: Ints, costs: Sequence[Cost]) -> None:
        """Charge a round to its cohort, durably, or refuse."""
        if self.charged + 1 > self.rounds:
            raise BudgetError(
                f"round {number + 1} asks for one more charge; all {self.rounds} that the budget pays for are "
                "spent. Start a new run with more rounds (and more noise)."
            )
        blob = np.asarray(cohort, dtype="<i8").tobytes()
        over = [int(i) for i in cohort if self.counts[int(i)] >= self.participations]
        if over:
            raise BudgetError(
                f"round {number + 1} asks client {over[0]} to take part once more; it has used all "
                f"{self.participations} participations that the budget pays for."
            )
        text = json.dumps([{"unit": c.unit, "viewer": c.viewer, "event": to_json(c.event)} for c in costs])
        try:
            self._db.execute("INSERT INTO charge (round, cohort, costs) VALUES (?, ?, ?)", (number, blob, text))
        except sqlite3.Error as error:
            raise RunError(f"cannot write the ledger, so round {number + 1} was not run: {error}") from error
        self._count(number, blob)

    def close(self) -> None:
        self._db.close()
