"""Views of pictures: what they are, whose draws they follow, how often each occurs."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.stats import chisquare

from sordino.contract.augment import augment
from sordino.core.errors import SpecError
from sordino.core.rng import Stream
from sordino.core.types import Batch

KEY = Stream.research(3).at("views")


def pictures(n, c=2, h=9, w=7):
    return torch.randn(n, c, h, w, generator=torch.Generator().manual_seed(n))


def every_view(x, kind):
    """The naive way: pad by reflection, cut out, mirror; one picture [c, h, w] -> {(flip, down, right): view}."""
    h, w = x.shape[1:]
    padded = F.pad(x.unsqueeze(0), (4, 4, 4, 4), mode="reflect")[0]
    shifts = [(a, b) for a in range(-4, 5) for b in range(-4, 5)] if kind == "flip-crop" else [(0, 0)]
    views = {}
    for down, right in shifts:
        cut = padded[:, 4 - down : 4 - down + h, 4 - right : 4 - right + w]
        views[False, down, right], views[True, down, right] = cut, cut.flip(2)
    return views


def found(x, seen, kind):
    """Which of the naive views the picture `seen` is."""
    return [name for name, view in every_view(x, kind).items() if torch.equal(view, seen)]


@pytest.mark.parametrize("kind", ["flip", "flip-crop"])
@pytest.mark.parametrize("shape", [(1, 9, 7), (3, 5, 5), (2, 32, 32)], ids=str)
def test_every_view_is_one_of_the_naive_ones(kind, shape):
    x = pictures(6, *shape)
    batch = Batch(x, torch.arange(6), (4, 0, 2))
    got, groups = augment(batch, kind, 3, KEY.rows([5, 8, 2]))
    assert got.sizes == (12, 0, 6) and groups == [3] * 6
    assert torch.equal(got.y, torch.arange(6).repeat_interleave(3))
    names = [found(x[i // 3], got.x[i], kind) for i in range(18)]
    assert all(names) and len({n[0] for n in names}) > 1  # in a small picture two names may be one view
    assert not any(found(x[(i // 3 + 1) % 6], got.x[i], kind) for i in range(18))


def test_one_view_is_no_group_and_none_is_nothing():
    batch = Batch(pictures(4), torch.arange(4), (4,))
    got, groups = augment(batch, "flip", 1, KEY.rows([0]))
    assert groups is None and got.sizes == (4,) and not torch.equal(got.x, batch.x)
    assert augment(batch, "none", 1, KEY.rows([0])) == (batch, None)
    got, groups = augment(batch, "none", 2, KEY.rows([0]))
    assert torch.equal(got.x, batch.x.repeat_interleave(2, 0)) and groups == [2] * 4


def test_a_client_s_views_depend_on_its_own_stream_alone():
    """Bit for bit, and again; another client's number of records, place or pictures leave no trace."""
    x = pictures(9)
    rng = KEY.rows([7, 3, 11])
    a, _ = augment(Batch(x, torch.zeros(9), (2, 3, 4)), "flip-crop", 4, rng)
    again, _ = augment(Batch(x, torch.zeros(9), (2, 3, 4)), "flip-crop", 4, rng)
    assert torch.equal(a.x, again.x)
    others = torch.cat((x[2:5], pictures(40)))
    b, _ = augment(Batch(others, torch.zeros(43), (3, 40)), "flip-crop", 4, KEY.rows([3, 7]))
    assert torch.equal(a.x[8:20], b.x[:12])
    c, _ = augment(Batch(others, torch.zeros(43), (3, 40)), "flip-crop", 4, KEY.at("next").rows([3, 7]))
    d, _ = augment(Batch(others, torch.zeros(43), (3, 40)), "flip-crop", 4, KEY.rows([4, 7]))
    assert not torch.equal(b.x[:12], c.x[:12]) and not torch.equal(b.x[:12], d.x[:12])


def counts(kind, views):
    """How often each (flip, down, right) occurs in views of one picture that shows them."""
    x = torch.arange(11.0 * 11).view(1, 1, 11, 11)
    got, _ = augment(Batch(x, torch.zeros(1), (1,)), kind, views, KEY.rows([1]))
    middle = got.x[:, 0, 5, 4:7].long()  # the row and columns that ended up in the middle
    flip = middle[:, 0] > middle[:, 2]
    down, side = 5 - middle[:, 1] // 11, 5 - middle[:, 1] % 11
    right = torch.where(flip, -side, side)
    return flip.numpy(), down.numpy(), right.numpy()


def test_flips_and_shifts_are_as_likely_as_said_and_independent():
    flip, down, right = counts("flip-crop", 40_000)
    cells = np.bincount(flip * 81 + (down + 4) * 9 + right + 4, minlength=162)
    assert chisquare(cells).pvalue > 1e-3
    skewed = cells * np.where(np.arange(162) < 81, 1.03, 0.97)  # the test can see three per cent more flips
    assert chisquare(skewed, skewed.sum() * np.ones(162) / 162).pvalue < 1e-3
    flip, down, right = counts("flip", 4_000)
    assert abs(flip.mean() - 0.5) < 0.03 and not down.any() and not right.any()


def test_an_empty_batch_stays_empty():
    got, groups = augment(Batch(pictures(1)[:0], torch.zeros(0), (0, 0)), "flip-crop", 3, KEY.rows([0, 1]))
    assert got.x.shape == (0, 2, 9, 7) and got.sizes == (0, 0) and groups == []


@pytest.mark.parametrize("x", [torch.zeros(3, 5), torch.zeros(3, 1, 4, 4, dtype=torch.int64)], ids=["rows", "whole"])
def test_pictures_only(x):
    with pytest.raises(SpecError, match="pictures"):
        augment(Batch(x, torch.zeros(3), (3,)), "flip", 1, KEY.rows([0]))


def test_kinds_and_views_are_checked():
    batch = Batch(pictures(2), torch.zeros(2), (2,))
    with pytest.raises(SpecError, match="kind"):
        augment(batch, "rotate", 1, KEY.rows([0]))
    with pytest.raises(SpecError, match="views"):
        augment(batch, "flip", 0, KEY.rows([0]))
