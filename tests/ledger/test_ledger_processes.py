"""Sixteen real processes spend at once, some are killed: never a unit too much, never a release without its entry."""

from __future__ import annotations

import json
import math
import subprocess
import sys

import numpy as np
import pytest

from sordino.ledger.ledger import Budget, Ledger

# one interpreter imports everything, then forks sixteen spenders and kills some of them
SPENDERS = """
import os, random, signal, sys, time
from pathlib import Path
import numpy as np
from sordino.core.errors import BudgetError
from sordino.privacy.events import Cost, GaussianEvent as Gaussian
from sordino.ledger.ledger import Charge, Ledger

what, here = sys.argv[1], Path(sys.argv[2])
ask = Charge(Cost("record", "add/remove", "server", Gaussian(20.0)), 0.125, 1e-9)

def spender(k):
    book = Ledger(here / "ledger.sqlite")
    out = os.open(here / f"released-{k}", os.O_CREAT | os.O_APPEND | os.O_WRONLY)
    job = book.open_job("shared", "d", Charge(ask.cost, 1.0, 1e-9), 400, 150, False) if what == "rounds" else None
    n = 0
    while True:
        try:
            if job is None:
                row = book.charge("trial", "d", ask, {"spender": k, "n": n}).id
            else:
                job.spend(n, job.free(np.arange(k, k + 3)), ask.cost)
                row = job.paid[-1][1]
        except BudgetError:
            os._exit(0)
        os.write(out, b"%d\\n" % row)  # the release
        time.sleep(0.005)  # the others' turn: whoever has just had the lock would often get it again
        n += 1

draw = random.Random(1)
running = {}
def start(k):
    pid = os.fork()
    if pid == 0:
        try:
            spender(k)
        except BaseException as error:
            print(repr(error), file=sys.stderr, flush=True)
            os._exit(3)
    running[pid] = k
for k in range(16):
    start(k)
victims, codes = 6, []
for k in range(16, 16 + victims):
    time.sleep(draw.uniform(0.01, 0.06))
    alive = sorted(running)
    if not alive:
        break
    pid = draw.choice(alive)
    os.kill(pid, signal.SIGKILL)
    codes.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    del running[pid]
    start(k)
for pid in list(running):
    codes.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
print(codes)
"""


def run(what, folder):
    done = subprocess.run(
        [sys.executable, "-c", SPENDERS, what, str(folder)], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0 and not done.stderr, done.stderr
    codes = json.loads(done.stdout)
    assert set(codes) <= {0, -9} and codes.count(-9) >= 1 and codes.count(0) == 16, codes
    released = [int(line) for file in folder.glob("released-*") for line in file.read_text().split()]
    return released


@pytest.mark.slow
def test_one_budget_is_never_overspent(tmp_path):
    book = Ledger(tmp_path / "ledger.sqlite")
    book.set_budget(Budget(20.0, 1e-5, "plans", None))  # 160 times 0.125, exactly
    book.close()
    released = run("trials", tmp_path)
    book = Ledger(tmp_path / "ledger.sqlite", "read")
    try:
        assert book.chain.verify() == []
        entries = {e.id: e for e in book.charges("d")}
        assert len(entries) == 160 and math.fsum(e.epsilon for e in entries.values()) == 20.0
        assert len(set(released)) == len(released) and set(released) <= set(entries)  # paid before it was released
        assert len(entries) - len(released) <= 6  # a kill may fall between the two, at most once each
        assert len({e.details()["spender"] for e in entries.values()}) > 4
    finally:
        book.close()


@pytest.mark.slow
def test_one_job_is_never_overspent(tmp_path):
    """All of them on one job (a run folder's lock would forbid it): rounds and participations hold all the same."""
    released = run("rounds", tmp_path)
    book = Ledger(tmp_path / "ledger.sqlite", "read")
    try:
        assert book.chain.verify() == []
        rounds = list(book.chain.select("kind = 'round'"))
        assert len(rounds) == 400 and len(list(book.chain.select("kind = 'plan'"))) == 1
        assert set(released) <= {e.id for e in rounds}
        taken = np.bincount(np.concatenate([np.frombuffer(e.owners, "<i8") for e in rounds]))
        assert taken.max() <= 150
    finally:
        book.close()
