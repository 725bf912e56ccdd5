"""What clients keep: rows of those who were touched, on file as of a checkpoint, in memory while there is room."""

from __future__ import annotations

import sqlite3

import pytest
import torch

from sordino.core.errors import RunError
from sordino.federations.store import Store

DIM = 5
GB = 2.0**-30  # one byte


def fresh(n):
    return torch.full((n, DIM), -1.0)


def rows(n, seed=0):
    draw = torch.Generator().manual_seed(seed)
    found = torch.randn(n, DIM, generator=draw)
    found[0, :4] = torch.tensor([float("inf"), -0.0, 1e-42, float("nan")])  # an overflow, a subnormal
    return found


def bits(tensor):
    return tensor.view(torch.int32).tolist()


def on_file(path):
    with_db = sqlite3.connect(path)
    try:
        return with_db.execute("SELECT kind, client, done FROM kept WHERE row IS NOT NULL ORDER BY 1, 2, 3").fetchall()
    finally:
        with_db.close()


@pytest.fixture
def path(tmp_path):
    return tmp_path / "clients.sqlite"


def opened(path, done=0, memory_gb=2.0):
    store = Store(memory_gb)
    store.open(path, done)
    return store


def test_untouched_clients_have_no_row(path):
    for store in (Store(), opened(path)):
        assert torch.equal(store.read("own", [7, 10**12], fresh(2)), fresh(2))
        store.write("own", [3, 10**12], rows(2))
        store.read("own", range(1000), fresh(1000))
        assert store.clients("own") == [3, 10**12] and store.clients("late") == []
        mixed = store.read("own", [5, 10**12, 3], fresh(3))
        assert torch.equal(mixed[0], fresh(1)[0]) and bits(mixed[[2, 1]]) == bits(rows(2))
        store.save(1)
        store.close()
    assert on_file(path) == [("own", 3, 1), ("own", 10**12, 1)]


def test_what_was_read_or_written_is_not_shared(path):
    store = opened(path)
    mine = rows(2)
    store.write("own", [0, 1], mine)
    mine.zero_()
    store.read("own", [0, 1], fresh(2)).zero_()
    store.read("own", [0], fresh(1)).zero_()
    assert bits(store.read("own", [0, 1], fresh(2))) == bits(rows(2))


def test_no_row_is_lost_or_changed_when_memory_is_short(path):
    """Room for two rows: the others leave memory, and come back bit for bit."""
    store = opened(path, memory_gb=2 * 4 * DIM * GB)
    kept = rows(10)
    store.write("own", range(10), kept)
    assert len(held(store)) == 10  # nothing is on file yet
    store.save(1)
    assert len(held(store)) == 2
    assert bits(store.read("own", range(10), fresh(10))) == bits(kept)
    changed = rows(3, seed=1)
    store.write("own", [1, 4, 8], changed)
    kept[[1, 4, 8]] = changed
    for i in range(10):
        assert bits(store.read("own", [i], fresh(1))) == bits(kept[i : i + 1])
    assert store.clients("own") == list(range(10))


def held(store):
    return [k for k, row in store._rows.items() if row is not None]


def test_reading_everyone_does_not_fill_the_memory(path):
    """As when all personal models are evaluated at the end."""
    store = opened(path, memory_gb=2 * 4 * DIM * GB)
    store.write("own", range(50), rows(50))
    store.save(1)
    for i in range(50):
        store.read("own", [i], fresh(1))
    assert len(held(store)) <= 3


def test_dropped_rows_are_gone_also_after_a_resume(path):
    store = opened(path)
    store.write("late", [1, 2, 3], rows(3))
    store.save(1)
    store.drop("late", [1, 2])
    assert store.clients("late") == [3]
    assert torch.equal(store.read("late", [1], fresh(1)), fresh(1))
    store.save(2)
    store.close()
    assert opened(path, 2).clients("late") == [3]
    again = opened(path, 1)  # the checkpoint before
    assert again.clients("late") == [1, 2, 3] and bits(again.read("late", [1, 2, 3], fresh(3))) == bits(rows(3))


def test_rows_written_after_the_checkpoint_are_forgotten(path):
    store = opened(path)
    store.write("own", [0, 1], rows(2))
    store.save(1)
    store.write("own", [1, 2], rows(2, seed=9))
    store.close()  # killed before the next checkpoint
    again = opened(path, 1)
    assert again.clients("own") == [0, 1] and bits(again.read("own", [0, 1], fresh(2))) == bits(rows(2))
    again.write("own", [2], rows(1, seed=4))
    again.save(2)
    again.close()
    back = opened(path, 1)  # checkpoint 2 was damaged
    assert back.clients("own") == [0, 1]


def test_the_file_holds_what_the_last_checkpoints_need_and_no_more(path):
    store = opened(path)
    for done in range(1, 31):
        store.write("own", [0, 1 + done % 3], rows(2, seed=done))
        store.save(done)
        found = on_file(path)
        assert len(found) <= 4 * 3 and len({c for _, c, _ in found}) <= 4
        assert max(d for _, c, d in found if c == 0) == done
    size = path.stat().st_size
    for done in range(31, 200):
        store.write("own", [0, 1 + done % 3], rows(2, seed=done))
        store.save(done)
    assert path.stat().st_size <= size + 8192


def test_the_file_grows_with_the_clients_that_were_touched(path, tmp_path):
    store, other = opened(path), opened(tmp_path / "other.sqlite")
    wide = torch.ones(1, 500)
    for done in range(1, 41):
        store.write("own", [done % 4], wide * done)
        other.write("own", [10**9 + done], wide * done)
        store.save(done)
        other.save(done)
    store.close()
    other.close()
    few, many = path.stat().st_size, (tmp_path / "other.sqlite").stat().st_size
    assert few < 16 * 2000 + 32768 and many > 40 * 2000


def test_both_checkpoints_that_are_kept_can_be_gone_on_with(path):
    """After every save the rows of this checkpoint and of the one before are there, whichever clients changed."""
    truth = {0: {}}
    store = opened(path)
    for done in range(1, 12):
        ids = [done % 2, 2 + done % 5, 7]
        store.write("own", ids, rows(3, seed=done))
        truth[done] = truth[done - 1] | dict(zip(ids, bits(rows(3, seed=done)), strict=True))
        store.save(done)
        for back in (done, done - 1):
            copy = sqlite3.connect(":memory:")
            store._file.backup(copy)
            assert restored(copy, back) == truth[back]
            copy.close()


def restored(file, done):
    """A second reader of the file: each client's newest row of at most `done` rounds."""
    query = "SELECT client, row FROM kept WHERE kind = 'own' AND done <= ? ORDER BY done"
    found = dict(file.execute(query, (done,)))
    assert all(row.startswith(b"float32;5\n") for row in found.values())  # the type and the shape, in words
    return {c: torch.frombuffer(bytearray(row[10:]), dtype=torch.int32).tolist() for c, row in found.items()}


def test_a_save_keeps_what_the_two_checkpoints_on_disk_need(path):
    """Checkpoints 2 and 3 are on disk while 4 is being written: killed now, with 3 damaged, the run goes on from 2."""
    store = opened(path)
    for done in range(1, 5):
        store.write("own", [0], rows(1, seed=done))
        store.save(done)
    store.close()
    assert bits(opened(path, 2).read("own", [0], fresh(1))) == bits(rows(1, seed=2))


# --- trouble


@pytest.mark.parametrize("content", [b"not a database, not at all" * 100, b"\x00" * 5000])
def test_a_file_that_is_no_database_is_one_clear_line(content, path):
    path.write_bytes(content)
    with pytest.raises(RunError, match=r"cannot use .*clients\.sqlite") as error:
        opened(path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("trouble", ["missing", "empty", "older"])
def test_a_file_without_the_rows_of_the_checkpoint_is_refused(trouble, path):
    store = opened(path)
    store.write("own", [0], rows(1))
    store.save(1)
    store.close()
    old = path.read_bytes()
    store = opened(path, 1)
    store.write("own", [0], rows(1, seed=2))
    store.save(2)
    store.close()
    if trouble == "older":
        path.write_bytes(old)
    elif trouble == "empty":
        path.write_bytes(b"")
    else:
        path.unlink()
    with pytest.raises(RunError, match=r"clients\.sqlite"):
        opened(path, 2)
    assert path.exists() == (trouble != "missing")


DAMAGES = {
    "short row": "UPDATE kept SET row = substr(row, 1, 8) WHERE client = 1",
    "one bit": "UPDATE kept SET row = CAST(x'01' || substr(row, 2) AS BLOB) WHERE client = 1",
    "no table": "DROP TABLE kept",
}


@pytest.mark.parametrize("trouble", DAMAGES)
def test_a_file_damaged_inside_is_one_clear_line(trouble, path):
    store = opened(path)
    store.write("own", [0, 1], torch.zeros(2, DIM))
    store.save(1)
    store.close()
    store = opened(path, 1)
    store._file.execute(DAMAGES[trouble])
    with pytest.raises(RunError) as error:
        store.read("own", [0, 1], fresh(2))
    assert "\n" not in str(error.value)


def test_rows_of_another_length_are_refused(path):
    store = opened(path)
    store.write("own", [0], rows(1))
    with pytest.raises(RunError, match="does not fit"):
        store.read("own", [0], torch.zeros(1, DIM + 1))


def test_a_full_disk_is_one_clear_line_and_the_next_save_has_everything(path):
    store = opened(path)
    store.write("own", [0], rows(1))
    store.save(1)
    pages = store._file.execute("PRAGMA page_count").fetchone()[0]
    store._file.execute(f"PRAGMA max_page_count = {pages}")
    wide = torch.randn(3, 5000)
    store.write("own", [0, 1, 2], wide)
    with pytest.raises(RunError, match=r"cannot save what clients keep: .*full.*then resume") as error:
        store.save(2)
    assert "\n" not in str(error.value)
    assert on_file(path) == [("own", 0, 1)]  # the transaction was taken back
    store._file.execute("PRAGMA max_page_count = 100000")
    store.save(2)
    store.close()
    assert bits(opened(path, 2).read("own", [0, 1, 2], torch.zeros(3, 5000))) == bits(wide)


def test_a_file_that_someone_else_writes_is_one_clear_line(path):
    store = opened(path)
    store._file.execute("PRAGMA busy_timeout = 1")
    store.write("own", [0], rows(1))
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(RunError, match="locked"):
        store.save(1)
    other.execute("ROLLBACK")
    other.close()
    store.save(1)
    assert on_file(path) == [("own", 0, 1)]


def test_a_folder_that_is_not_there_is_one_clear_line(tmp_path):
    with pytest.raises(RunError, match="cannot use"):
        opened(tmp_path / "nowhere" / "clients.sqlite")


# --- rows of any type and shape


def kinds_of_rows():
    draw = torch.Generator().manual_seed(1)
    wide = torch.randn(3, 4, generator=draw)
    return {
        "float64": wide.double() / 3,
        "float32": wide,
        "float16": wide.half(),
        "bfloat16": wide.bfloat16(),
        "int64": torch.tensor([[2**62 + 1, -1], [-(2**63), 0], [3, 4]]),
        "int32": torch.arange(6, dtype=torch.int32).reshape(3, 2),
        "int8": torch.tensor([[-128], [127], [0]], dtype=torch.int8),
        "uint8": torch.tensor(
            [[10, 59], [44, 255], [0, 1]], dtype=torch.uint8
        ),  # the bytes of a newline and commas too
        "bool": torch.tensor([[True, False], [False, False], [True, True]]),
        "number": torch.tensor([0.1, 0.2, 0.3], dtype=torch.float64),  # one a client
        "matrix": torch.randn(3, 2, 5, generator=draw),
        "nothing": torch.zeros(3, 0),
        "slice": torch.randn(3, 8, generator=draw)[:, ::2],
    }


@pytest.mark.parametrize("kind", list(kinds_of_rows()))
def test_a_row_of_any_type_and_shape_comes_back_bit_for_bit(kind, path):
    kept = kinds_of_rows()[kind]
    for memory_gb in (2.0, GB):  # from memory, and from the file
        path.unlink(missing_ok=True)
        store = opened(path, memory_gb=memory_gb)
        store.write(kind, [4, 0, 9], kept)
        store.save(1)
        for found in (store, opened(path, 1)):
            back = found.read(kind, [0, 9, 4], torch.zeros_like(kept))
            assert back.dtype == kept.dtype and torch.equal(back, kept[[1, 2, 0]])
        store.close()


def test_rows_of_another_type_are_refused_not_converted(path):
    store = opened(path)
    store.write("own", [0], torch.tensor([[1.5, 2.5]]))
    for other in (torch.zeros(1, 2, dtype=torch.float64), torch.zeros(1, 2, dtype=torch.int64), torch.zeros(1, 3)):
        with pytest.raises(RunError, match="saved by another run"):
            store.read("own", [0], other)
    assert torch.equal(store.read("own", [0], torch.zeros(1, 2)), torch.tensor([[1.5, 2.5]]))


def test_several_kinds_are_apart_and_found_by_their_first_word(path):
    store = opened(path)
    for kind in ("late", "late update", "late within", "latent", "own"):
        store.write(kind, [0], torch.zeros(1, 1))
    assert store.kinds("late ") == store.kinds("late") == ["late", "late update", "late within"]
    store.save(1)
    again = opened(path, 1)
    assert again.kinds("late ") == ["late", "late update", "late within"]
    assert again.kinds("latent") == ["latent"] and again.kinds("nobody") == []


def test_a_file_of_other_clients_is_refused_and_stays_as_it_is(path):
    store = Store()
    store.open(path, 0, whose="the clients of block 0 of 2")
    store.write("control", [3], torch.ones(1, 2))
    store.save(1)
    store.close()
    before = path.read_bytes()
    with pytest.raises(RunError, match="block 0 of 2 keep, but should hold what the clients of block 1 of 2 keep"):
        Store().open(path, 1, whose="the clients of block 1 of 2")
    assert path.read_bytes() == before
    again = Store()
    again.open(path, 1, whose="the clients of block 0 of 2")
    assert torch.equal(again.read("control", [3], torch.zeros(1, 2)), torch.ones(1, 2))
    again.close()


def test_a_file_that_does_not_say_whose_it_is_belongs_to_whoever_opens_it(path):
    store = Store()
    store.open(path, 0)
    store.save(1)
    store._file.execute("DROP TABLE holder")
    store.close()
    for whose in ("the clients of block 1 of 2", "the clients of block 1 of 2"):
        again = Store()
        again.open(path, 1, whose=whose)
        again.close()
    with pytest.raises(RunError, match="files were swapped"):
        Store().open(path, 1)
