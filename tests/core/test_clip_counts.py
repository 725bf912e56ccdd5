"""Counting of what clips shorten."""

from __future__ import annotations

import math
import threading

import torch

from sordino.core import clip_counts
from sordino.core.clip_counts import ClipCounts
from sordino.privacy.clip import clip_rows

ROWS = torch.tensor([[3.0, 4.0], [0.0, 0.5], [math.nan, 0.0], [math.inf, 1.0]])  # norms 5, 0.5 and two without one


def test_every_row_is_counted_once_and_lengths_are_in_bounds():
    counts = ClipCounts()
    with clip_counts.counting(counts):
        clip_rows(ROWS, 2.0)
    assert (counts.contributions, counts.shortened, counts.finite) == (4, 3, 2)
    assert counts.lengths == 2.75


def test_counting_changes_nothing_of_what_is_clipped():
    with clip_counts.counting(ClipCounts()):
        counted = clip_rows(ROWS, 2.0)
    assert torch.equal(counted.value, clip_rows(ROWS, 2.0).value)


def test_a_row_exactly_at_the_bound_is_not_too_long():
    counts = ClipCounts()
    with clip_counts.counting(counts):
        clip_counts.note(torch.tensor([2.0]), 2.0)
    assert counts.shortened == 0 and counts.lengths == 1.0


def test_nothing_is_counted_outside_the_block_or_in_another_thread():
    counts = ClipCounts()
    with clip_counts.counting(counts):
        other = threading.Thread(target=clip_rows, args=(ROWS, 1.0))
        other.start()
        other.join()
        with clip_counts.counting(None):
            clip_rows(ROWS, 1.0)
    clip_rows(ROWS, 1.0)
    assert counts == ClipCounts()


def test_counts_add_up_and_begin_anew():
    counts, more = ClipCounts(2, 1, 1.5, 2), ClipCounts(1, 1, 0.5, 0)
    counts.add(more)
    assert counts.take() == ClipCounts(3, 2, 2.0, 2)
    assert counts == ClipCounts()
