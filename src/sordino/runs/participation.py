"""The contents of participation.json: which clients took part when. It tells the draw, so it is for the owner alone."""

from __future__ import annotations

from typing import Any

import numpy as np

from sordino.core.rng import Ints
from sordino.ledger.account import Account

PARTICIPATION = "participation.json"  # in the private part of a run folder
COLUMNS, ROWS = 60, 500  # most columns (groups of rounds) and rows (clients, or groups of them)


def participation(ledger: Account, clients: int) -> dict[str, Any]:
    """Return in how many rounds clients took part, by stretches of the run, from the charges of the ledger.

    Args:
        ledger: the charges of the run.
        clients: the number of clients.
    """
    rounds = max((number for number, _ in ledger.paid), default=-1) + 1
    columns, together = min(COLUMNS, rounds), max(1, -(-clients // ROWS))
    counts = np.zeros((-(-clients // together), columns), dtype=np.int64)
    by_client: Ints = np.zeros(clients, dtype=np.int64)
    for number, cohort in ledger.cohorts():
        inside = cohort[cohort < clients]
        np.add.at(counts[:, number * columns // rounds], inside // together, 1)
        np.add.at(by_client, inside, 1)
    return {
        "clients": clients,
        "together": together,  # number of clients in a row of the counts
        "rounds": [-(-k * rounds // columns) + 1 for k in range(columns)],  # first round of every column, from 1
        "last": rounds,
        "counts": counts.tolist(),
        "by_number": np.bincount(by_client).tolist() if clients else [],  # clients that took part 0, 1, 2, ... times
    }
