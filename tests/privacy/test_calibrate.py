import pytest

from sordino.core.errors import BudgetError, SpecError
from sordino.privacy.account import epsilon
from sordino.privacy.accountants import pld
from sordino.privacy.calibrate import noise_multiplier
from sordino.privacy.events import Composed, FixedSize, Gaussian, NonPrivate, Repeated, Sampled, Visible

PLANS = {
    "plain": lambda z: Gaussian(z),
    "rounds": lambda z: Repeated(Gaussian(z), 500),
    "sampled": lambda z: Repeated(Sampled(Gaussian(z), 0.05), 200),
    "fixed": lambda z: Repeated(FixedSize(Gaussian(z / 2), 10, 200), 50),
    "visible": lambda z: Repeated(Visible(Gaussian(z), 0.2), 20),
    "two parts": lambda z: Composed((Gaussian(z), Repeated(Gaussian(3 * z), 9))),
}


@pytest.mark.parametrize(
    ("name", "target", "delta"),
    [
        ("plain", 1.0, 1e-5),
        ("plain", 0.01, 1e-6),
        ("plain", 50.0, 1e-5),
        ("rounds", 2.0, 1e-5),
        ("rounds", 0.1, 1e-7),
        pytest.param("sampled", 1.5, 1e-5, marks=pytest.mark.slow),
        pytest.param("sampled", 0.05, 1e-5, marks=pytest.mark.slow),
        pytest.param("sampled", 30.0, 1e-5, marks=pytest.mark.slow),
        pytest.param("fixed", 3.0, 1e-5, marks=pytest.mark.slow),
        pytest.param("visible", 2.0, 1e-5, marks=pytest.mark.slow),
        ("two parts", 4.0, 1e-4),
    ],
)
def test_the_noise_is_enough_and_not_more_than_enough(name, target, delta):
    make = PLANS[name]
    z, grid = noise_multiplier(make, target, delta), pld.grid_for(target)
    assert epsilon(make(z), delta, grid) <= target
    assert epsilon(make(z), delta, grid) >= 0.995 * target
    assert epsilon(make(0.99 * z), delta, grid) > target


@pytest.mark.slow
def test_a_whole_sampled_round_is_calibrated():
    def make(z):
        return Repeated(Sampled(Repeated(Sampled(Gaussian(z), 0.2), 3), 0.3), 5)

    z, grid = noise_multiplier(make, 1.0, 1e-5), pld.grid_for(1.0)
    assert 0.995 < epsilon(make(z), 1e-5, grid) <= 1.0 < epsilon(make(0.99 * z), 1e-5, grid)


def test_a_smaller_target_needs_more_noise():
    found = [noise_multiplier(PLANS["rounds"], e, 1e-5) for e in (0.5, 1.0, 2.0, 8.0)]
    assert found[0] > found[1] > found[2] > found[3]


def test_impossible_targets_are_refused_with_the_lowest_reachable():
    with pytest.raises(BudgetError, match=r"no noise multiplier up to 100000 reaches epsilon=0\.001.*lowest"):
        noise_multiplier(lambda z: Repeated(Gaussian(z), 10**12), 1e-3, 1e-5)
    with pytest.raises(BudgetError, match="the server sees all"):
        noise_multiplier(lambda z: NonPrivate("the server sees all"), 1.0, 1e-5)


@pytest.mark.parametrize(
    ("target", "delta"), [(0, 1e-5), (-1, 1e-5), (float("inf"), 1e-5), (1, 0), (1, 1), (True, 1e-5)]
)
def test_a_budget_is_a_positive_number_and_a_delta_a_probability(target, delta):
    with pytest.raises(SpecError):
        noise_multiplier(Gaussian, target, delta)
