"""Rows in a form that no encoding, order or last digit changes."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch

from sordino.data import canonical
from sordino.data.canonical import column, ids, numbers, of_arrays, of_table, telling


def words(form):
    return form.block(0, form.rows)


def test_numbers_are_alike_to_six_digits_and_no_more():
    draw = np.random.default_rng(0)
    values = draw.normal(size=4000) * 10.0 ** draw.integers(-290, 290, 4000)
    shown = [f"{v:.5e}" for v in values]
    assert (numbers(values) == numbers(np.array([float(s) for s in shown]))).all()
    assert len(set(numbers(values).tolist())) == len(set(shown))
    same = [(1.0, 1.0000001), (0.1, np.float32(0.1)), (999999.6, 1e6), (0.0, -0.0), (1e-320, 0.0), (-2.5, -2.50000004)]
    for one, other in same:
        assert numbers(np.array([one]))[0] == numbers(np.array([other], dtype=np.float64))[0], (one, other)
    for one, other in [(1.0, 1.00001), (1.0, -1.0), (123456.0, 123457.0), (1.0, 10.0), (1e300, 1e299)]:
        assert numbers(np.array([one]))[0] != numbers(np.array([other]))[0], (one, other)


def test_wide_rows_survive_a_change_in_the_seventh_digit():
    x = np.random.default_rng(0).normal(size=(200, 784))
    one, other = (words(of_arrays(v).forms[0]) for v in (x, (x * (1 + 1e-7)).astype(np.float32)))
    assert (one == other).all(axis=1).mean() > 0.5
    assert not (one == words(of_arrays(x + 0.01).forms[0])).all(axis=1).any()
    fine = numbers(np.array([1.23449, 1.2345, 9.99996, 10.0, 0.0, -9.99996, -10.0, 255.0, 1e-7, 1.2344]))
    rough = canonical.coarse(fine)
    assert rough[2] == rough[3] and rough[5] == rough[6] and rough[0] == rough[9] != rough[1]
    assert len(set(rough.tolist())) == 7 and canonical.coarse(rough[4:5])[0] == fine[4]
    text, _ = column(pd.Series(["a", "b"]))
    assert (canonical.coarse(text) == text).all()


def test_words_keep_the_order_of_numbers_of_every_type():
    values = np.array([-1e9, -3.0, -1e-9, 0.0, 1e-9, 1.0, 1.5, 2.0, 254.0, 255.0, 1e12])
    found = numbers(values)
    assert (found[1:] > found[:-1]).all()
    whole = np.array([0, 1, 2, 254, 255])
    for kind in (np.uint8, np.int64, np.float32, np.float16):
        assert (numbers(whole.astype(kind)) == numbers(whole.astype(np.float64))).all()
    assert (numbers(np.array([True, False])) == numbers(np.array([1.0, 0.0]))).all()


def test_a_cell_is_its_value_however_it_is_written():
    texts, plain = column(pd.Series(["1", " 1.0", "1e0", "1.50", "yes", "yes ", "", "nan", "1,5"]))
    assert not plain and len({*texts[:3].tolist()}) == 1 and texts[4] == texts[5]
    assert len(set(texts.tolist())) == 5 and texts[0] == numbers(np.array([1.0]))[0] and texts[3] == texts[8]
    found, plain = column(pd.Series([1.0, None]))
    assert not plain and found[0] == texts[0] and found[1] == texts[6]
    assert column(pd.Series([3, 4], dtype="Int64"))[1]
    assert ids(np.array([1.0, 2.5])).tolist() == ["1", "2.5"] and ids(["a ", "-3.0"]).tolist() == ["a", "-3"]


@pytest.mark.parametrize("width", [1, 2, 3, 5, 8, 13, 20, 33, 64, 65, 130])
def test_rows_are_sorted_whatever_their_width(width):
    rows = np.random.default_rng(width).integers(0, 7, size=(200, width)).astype(np.uint64)
    assert (canonical._sorted(rows) == np.sort(rows, axis=1)).all()


def table(rows=50, seed=0):
    draw = np.random.default_rng(seed)
    return pd.DataFrame(draw.normal(size=(rows, 3)), columns=list("abc")).assign(y=draw.integers(0, 2, rows))


def by_kind(raw):
    return {form.kind: words(form) for form in raw.forms}


def test_the_forms_of_a_table():
    one = by_kind(of_table(table(), "y", None, None, None))
    assert len(one) == 3
    flipped = table()[["y", "c", "a", "b"]]
    other = by_kind(of_table(flipped, "y", None, None, None))
    assert one.keys() == other.keys() and all((one[k] == other[k]).all() for k in one)
    renamed = by_kind(of_table(table().assign(y=lambda t: t["y"] + 5), "y", None, None, None))
    same = [k for k in one if (one[k] == renamed[k]).all()]
    assert len(same) == 2  # all but the form with the label in it
    switched = by_kind(of_table(table(), "a", None, None, None))
    assert [k for k in one if k in switched and (one[k] == switched[k]).all()] == [k for k in one if k not in same]
    arrays = by_kind(of_arrays(table()[["b", "a", "c"]].to_numpy()))
    assert all((one[k] == found).all() for k, found in arrays.items()) and len(arrays) == 1


def test_roles_are_kept_apart():
    named = table().assign(split="train", who=[f"p{i % 7}" for i in range(50)], ward=[str(i % 3) for i in range(50)])
    raw = of_table(named, "y", "split", "who", "ward")
    assert raw.users.tolist()[:8] == [f"p{i % 7}" for i in range(8)] and set(raw.clients) == {"0", "1", "2"}
    other = of_table(named.assign(split="test"), "y", "split", "who", "ward")
    assert all((by_kind(raw)[k] == by_kind(other)[k]).all() for k in by_kind(raw) if k.startswith("columns"))
    renamed = of_table(named.assign(who=[f"q{i % 7}" for i in range(50)], ward="9"), "y", "split", "who", "ward")
    same = [(by_kind(raw)[k] == by_kind(renamed)[k]).all() for k in by_kind(raw) if k.startswith("columns")]
    assert sorted(same) == [False, True]  # new pseudonyms: one form has none of them
    assert "values 3" in by_kind(raw)  # a model's columns, without those that name someone


def test_arrays_in_parts_are_one_after_the_other():
    x = np.random.default_rng(0).normal(size=(11, 4, 3)).astype(np.float32)
    whole, parts = of_arrays(x), of_arrays(torch.from_numpy(x[:4]), x[:0], x[4:])
    for a, b in ((0, 11), (2, 9), (5, 6), (0, 4), (3, 5)):
        assert (whole.forms[0].block(a, b) == parts.forms[0].block(a, b)).all()


# --- whether rows tell people apart


@pytest.mark.parametrize(
    ("rows", "fine"),
    [
        (np.random.default_rng(0).normal(size=(40, 3)), True),
        (np.random.default_rng(0).normal(size=(5000, 3)), True),
        (np.random.default_rng(0).normal(size=(5000, 1)), False),  # one number: two tables will share some
        (np.random.default_rng(0).integers(0, 2, size=(500, 20)), False),  # twenty answers, yes or no
        (np.random.default_rng(0).integers(0, 2, size=(50, 784)), False),  # how many are black is all that is left
        (np.random.default_rng(0).integers(0, 256, size=(500, 784)).astype(np.uint8), True),
        (np.ones((300, 9)), False),
    ],
)
def test_rows_tell_people_apart_by_the_variety_of_their_columns(rows, fine):
    assert of_arrays(rows).forms[0].tells_apart() == fine


def test_answers_by_name_hold_more_than_their_number():
    draw = np.random.default_rng(0)
    many = pd.DataFrame(draw.integers(0, 2, size=(500, 60)), columns=[f"q{i}" for i in range(60)])
    found = {f.kind.split()[0]: f.tells_apart() for f in of_table(many, "q0", None, None, None).forms}
    assert found == {"columns": True, "values": False}


@pytest.mark.parametrize(
    ("names", "fine"),
    [
        ([str(i) for i in range(500)], False),
        ([f"patient-{i:06d}" for i in range(500)], False),
        (["north", "south", "west"], False),
        (["Saint Mary's Hospital, Boston", "Kantonsspital Aarau", "Charite Campus Mitte"], True),
        (["A", "B", "C"], False),
        (["only-one-site-of-this-name"], False),
        ([f"{v:012d}" for v in np.random.default_rng(0).integers(0, 10**12, 500)], True),
        ([f"{v:016x}" for v in np.random.default_rng(0).integers(0, 2**62, 500)], True),
    ],
)
def test_ids_name_people_anywhere_if_they_are_long_enough(names, fine):
    assert telling(names) == fine
