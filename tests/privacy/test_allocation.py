import math

import numpy as np
import pytest

from sordino.core.errors import SpecError
from sordino.privacy import allocation
from sordino.privacy.pairs import gaussian_delta


def test_golden_budget():
    assert allocation.budget_mu(1.0, 1e-5) == pytest.approx(0.268051123211, rel=1e-9)
    assert allocation.budget_rho(1.0, 1e-5) == pytest.approx(0.0359257023274, rel=1e-9)


@pytest.mark.parametrize("epsilon", [1e-3, 0.5, 8.0, 100.0, 5000.0])
@pytest.mark.parametrize("delta", [0.3, 1e-5, 1e-12])
def test_the_budget_never_promises_too_much(epsilon, delta):
    mu = allocation.budget_mu(epsilon, delta)
    assert gaussian_delta(mu, epsilon) <= delta * (1 + 1e-12) < gaussian_delta(mu * (1 + 1e-6), epsilon)


def test_golden_geometric_noise():
    stds = allocation.geometric_stds(0.02, 0.95, 40)
    assert stds[0] == pytest.approx(56.7551617517, rel=1e-9) and len(stds) == 40
    assert np.allclose(stds[1:] ** 2 / stds[:-1] ** 2, 0.95, rtol=1e-12)
    assert (1 / (2 * stds**2)).sum() == pytest.approx(0.02, rel=1e-12)
    assert np.allclose(allocation.geometric_stds(0.02, 0.95, 40, sensitivity=2.0), 2 * stds)
    assert np.allclose(allocation.geometric_stds(0.02, 1.0, 8), math.sqrt(8 / 0.04))  # no ratio: all alike
    for ratio in (0.5, 3.0):
        assert (9 / (2 * allocation.geometric_stds(0.7, ratio, 200, 3.0) ** 2)).sum() == pytest.approx(0.7, rel=1e-9)


def test_golden_components():
    ranges = np.array([1.0, 2.0, 3.0, 4.0])
    variances = allocation.component_variances(ranges, 2.0)
    assert variances.sum() == pytest.approx(400, rel=1e-12)
    assert (ranges**2 / variances).sum() == pytest.approx(1 / 4, rel=1e-12)
    assert 4 * 4 * (ranges**2).sum() == 480  # of equal relative noise, which is no better


def test_no_other_components_do_better():
    rng, ranges = np.random.default_rng(2), np.array([0.2, 1.0, 5.0])
    best = allocation.component_variances(ranges, 1.5).sum()
    for _ in range(500):
        other = rng.uniform(0.1, 10, 3)
        other *= (ranges**2 / other).sum() * 1.5**2  # the same mu
        assert other.sum() >= best * (1 - 1e-12)
    assert allocation.component_variances([0.0, 1.0], 1.0).tolist() == [0.0, 1.0]


def test_the_next_rho_of_the_worked_example():
    rho = allocation.next_rho(0.95 * allocation.budget_rho(1.0, 1e-5), 40, 0.7, 2.0)
    assert rho == pytest.approx(6.09454e-4, rel=1e-5) and 1 / math.sqrt(2 * rho) == pytest.approx(28.6427, rel=1e-5)


def test_no_sequence_of_ratios_spends_more_than_the_budget():
    rng = np.random.default_rng(4)
    for slope in (0.0, 1.0, 2.0):
        for ratios in (np.zeros(40), np.ones(40), rng.uniform(size=40)):
            left, spent = 0.036, 0.0
            for t, ratio in enumerate(ratios):
                rho = allocation.next_rho(left, 40 - t, float(ratio), slope)
                assert 0 <= rho <= left
                left, spent = left - rho, spent + rho
            assert spent <= 0.036 * (1 + 1e-12)
    assert allocation.next_rho(1.0, 10, 0.9, 1.0) < allocation.next_rho(1.0, 10, 0.1, 1.0)  # more noise for more ratio
    assert allocation.next_rho(1.0, 10, 0.9, 0.0) == pytest.approx(0.1)


@pytest.mark.parametrize(
    "make",
    [
        lambda: allocation.budget_mu(0.0, 1e-5),
        lambda: allocation.budget_mu(1.0, 0.0),
        lambda: allocation.budget_mu(math.nan, 1e-5),
        lambda: allocation.geometric_stds(0.0, 0.9, 4),
        lambda: allocation.geometric_stds(1.0, -0.9, 4),
        lambda: allocation.geometric_stds(1.0, 0.9, 0),
        lambda: allocation.geometric_stds(1.0, 1e-200, 100),
        lambda: allocation.component_variances([], 1.0),
        lambda: allocation.component_variances([1.0, -1.0], 1.0),
        lambda: allocation.component_variances([1.0, math.nan], 1.0),
        lambda: allocation.component_variances([1.0], 0.0),
        lambda: allocation.next_rho(-1.0, 4, 0.5, 1.0),
        lambda: allocation.next_rho(1.0, 0, 0.5, 1.0),
        lambda: allocation.next_rho(1.0, 4, 1.5, 1.0),
        lambda: allocation.next_rho(1.0, 4, math.nan, 1.0),
        lambda: allocation.next_rho(1.0, 4, 0.5, 2.5),
    ],
)
def test_nonsense_is_refused(make):
    with pytest.raises(SpecError):
        make()
