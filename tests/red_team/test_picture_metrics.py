"""Metrics of pictures against values by hand and a naive second implementation."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from sordino.core.errors import SpecError
from sordino.red_team import picture_metrics as metrics


def naive_ssim(x, y, data_range=1.0):
    """SSIM of two grey pictures, window by window."""
    weights = np.array([[math.exp(-(i * i + j * j) / 4.5) for j in range(-5, 6)] for i in range(-5, 6)])
    weights /= weights.sum()
    c1, c2 = (0.01 * data_range) ** 2, (0.03 * data_range) ** 2
    values = []
    for i in range(x.shape[0] - 10):
        for j in range(x.shape[1] - 10):
            a, b = x[i : i + 11, j : j + 11], y[i : i + 11, j : j + 11]
            ma, mb = (weights * a).sum(), (weights * b).sum()
            va, vb = (weights * (a - ma) ** 2).sum(), (weights * (b - mb) ** 2).sum()
            ab = (weights * (a - ma) * (b - mb)).sum()
            values.append((2 * ma * mb + c1) * (2 * ab + c2) / ((ma**2 + mb**2 + c1) * (va + vb + c2)))
    return np.mean(values)


def test_errors_by_hand():
    a, b = torch.zeros(2, 1, 2, 2), torch.tensor([[0.5, -0.5, 0.5, -0.5], [0.1, 0.0, 0.0, 0.3]]).view(2, 1, 2, 2)
    assert metrics.mse(a, b).tolist() == pytest.approx([0.25, 0.025])
    assert metrics.mae(a, b).tolist() == pytest.approx([0.5, 0.1])
    assert metrics.psnr(a, b).tolist() == pytest.approx([10 * math.log10(4), 10 * math.log10(40)])
    assert metrics.psnr(a, b, data_range=2.0)[0].item() == pytest.approx(10 * math.log10(16))


def test_ssim_of_flat_pictures_by_hand():
    """Without variance only the means count: (2 a b + c1) / (a^2 + b^2 + c1)."""
    a, b = torch.full((1, 1, 16, 16), 0.5), torch.full((1, 1, 16, 16), 0.25)
    assert metrics.ssim(a, b).item() == pytest.approx((0.25 + 1e-4) / (0.3125 + 1e-4))
    assert metrics.ssim(a, a).item() == pytest.approx(1.0)


def test_ssim_equals_a_naive_implementation():
    draw = np.random.default_rng(0)
    x = draw.random((2, 3, 14, 13))
    y = np.clip(x + 0.2 * draw.normal(size=x.shape), 0, 1)
    ours = metrics.ssim(torch.from_numpy(x), torch.from_numpy(y)).numpy()
    naive = [np.mean([naive_ssim(a, b) for a, b in zip(p, q, strict=True)]) for p, q in zip(x, y, strict=True)]
    np.testing.assert_allclose(ours, naive, rtol=1e-9)
    assert abs(ours[0] - naive_ssim(x[0, 0], y[0, 0], 2.0)) > 1e-4  # another range gives another value


def test_ssim_of_negatives_is_negative():
    x = torch.rand(1, 1, 20, 20, generator=torch.Generator().manual_seed(0))
    assert metrics.ssim(x, 1 - x).item() < -0.8


def test_batches_are_matched_in_the_best_order():
    true = torch.rand(5, 1, 4, 4, generator=torch.Generator().manual_seed(1))
    order = torch.tensor([3, 0, 4, 1, 2])
    made = true[order] + 0.01
    assert torch.equal(made[metrics.matched(made, true)], true + 0.01)
    with pytest.raises(SpecError, match="4 reconstructions cannot be matched"):
        metrics.matched(made[:4], true)


def test_identification_counts_the_nearest():
    gallery = torch.tensor([[0.0], [1.0], [2.0], [3.0]])
    made = torch.tensor([[0.1], [1.2], [2.9], [0.4]])
    assert metrics.distances(made, gallery)[0].tolist() == pytest.approx([0.01, 0.81, 3.61, 8.41])
    assert metrics.identification_rate(made, gallery, torch.tensor([0, 1, 2, 0])) == 0.75


def test_ssim_refuses_what_it_cannot_compare():
    with pytest.raises(SpecError, match="at least 11 x 11"):
        metrics.ssim(torch.zeros(1, 1, 8, 8), torch.zeros(1, 1, 8, 8))
    with pytest.raises(SpecError, match="ssim compares pictures"):
        metrics.ssim(torch.zeros(1, 1, 12, 12), torch.zeros(1, 3, 12, 12))
