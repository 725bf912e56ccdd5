"""One job's rounds: charged durably, in the right number, to the right clients; and what happens to a broken file."""

from __future__ import annotations

import shutil
import sqlite3
from dataclasses import replace

import numpy as np
import pytest

from sordino.core.errors import BudgetError, RunError
from sordino.ledger.ledger import Charge, Ledger
from sordino.privacy.events import Cost, GaussianEvent, Repeated

COST = Cost("record", "add/remove", "server", GaussianEvent(1.0))


def cohort(*ids):
    return np.array(ids, dtype=np.int64)


def plan(epsilon=1.0, delta=1e-6, event=None):
    return Charge(Cost("record", "add/remove", "server", event or Repeated(GaussianEvent(20.0), 4)), epsilon, delta)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "ledger.sqlite"


@pytest.fixture
def books(path):
    """Opens the ledger as often as one likes; all are closed in the end."""
    made = []

    def make(mode="create", wait=5.0, at=path):
        made.append(Ledger(at, mode, wait))
        return made[-1]

    yield make
    for book in made:
        book.close()


@pytest.fixture
def opened(books):
    def make(rounds=4, participations=4, repeatable=True, job="it", data="d", caps=None):
        return books().open_job(job, data, plan(), rounds, participations, repeatable, caps, purpose="test")

    return make


def rows(path, columns="kind, job"):
    other = sqlite3.connect(path)
    try:
        return other.execute(f"SELECT {columns} FROM entry ORDER BY id").fetchall()
    finally:
        other.close()


# --- rounds and clients


def test_it_counts_rounds_and_participations(opened):
    ledger = opened()
    assert (ledger.charged, ledger.most) == (0, 0)
    ledger.spend(0, cohort(3, 5), COST)
    ledger.spend(1, cohort(), COST)  # nobody came: the round counts all the same
    ledger.spend(2, cohort(5), COST)
    assert (ledger.charged, ledger.most) == (3, 2)
    assert ledger.counts(cohort(3, 4, 5, 99)).tolist() == [1, 0, 2, 0]


def test_the_path_may_be_text(books, path):
    book = books(at=str(path))
    assert book.path == path and book.store(make=True).path == path.with_suffix(".units.sqlite")
    book.note({"said": "something"})
    assert books("read", at=str(path)).chain.head() == books().chain.head() != (0, "0" * 64)


def test_it_refuses_a_round_too_many_and_writes_nothing(opened, path):
    ledger = opened(rounds=2)
    ledger.spend(0, cohort(1), COST)
    ledger.spend(1, cohort(1), COST)
    with pytest.raises(BudgetError, match=r"round 3 .*all 2"):
        ledger.spend(2, cohort(1), COST)
    with pytest.raises(BudgetError):
        ledger.spend(0, cohort(1), COST)  # nor an old round once more
    assert ledger.charged == 2 and opened(rounds=2).charged == 2
    assert [kind for kind, _ in rows(path)] == ["plan", "round", "round"]


def test_it_refuses_a_client_that_has_used_its_participations(opened):
    ledger = opened(participations=1)
    ledger.spend(0, cohort(1, 2), COST)
    with pytest.raises(BudgetError, match=r"client 2 .*all 1 participations"):
        ledger.spend(1, cohort(7, 2), COST)
    assert ledger.charged == 1 and ledger.counts(cohort(7)).tolist() == [0]
    assert ledger.free(cohort(1, 2, 7, 9)).tolist() == [7, 9]
    ledger.spend(1, ledger.free(cohort(1, 2)), COST)
    assert ledger.charged == 2


def test_a_client_named_twice_takes_part_twice(opened):
    ledger = opened(participations=1)
    with pytest.raises(BudgetError, match="client 6"):
        ledger.spend(0, cohort(6, 6), COST)
    assert ledger.charged == 0


def test_without_a_cap_everyone_is_free(opened):
    ledger = opened()
    ledger.spend(0, cohort(1), COST)
    assert ledger.free(cohort(1, 2)).tolist() == [1, 2]
    assert ledger.free(cohort()).tolist() == []


def test_personal_caps_hold_beside_the_cap_of_the_run(opened):
    ledger = opened(rounds=5, participations=3, caps=cohort(0, 1, 2, 9))
    taken = np.zeros(4, dtype=int)
    for number in range(5):
        free = ledger.free(np.arange(4))
        taken[free] += 1
        ledger.spend(number, free, COST)
    assert taken.tolist() == [0, 1, 2, 3]
    fresh = opened(rounds=5, participations=3, caps=cohort(0, 1, 2, 9), job="other")
    with pytest.raises(BudgetError, match=r"client 0 .*all 0 participations"):
        fresh.spend(0, cohort(0), COST)
    assert fresh.free(cohort(0, 3)).tolist() == [3]


def test_reopened_it_is_the_same(opened):
    first = opened(participations=2)
    first.spend(0, cohort(3, 2**40), COST)
    first.spend(0, cohort(3), COST)  # a secure re-run
    again = opened(participations=2)  # while the other still has it open, as after a crash
    assert again.paid == first.paid and again.most == 2
    assert again.counts(cohort(3, 2**40, 4)).tolist() == first.counts(cohort(3, 2**40, 4)).tolist() == [2, 1, 0]
    with pytest.raises(BudgetError):
        again.spend(1, cohort(3), COST)


def test_two_openings_of_one_job_never_spend_more_than_one(opened):
    """What the other has spent in the meantime counts, though nobody told us."""
    one, other = opened(rounds=3), opened(rounds=3)
    one.spend(0, cohort(1), COST)
    other.spend(1, cohort(1), COST)
    one.spend(2, cohort(1), COST)
    for ledger in (one, other):
        with pytest.raises(BudgetError, match="all 3"):
            ledger.spend(3, cohort(1), COST)
        assert ledger.charged == 3 and ledger.most == 3


def test_jobs_do_not_count_each_others_rounds(opened, path):
    one, other = opened(rounds=1), opened(rounds=2, job="other")
    one.spend(0, cohort(1), COST)
    other.spend(0, cohort(1), COST)
    other.spend(1, cohort(2), COST)
    assert (one.charged, other.charged, other.most) == (1, 2, 1)
    assert rows(path) == [("plan", "it"), ("plan", "other"), ("round", "it"), ("round", "other"), ("round", "other")]


def test_a_charge_is_on_disk_when_spend_returns(opened, path):
    ledger = opened()
    ledger.spend(0, cohort(1), COST)
    found = rows(path, "kind, what, event, unit, relation, viewer, owners")
    assert found[1][:2] == ("round", '{"round": 0}') and '"kind": "Gaussian"' in found[1][2]
    assert found[1][3:] == ("record", "add/remove", "server", cohort(1).tobytes())
    assert ledger._chain._db.execute("PRAGMA synchronous").fetchone() == (2,)  # FULL
    assert ledger._chain._db.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_a_research_round_repeats_its_cohort_and_a_secure_one_does_not(opened):
    research = opened()
    research.spend(0, cohort(4, 6), COST)
    assert research.repeats(0).tolist() == [4, 6] and research.repeats(1) is None
    assert opened(repeatable=False).repeats(0) is None


def test_a_job_goes_on_only_as_it_was_planned(opened):
    opened(rounds=4)
    with pytest.raises(RunError, match="other data or rounds"):
        opened(rounds=5)
    with pytest.raises(RunError, match="other data or rounds"):
        opened(participations=3)
    with pytest.raises(RunError, match="other data or rounds"):
        opened(data="e")
    opened()


# --- speed


def test_a_million_clients_are_counted(opened):
    ledger = opened(rounds=20, participations=2)
    draw = np.random.default_rng(0)
    ledger._add(np.arange(1_000_000))
    for number in range(3):
        ledger.spend(number, ledger.free(draw.choice(1_000_000, 10_000, replace=False)), COST)
    assert ledger.most == 2


def test_a_long_ledger_opens_without_reading_it(books, path):
    """100,000 rows of another job; opening, planning and paying look up their own rows alone."""
    book = books()
    blank = ("other", "e", None, "{}", "", "", "", "", "", None, None, "", "", "")
    with book.chain.writing():
        many = ((i, "round", *blank) for i in range(1, 100_001))
        book.chain._db.executemany(f"INSERT INTO entry VALUES ({', '.join('?' * 16)})", many)
    again = books().open_job("it", "d", plan(), 50, 50, True)
    for number in range(20):
        again.spend(number, cohort(*range(100)), COST)
    for where in (
        "job = 'it' AND kind = 'round' AND id > 7",
        "data = 'd' AND kind IN ('plan', 'trial')",
        "kind <> 'round' AND kind IN ('plan', 'trial')",
    ):
        plan_of = book.chain._db.execute(f"EXPLAIN QUERY PLAN SELECT * FROM entry WHERE {where} ORDER BY id").fetchall()
        assert "USING INDEX" in str(plan_of), plan_of


# --- damage


def unchanged(path, act, match):
    before = path.read_bytes()
    with pytest.raises(RunError, match=match) as error:
        act()
    assert "\n" not in str(error.value) and path.read_bytes() == before


@pytest.mark.parametrize("mode", ["create", "write", "read"])
@pytest.mark.parametrize("content", [b"not a database" * 50, b"SQLite format 3\x00" + b"\xff" * 5000])
def test_a_damaged_file_is_an_error(path, content, mode):
    path.write_bytes(content)
    unchanged(path, lambda: Ledger(path, mode), "cannot open the ledger")


@pytest.mark.parametrize("mode", ["create", "write", "read"])
@pytest.mark.parametrize(
    ("table", "match"),
    [
        ("charge (id INTEGER, round INTEGER, cohort BLOB, costs TEXT)", "older version"),
        ("entry (id INTEGER)", "not a ledger"),
    ],
)
def test_a_database_of_another_kind_is_an_error(path, table, match, mode):
    db = sqlite3.connect(path)
    db.execute(f"CREATE TABLE {table}")
    db.commit()
    db.close()
    unchanged(path, lambda: Ledger(path, mode), match)


@pytest.mark.parametrize("page", range(1, 10))
def test_a_page_that_went_bad_is_an_error_or_a_problem_and_no_stack_trace(opened, path, page):
    """The disk flips bits anywhere behind the header."""
    ledger = opened(rounds=40, participations=40)
    for number in range(40):
        ledger.spend(number, np.arange(40), COST)
    ledger._chain.close()
    data = bytearray(path.read_bytes())
    at = page * 4096
    if at >= len(data):
        pytest.fail("the file is shorter than this test thinks")
    data[at : at + 4096] = bytes(b ^ 0x5A for b in data[at : at + 4096])
    path.write_bytes(bytes(data))
    try:
        book = Ledger(path, "read")
    except RunError as error:
        assert "\n" not in str(error)
        return
    try:
        found = book.chain.verify()
    except RunError as error:
        found = [str(error)]
    finally:
        book.close()
    assert found and all("\n" not in problem for problem in found)


def test_another_schema_is_an_error(books, path):
    books().close()
    db = sqlite3.connect(path)
    db.execute("PRAGMA user_version = 4")
    db.close()
    with pytest.raises(RunError, match="schema 4"):
        Ledger(path)


@pytest.mark.parametrize("mode", ["write", "read"])
def test_a_missing_file_is_an_error_and_is_not_made(path, mode):
    with pytest.raises(RunError, match="there is no ledger"):
        Ledger(path, mode)
    assert not path.exists()


def test_odd_paths_work(tmp_path, books):
    odd = tmp_path / "a b%20?#ü" / "led'ger.sqlite"
    books(at=odd).note({"a": 1})
    assert odd.is_file() and books("read", at=odd).chain.head()[0] == 1


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="cannot open the ledger"):
        Ledger(tmp_path / "file" / "ledger.sqlite")


def test_a_locked_file_is_one_clear_line(books, path):
    ledger = books(wait=0.1).open_job("it", "d", plan(), 4, 4, True)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    try:
        with pytest.raises(RunError, match=r"in use by another process for 0\.1 seconds.*round 1 was not run"):
            ledger.spend(0, cohort(1), COST)
    finally:
        other.close()
    assert ledger.charged == 0
    ledger.spend(0, cohort(1), COST)  # as soon as it is free
    assert ledger.charged == 1


def test_a_charge_that_cannot_be_written_stops_the_round(opened):
    ledger = opened()
    ledger._chain._db.execute("PRAGMA query_only = ON")
    with pytest.raises(RunError, match="round 1 was not run"):
        ledger.spend(0, cohort(1), COST)
    assert ledger.charged == 0


def test_a_full_disk_stops_the_round_and_leaves_the_chain_whole(opened, books):
    ledger = opened(rounds=50)
    ledger.spend(0, cohort(1), COST)
    (pages,) = ledger._chain._db.execute("PRAGMA page_count").fetchone()
    ledger._chain._db.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(RunError, match=r"full.*so round \d+ was not run"):
        for number in range(1, 50):
            ledger.spend(number, np.arange(1000), COST)
    ledger._chain._db.execute("PRAGMA max_page_count = 1000000")
    charged = ledger.charged
    assert charged < 50 and books().chain.verify() == []
    ledger.spend(charged, cohort(1), COST)
    assert opened(rounds=50).charged == charged + 1


@pytest.mark.parametrize("suffix", ["", "-wal"])
def test_a_file_that_is_removed_while_in_use_is_noticed(opened, path, suffix):
    """SQLite itself would write on into the removed file, and nobody would ever see it again."""
    ledger = opened()
    ledger.spend(0, cohort(1), COST)
    path.with_name(path.name + suffix).unlink()
    with pytest.raises(RunError, match=r"cannot write the ledger .*round 2 was not run"):
        ledger.spend(1, cohort(1), COST)


def test_an_older_copy_that_is_put_back_while_in_use_is_noticed(opened, path, tmp_path):
    first = opened()
    first.spend(0, cohort(1), COST)
    first._chain._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    shutil.copy(path, tmp_path / "old")
    first.spend(1, cohort(1), COST)
    first._chain._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    path.unlink()
    shutil.copy(tmp_path / "old", path)
    with pytest.raises(RunError, match="round 3 was not run"):
        first.spend(2, cohort(1), COST)


# --- the chain


def forge(path, statement):
    """What someone with a database tool can do."""
    db = sqlite3.connect(path)
    for name in ("no_update", "no_delete", "in_order"):
        db.execute(f"DROP TRIGGER {name}")
    db.execute(statement)
    db.commit()
    db.close()


def ten(opened):
    ledger = opened(rounds=9)
    for number in range(9):
        ledger.spend(number, cohort(number), COST)
    return ledger


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE entry SET epsilon = 0 WHERE id = 1",
        "DELETE FROM entry WHERE id = 10",
        "DELETE FROM entry",
        "INSERT OR REPLACE INTO entry SELECT * FROM entry WHERE id = 3",
        "INSERT INTO entry SELECT 99, kind, job, data, owners, what, time, unit, relation, viewer, event, epsilon, "
        "delta, nonce, previous, hash FROM entry WHERE id = 3",
        "UPDATE OR IGNORE entry SET hash = ''",
    ],
)
def test_nothing_can_be_changed_by_accident(opened, path, statement):
    ten(opened)
    before = rows(path, "*")
    db = sqlite3.connect(path)
    try:
        with pytest.raises(sqlite3.IntegrityError, match="append-only"):
            db.execute(statement)
    finally:
        db.close()
    assert rows(path, "*") == before


@pytest.mark.parametrize(
    ("statement", "match"),
    [
        ("UPDATE entry SET epsilon = 0.5 WHERE id = 1", "row 1 was edited: expected hash"),
        ("UPDATE entry SET owners = x'' WHERE id = 7", "row 7 was edited"),
        ("UPDATE entry SET time = '2020' WHERE id = 10", "row 10 was edited"),
        ("UPDATE entry SET id = 77 WHERE id = 10", "row 10 is missing"),
        ("DELETE FROM entry WHERE id = 4", "row 4 is missing: the next one is row 5"),
        ("UPDATE entry SET hash = 'ab' WHERE id = 6", "row 7: it should follow ab"),
        ("SELECT 1", "triggers"),
    ],
)
def test_a_forged_row_is_named(opened, path, books, statement, match):
    ten(opened)
    assert books().chain.verify() == []
    forge(path, statement)
    problems = books().chain.verify()
    assert any(match in p for p in problems), problems


def test_every_column_is_in_the_hash(opened, path, books):
    ten(opened)
    entry = list(books().chain.select())[4]
    for name, value in {
        "id": 6, "kind": "x", "job": "x", "data": "x", "owners": b"x", "what": "x", "time": "x", "unit": "x",
        "relation": "x", "viewer": "x", "event": "x", "epsilon": 1.0, "delta": 1.0, "nonce": "x", "previous": "x",
    }.items():  # fmt: skip
        assert replace(entry, **{name: value}).digest() != entry.hash
    assert entry.digest() == entry.hash and len(entry.hash) == 64
    assert replace(entry, owners=None).digest() != replace(entry, owners=b"").digest()


def test_a_cut_tail_and_an_old_copy_are_seen_by_their_heads(opened, path, books, tmp_path):
    ledger = ten(opened)
    head = ledger.head()
    heads = [("it", head["entries"], head["head"])]
    assert books().chain.verify(heads) == [] and head["entries"] == 10
    forge(path, "DELETE FROM entry WHERE id > 8")
    problems = books().chain.verify(heads)
    assert any("row 10 is missing: it has it" in p and "ends at row 8" in p for p in problems), problems


def test_an_old_copy_that_went_on_is_another_history(opened, path, books, tmp_path):
    ledger = opened(rounds=9)
    ledger.spend(0, cohort(1), COST)
    ledger._chain._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    shutil.copy(path, tmp_path / "old.sqlite")
    ledger.spend(1, cohort(2), COST)
    heads = [("it", ledger.head()["entries"], ledger.head()["head"])]
    old = books(at=tmp_path / "old.sqlite")
    assert "row 3 is missing" in old.chain.verify(heads)[0]
    old.open_job("it", "d", plan(), 9, 4, True).spend(1, cohort(3), COST)
    assert old.chain.verify() == []  # whole in itself
    (problem,) = old.chain.verify(heads)
    assert problem.startswith(f"row 3: expected hash {heads[0][2][:12]}, as in it, found")
