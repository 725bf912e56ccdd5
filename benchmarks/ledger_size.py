"""Bytes and milliseconds that a round takes in a ledger: of a site, and of a server that names its cohort.

    python benchmarks/ledger_size.py

Rounds of dp-sgd are charged to a new file, each synchronised to disk, as in a run. Sizes are those of the file after
its log was written back; the difference between two numbers of rounds leaves out what every file has.
"""

from __future__ import annotations

import argparse
import json
import sqlite3
import tempfile
import time
from pathlib import Path

import numpy as np

from sordino.contract import pricing
from sordino.ledger.ledger import Ledger
from sordino.privacy import price
from sordino.runs import build, paying
from sordino.spec import spec


def filled(path: Path, job: build.Job, rounds: int, cohort: int) -> tuple[int, float]:
    """Return the bytes of a ledger after so many rounds, and the seconds that charging them took."""
    book = Ledger(path)
    pages = book.open_job("benchmark", "", paying.plan_charge(job), rounds, rounds, True)
    cost = price.cost_to(job.viewer, pricing.costs(job.method, job.plan, 0))
    clients, start = np.arange(cohort, dtype=np.int64), time.perf_counter()
    for number in range(rounds):
        pages.spend(number, clients, cost)
    seconds = time.perf_counter() - start
    book.close()
    with sqlite3.connect(path) as file:
        file.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    file.close()
    return path.stat().st_size, seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--cohorts", type=int, nargs="*", default=[1, 10, 100, 1000, 10_000])
    asked = parser.parse_args()
    keys = {"dataset": "breast-cancer", "clients": 3, "rounds": asked.rounds, "method": "dp-sgd", "seed": 1}
    job = build.from_spec(spec.from_dict(keys))
    for cohort in asked.cohorts:
        with tempfile.TemporaryDirectory() as place:
            few, _ = filled(Path(place) / "few", job, asked.rounds // 10, cohort)
            many, seconds = filled(Path(place) / "many", job, asked.rounds, cohort)
        row = {"cohort": cohort, "bytes_per_round": round((many - few) / (asked.rounds - asked.rounds // 10))}
        print(json.dumps(row | {"ms_per_round": round(1000 * seconds / asked.rounds, 2)}), flush=True)


if __name__ == "__main__":
    main()
