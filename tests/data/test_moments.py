"""Bounded sums for private standardisation."""

import math

import pytest
import torch

from sordino.core.errors import DataError, SpecError
from sordino.data import moments

X = torch.randn(500, 3, generator=torch.Generator().manual_seed(0)) * torch.tensor([1.0, 4.0, 0.5]) + 2


def test_one_record_moves_the_sums_by_no_more_than_is_said():
    total, square, sensitivity = moments.sums(X, 3.0)
    assert sensitivity == math.sqrt(6)
    for x in ([1e9] * 3, [-1e9] * 3, [float("inf")] * 3, [float("nan")] * 3, [3.0, -3.0, 3.0]):
        more = moments.sums(torch.cat([X, torch.tensor([x])]), 3.0)
        moved = torch.cat([more[0] - total, more[1] - square]).norm()
        assert moved <= sensitivity + 1e-9
    assert moved == pytest.approx(sensitivity)  # and by that much at worst
    assert torch.equal(moments.sums(torch.full((4, 1), float("nan")), 3.0)[1], torch.zeros(1))


def test_totals_without_noise_standardise():
    total, square, _ = moments.sums(X, 100.0)
    shift, scale = moments.standardise(total, square, len(X), 100.0, floor=1e-6)
    ready = (X - shift) / scale
    assert ready.mean(0).abs().max() < 1e-5 and (ready.std(0, unbiased=False) - 1).abs().max() < 1e-4


def test_noise_makes_no_scale_zero_or_negative():
    shift, scale = moments.standardise(torch.tensor([1e6, -5.0]), torch.tensor([-9.0, 1e9]), 100, 10.0)
    assert shift.tolist() == [10.0, -0.5] and scale[0] == pytest.approx(0.1) and scale[1] == 10.0


def test_bad_input_is_refused():
    with pytest.raises(SpecError, match="bound"):
        moments.sums(X, 0.0)
    with pytest.raises(DataError, match="features"):
        moments.sums(X[:, 0], 1.0)
    with pytest.raises(SpecError, match="records"):
        moments.standardise(X[0], X[0], 0, 1.0)
