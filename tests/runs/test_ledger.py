import sqlite3

import numpy as np
import pytest

from sordino.core.errors import BudgetError, RunError
from sordino.privacy.events import Cost, Gaussian
from sordino.runs.ledger import Ledger

COSTS = (Cost("record", "add/remove", "server", Gaussian(1.0)),)


def cohort(*ids):
    return np.array(ids, dtype=np.int64)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "ledger.sqlite"


@pytest.fixture
def opened(path):
    made = []

    def make(rounds=4, participations=4, repeatable=True):
        made.append(Ledger(path, rounds, participations, repeatable))
        return made[-1]

    yield make
    for ledger in made:
        ledger.close()


def test_it_counts_rounds_and_participations(opened):
    ledger = opened()
    assert (ledger.charged, ledger.most) == (0, 0)
    ledger.spend(0, cohort(3, 5), COSTS)
    ledger.spend(1, cohort(), COSTS)  # nobody came: the round counts all the same
    ledger.spend(2, cohort(5), COSTS)
    assert (ledger.charged, ledger.most) == (3, 2)
    assert dict(ledger.counts) == {3: 1, 5: 2}


def test_it_refuses_a_round_too_many_and_writes_nothing(opened, path):
    ledger = opened(rounds=2)
    ledger.spend(0, cohort(1), COSTS)
    ledger.spend(1, cohort(1), COSTS)
    with pytest.raises(BudgetError, match=r"round 3 .*all 2"):
        ledger.spend(2, cohort(1), COSTS)
    with pytest.raises(BudgetError):
        ledger.spend(0, cohort(1), COSTS)  # nor an old round once more
    assert ledger.charged == 2 and opened(rounds=2).charged == 2


def test_it_refuses_a_client_that_has_used_its_participations(opened):
    ledger = opened(participations=1)
    ledger.spend(0, cohort(1, 2), COSTS)
    with pytest.raises(BudgetError, match=r"client 2 .*all 1 participations"):
        ledger.spend(1, cohort(7, 2), COSTS)
    assert ledger.charged == 1 and ledger.counts[7] == 0
    assert ledger.free(cohort(1, 2, 7, 9)).tolist() == [7, 9]
    ledger.spend(1, ledger.free(cohort(1, 2)), COSTS)
    assert ledger.charged == 2


def test_without_a_cap_everyone_is_free(opened):
    ledger = opened()
    ledger.spend(0, cohort(1), COSTS)
    assert ledger.free(cohort(1, 2)).tolist() == [1, 2]
    assert ledger.free(cohort()).tolist() == []


def test_reopened_it_is_the_same(opened, path):
    first = opened(participations=2)
    first.spend(0, cohort(3, 2**40), COSTS)
    first.spend(0, cohort(3), COSTS)  # a secure re-run
    again = opened(participations=2)  # while the other still has it open, as after a crash
    assert again.charges == first.charges and again.counts == first.counts and again.most == 2
    with pytest.raises(BudgetError):
        again.spend(1, cohort(3), COSTS)


def test_a_charge_is_on_disk_when_spend_returns(opened, path):
    ledger = opened()
    ledger.spend(0, cohort(1), COSTS)
    other = sqlite3.connect(path)
    try:
        rows = other.execute("SELECT round, costs FROM charge").fetchall()
        assert len(rows) == 1 and '"kind": "Gaussian"' in rows[0][1]
        assert ledger._db.execute("PRAGMA synchronous").fetchone() == (2,)  # FULL
    finally:
        other.close()


def test_a_research_round_repeats_its_cohort_and_a_secure_one_does_not(opened):
    research = opened()
    research.spend(0, cohort(4, 6), COSTS)
    assert research.repeats(0).tolist() == [4, 6] and research.repeats(1) is None
    assert opened(repeatable=False).repeats(0) is None


@pytest.mark.parametrize("content", [b"not a database" * 50, b"SQLite format 3\x00" + b"\xff" * 5000])
def test_a_damaged_file_is_an_error(path, content):
    path.write_bytes(content)
    with pytest.raises(RunError, match="cannot open the ledger") as error:
        Ledger(path, 4, 4, True)
    assert "\n" not in str(error.value)


def test_a_table_of_another_kind_is_an_error(path):
    db = sqlite3.connect(path)
    db.execute("CREATE TABLE charge (id INTEGER, other TEXT)")
    db.close()
    with pytest.raises(RunError, match="cannot open the ledger"):
        Ledger(path, 4, 4, True)


def test_a_charge_that_cannot_be_written_stops_the_round(opened, path):
    ledger = opened()
    ledger._db.execute("PRAGMA query_only = ON")
    with pytest.raises(RunError, match="round 1 was not run"):
        ledger.spend(0, cohort(1), COSTS)
    assert ledger.charged == 0
