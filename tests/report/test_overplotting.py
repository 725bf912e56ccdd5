"""Which curves lie on each other, and how those are drawn."""

import numpy as np
import pytest

from sordino.report import overplotting


def band(mean, spread=0.5, rounds=None):
    mean = np.array(mean, dtype=np.float64)
    at = np.arange(1.0, len(mean) + 1) if rounds is None else np.array(rounds, dtype=np.float64)
    return at, mean, mean - spread, mean + spread


def test_near_is_a_hundredth_of_what_is_shown():
    assert overplotting.reach([band([10, 20]), band([50, 100], spread=9.5)]) == pytest.approx(0.01 * (109.5 - 9.5))
    assert overplotting.reach([band([5, 5], spread=0.0)]) > 0


def test_curves_are_one_that_are_near_at_half_of_the_rounds():
    first, half, less = band([1, 2, 3, 4]), band([9, 9, 3.1, 3.9]), band([7, 7, 7, 4])
    assert overplotting.groups([first, less, half], 0.2) == [[0, 2], [1]]
    assert overplotting.groups([first, less, half], 0.01) == [[0], [1], [2]]


def test_a_curve_that_stops_early_counts_by_the_rounds_of_the_longer():
    long = band([1, 2, 3, 4])
    assert overplotting.groups([long, band([1, 2])], 0.1) == [[0, 1]]
    assert overplotting.groups([long, band([1])], 0.1) == [[0], [1]]
    assert overplotting.groups([long, band([2, 4], rounds=[2, 4])], 0.1) == [[0, 1]]  # evaluated more rarely
    assert overplotting.groups([long, band([1, 2], rounds=[2, 4])], 0.1) == [
        [0],
        [1],
    ]  # the place in a list is no round


def test_some_are_always_alone():
    same = [band([1, 2])] * 4
    assert overplotting.groups(same, 0.1, alone=[0, 2]) == [[0], [1, 3], [2]]


def test_a_spread_is_covered_by_the_same_one_drawn_later_only():
    bands = [band([1, 2]), band([1, 2], spread=3.0), band([1, 2])]
    assert [overplotting.covered(bands, [0, 1, 2], place, 0.1) for place in range(3)] == [True, False, False]


@pytest.mark.parametrize("size", [2, 3, 7, 12])
def test_turns_fill_the_way_once(size):
    """Each point of the way is inside one dash: by the definition of a dash pattern, which starts at its offset."""
    group = [3 * i for i in range(size)]
    way = np.arange(0.25, 200, 0.5)
    inside = np.zeros(len(way), dtype=int)
    for place in group:
        offset, (on, off) = overplotting.way(group, place, 10)["linestyle"]
        inside += (way + offset) % (on + off) < on
    assert set(inside) == {1}


@pytest.mark.parametrize("rounds", [1, 3, 5, 100])
def test_markers_at_the_same_round_lie_inside_each_other(rounds):
    group = list(range(5))
    ways = [overplotting.way(group, place, rounds) for place in group]
    for i, one in enumerate(ways):
        assert one["markevery"][0] < rounds  # there is one
        for later in ways[i + 1 :]:
            apart = one["markevery"] != later["markevery"]
            assert apart or one["markersize"] > later["markersize"]
    if rounds == 100:
        firsts = sorted(way["markevery"][0] for way in ways)
        assert min(np.diff(firsts)) >= 12 and ways[0]["markevery"][1] >= 5 * 12  # about eight in all, not forty


def test_equal_is_number_for_number_in_every_panel():
    one, other, nearly = band([1, 2]), band([1, 2]), band([1, np.nextafter(2, 3)])
    assert overplotting.equals([{"a": one, "b": other, "c": nearly, "d": band([1, 2], spread=0.4)}]) == [["a", "b"]]
    assert overplotting.equals([{"a": one, "b": other}, {"a": one, "b": nearly}]) == []
    assert overplotting.equals([{"a": one, "b": other}, {"a": one}]) == []  # b is not there
    assert overplotting.equals([{"a": one, "x": nearly}, {"b": one, "x": nearly}]) == []
