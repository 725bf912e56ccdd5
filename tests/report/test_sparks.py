"""Curves of characters: what is high stands high, gaps stay gaps, and no curve is wider than its room."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from sordino.report.sparks import BLOCKS, PLAIN, binned, picture, spark

NAN = float("nan")


def dots(lines):
    """The dots of a picture of braille characters, as (column, row from the top)."""
    places = {
        0x01: (0, 0),
        0x02: (0, 1),
        0x04: (0, 2),
        0x40: (0, 3),
        0x08: (1, 0),
        0x10: (1, 1),
        0x20: (1, 2),
        0x80: (1, 3),
    }
    return {
        (2 * x + dx, 4 * y + dy)
        for y, line in enumerate(lines)
        for x, letter in enumerate(line)
        if letter != " "
        for bit, (dx, dy) in places.items()
        if (ord(letter) - 0x2800) & bit
    }


def test_a_rising_curve_rises_from_the_lowest_to_the_highest_mark():
    line = spark(np.linspace(0, 1, 8), 8)
    assert line == BLOCKS and spark(np.linspace(1, 0, 8), 8) == BLOCKS[::-1]
    assert spark(np.linspace(0, 1, 8), 8, plain=True) == PLAIN


def test_long_curves_are_means_of_equal_stretches_and_gaps_stay_gaps():
    values = np.arange(1000.0)
    assert binned(values, 4) == pytest.approx([124.5, 374.5, 624.5, 874.5])
    assert len(spark(values, 16)) == 16
    values[:500] = NAN
    assert spark(values, 4)[:2] == "  " and spark(values, 4)[2:] == BLOCKS[0] + BLOCKS[-1]
    values[501:] = NAN
    assert binned(values, 2)[1] == 500.0  # the mean of what is known


def test_nothing_to_draw_is_no_curve_and_a_constant_one_lies_in_the_middle():
    assert spark(np.array([]), 8) == "" == spark(np.array([NAN, NAN]), 8) == spark(np.array([1.0]), 0)
    assert set(spark(np.full(9, 3.0), 9)) <= set(BLOCKS[3:5])
    assert picture(np.array([NAN]), np.array([1.0]), 5, 2) == [" " * 5] * 2


def test_a_picture_joins_its_points_and_keeps_both_ends():
    lines = picture(np.array([1.0, 10.0, 20.0]), np.array([0.0, 1.0, 0.0]), 20, 3)
    drawn = dots(lines)
    assert [len(line) for line in lines] == [20] * 3
    assert (0, 11) in drawn and (39, 11) in drawn and min(row for _, row in drawn) == 0
    assert {column for column, _ in drawn} == set(range(40))  # no column between the points is empty
    by_column = [[row for c, row in drawn if c == column] for column in range(40)]
    gaps = [min(abs(a - b) for a in here for b in there) for here, there in pairwise(by_column)]
    assert max(gaps) <= 1


def test_a_run_that_goes_on_leaves_room_at_the_right():
    drawn = dots(picture(np.array([1.0, 5.0]), np.array([0.0, 1.0]), 10, 2, right=9.0))
    assert max(column for column, _ in drawn) in (9, 10)
    steep = dots(picture(np.arange(5000.0), np.arange(5000.0) % 2, 10, 2))
    assert {(column, row) for column in range(19) for row in range(8)} <= steep
