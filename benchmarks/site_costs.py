"""What grows with the number of sites: rows of a ledger, and signatures that are checked before the first round.

    python benchmarks/site_costs.py

Rounds of dp-sgd are charged to a new ledger, each synchronised to disk, as in a run. Sizes are those of the file after
its log was written back; the difference between two numbers of rounds leaves out what every file has.

A server does not know which node is which site. The first answer of a node is checked against the keys of the sites
one after the other: n (n + 1) / 2 checks for n sites. Here every twentieth answer is checked.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sqlite3
import tempfile
import time
from pathlib import Path

import numpy as np

from sordino.contract import pricing
from sordino.core.errors import RunError
from sordino.deploy import roster as rosters
from sordino.deploy.folder import Roster, SiteEntry
from sordino.ledger.ledger import Ledger
from sordino.masking.identity import Identity
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


def checks(sites: int) -> tuple[float, float]:
    """Return the CPU milliseconds of one check of a signature, and the seconds of all checks of a first exchange."""
    identities = [Identity.new() for _ in range(sites)]
    entries = tuple(SiteEntry(f"site-{i + 1}", 1, who.public) for i, who in enumerate(identities))
    known, request, count = Roster("benchmark", "127.0.0.1", 18000, entries), bytes(500), 0
    replies = [rosters.signed(known, who, request, bytes(600)) for who in identities]
    start = time.process_time()
    for last in range(0, sites, max(1, sites // 20)):
        for candidate in entries[: last + 1]:
            count += 1
            with contextlib.suppress(RunError):
                rosters.opened(known, candidate.name, request, replies[last])
    one = (time.process_time() - start) / count
    return 1000 * one, one * sites * (sites + 1) / 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--cohorts", type=int, nargs="*", default=[1, 10, 100, 1000, 10_000])
    parser.add_argument("--sites", type=int, nargs="*", default=[10, 100, 500])
    asked = parser.parse_args()
    keys = {"dataset": "breast-cancer", "clients": 3, "rounds": asked.rounds, "method": "dp-sgd", "seed": 1}
    job = build.from_spec(spec.from_dict(keys))
    for cohort in asked.cohorts:
        with tempfile.TemporaryDirectory() as place:
            few, _ = filled(Path(place) / "few", job, asked.rounds // 10, cohort)
            many, seconds = filled(Path(place) / "many", job, asked.rounds, cohort)
        row = {"cohort": cohort, "bytes_per_round": round((many - few) / (asked.rounds - asked.rounds // 10))}
        print(json.dumps(row | {"ms_per_round": round(1000 * seconds / asked.rounds, 2)}), flush=True)
    for sites in asked.sites:
        one, all_of_them = checks(sites)
        print(
            json.dumps({"sites": sites, "ms_per_check": round(one, 3), "s_in_all": round(all_of_them, 2)}), flush=True
        )


if __name__ == "__main__":
    main()
