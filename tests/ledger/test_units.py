"""Keyed hashes of units: what they tell, what they hide, and sets of them on disk."""

from __future__ import annotations

import numpy as np
import pytest

from sordino.core.errors import RunError
from sordino.data.canonical import of_arrays
from sordino.ledger import home, macs, overlap
from sordino.ledger.home import Key
from sordino.ledger.units import Units, UnitStore
from sordino.runs.identity import of_raw

KEY, OTHER = Key(b"k" * 32), Key(b"o" * 32)


def rows(seed=0, count=40):
    return np.random.default_rng(seed).normal(size=(count, 4))


def hashed(x, key=KEY):
    return macs.of_form(of_arrays(x).forms[0], key)[0]


def units(x, unit="record", key=KEY, name="", **who):
    return of_raw(of_arrays(x, **who), unit, name, key)


@pytest.fixture
def store(tmp_path):
    made = UnitStore(tmp_path / "units.sqlite")
    yield made
    made.close()


def test_hashes_are_of_the_row_the_copy_and_the_key():
    x = rows()
    found = hashed(x)
    assert len(np.unique(found, axis=0)) == 40 and (hashed(x[::-1])[::-1] == found).all()
    assert not macs.among(hashed(x, OTHER), found).any() and not macs.among(hashed(rows(1)), found).any()
    assert macs.among(found, found).all() and macs.among(found[:3], found[2:]).tolist() == [False, False, True]
    twice = hashed(np.concatenate([x, x[:2], x[:1]]))
    assert (twice[:40] == found).all() and len(np.unique(twice, axis=0)) == 43  # each copy is a unit of its own
    assert not macs.among(hashed(np.concatenate([x, x], axis=1)), found).any()  # another width, another key


def test_a_hash_looks_random():
    bits = np.unpackbits(hashed(np.arange(4000.0).reshape(-1, 1)).view(np.uint8))
    assert abs(bits.mean() - 0.5) < 5 * 0.5 / np.sqrt(len(bits))
    near = hashed(np.array([[1.0, 2.0], [1.0, 2.00001]])).view(np.uint8)
    assert 30 < np.unpackbits(near[0] ^ near[1]).sum() < 98


def test_half_a_hash_is_not_enough():
    stored = np.array([[7, 1], [7, 2], [9, 5]], np.uint64)
    asked = np.array([[7, 2], [7, 3], [9, 5], [8, 1], [10, 1]], np.uint64)
    assert macs.among(asked, stored).tolist() == [True, False, True, False, False]
    assert macs.among(asked, stored[:0]).tolist() == [False] * 5 and len(macs.among(asked[:0], stored)) == 0


def known(store, one, other, same_unit=True):
    """Which of `other` are in a job of `one`."""
    store.add("past", one)
    return overlap.known(other, store.members()["past"], store, same_unit)


def test_records_are_compared_one_by_one(store):
    x = rows()
    mask = known(store, units(x), units(np.concatenate([rows(1), x[5:9]])))
    assert mask.tolist() == [False] * 40 + [True] * 4


def test_units_of_different_kinds_are_all_in_both_if_a_row_is(store):
    x = rows()
    mask = known(store, units(x, "user", users=np.arange(40)), units(np.concatenate([rows(1), x[:1]])), False)
    assert mask.all() and len(mask) == 41
    assert not overlap.known(units(rows(2)), store.members()["past"], store, False).any()


def test_other_kinds_and_keys_cannot_be_compared(store):
    assert known(store, units(rows()), units(rows()[:, :3])) is None
    assert overlap.known(units(rows(), key=OTHER), store.members()["past"], store, True) is None
    # users whose ids meet nowhere: other rows prove nothing
    someone = units(rows(1), "user", users=np.arange(40), name="b")
    assert overlap.known(someone, store.members()["past"], store, True) is None


def test_users_meet_by_id_and_else_by_row(store):
    names = [f"{v:012d}" for v in np.random.default_rng(0).integers(0, 10**12, 40)]
    store.add("past", units(rows(), "user", users=names))
    past = store.members()["past"]
    mask = overlap.known(units(rows(1), "user", users=[*names[:2], "x" * 12]), past, store, True)
    assert sorted(mask.tolist()) == [False, True, True]
    renamed = [n[::-1] for n in names]
    assert overlap.known(units(rows(), "user", users=renamed), past, store, True).all()  # new pseudonyms, same rows
    assert not overlap.known(units(rows(1), "user", users=renamed), past, store, True).any()


def test_equal_sets_are_stored_once_in_no_order_of_the_rows(store, tmp_path):
    x = rows(0, 500)
    for job, found in (("a", x), ("b", x[::-1]), ("c", x[1:])):
        store.add(job, units(found))
    parts = {job: found[0].id for job, found in store.members().items()}
    assert parts["a"] == parts["b"] != parts["c"] and len(store.parts()) == 2
    kept = store.form(store.members()["a"][0], "values 4")
    assert (kept[1:, 0] >= kept[:-1, 0]).all()
    assert x.tobytes()[:64] not in (tmp_path / "units.sqlite").read_bytes()


def test_erased_hashes_are_gone_from_the_file(store, tmp_path):
    found = units(rows(0, 300))
    store.add("a", found)
    (part,) = store.members()["a"]
    gone = store.form(part, "values 4")[7].tobytes()
    assert gone in (tmp_path / "units.sqlite").read_bytes()
    lines = np.zeros(300, bool)
    lines[7] = True
    with store.writing():
        assert store.erase(part, lines) == 1
    assert len(store.form(part, "values 4")) == 299 and gone not in (tmp_path / "units.sqlite").read_bytes()
    assert overlap.known(units(rows(0, 300)), store.members()["a"], store, True).sum() == 299


def test_a_part_is_written_whole_or_not_at_all(store, monkeypatch):
    put = UnitStore.put

    def broken(self, job, key, part, forms):
        put(self, job, key, part, forms)
        raise OSError("the disk is full")

    monkeypatch.setattr(UnitStore, "put", broken)
    with pytest.raises(RunError, match="cannot write the units"):
        store.add("a", units(rows()))
    assert store.members() == {} and store.parts() == []


@pytest.mark.parametrize("content", [b"x" * 4000, b"SQLite format 3\x00" + b"\xff" * 3000])
def test_a_file_that_is_no_file_of_units_is_an_error(content, tmp_path):
    (tmp_path / "u").write_bytes(content)
    for mode in ("create", "read"):
        with pytest.raises(RunError, match="units") as error:
            UnitStore(tmp_path / "u", mode)
        assert "\n" not in str(error.value) and (tmp_path / "u").read_bytes() == content


def test_keys_are_secret_and_never_overwritten(tmp_path):
    first = home.new_key()
    assert home.new_key() == first == home.read_key() and len(first.secret) == 32
    path = tmp_path / "copy.key"
    assert home.write_key(first, path) and not home.write_key(OTHER, path)
    assert path.stat().st_mode & 0o777 == 0o600 and home.read_key(path) == first
    assert [p.name for p in tmp_path.iterdir()] == ["copy.key"]
    assert first.derived("a") != first.derived("b") and first.secret.hex() not in first.id
    path.write_bytes(b"short")
    with pytest.raises(RunError, match="5 bytes"):
        home.read_key(path)


def test_one_unit_stands_for_all_where_none_can_be_told_apart():
    found = units(np.ones((9, 2)))
    assert found.count == 1 and not found.rows and len(found.whole) == 1 and "only the name counts" in found.notes[0]
    assert isinstance(found, Units) and found.key == KEY.id
