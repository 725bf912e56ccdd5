import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sordino.core.errors import BudgetError, SpecError
from sordino.privacy.calibrate import noise_multiplier, steps_within
from sordino.privacy.events import Composed, FixedSize, GaussianEvent, NonPrivate, Pure, Repeated, Sampled, Visible
from sordino.privacy.tightest import epsilon

PLANS = {
    "plain": lambda z: GaussianEvent(z),
    "rounds": lambda z: Repeated(GaussianEvent(z), 500),
    "sampled": lambda z: Repeated(Sampled(GaussianEvent(z), 0.05), 200),
    "fixed": lambda z: Repeated(FixedSize(GaussianEvent(z / 2), 10, 200), 50),
    "replaced": lambda z: Repeated(Sampled(GaussianEvent(z), 0.05, "replace"), 100),
    "pure": lambda z: Repeated(Sampled(Pure(1 / z), 0.1), 100),
    "schedule": lambda z: Composed(tuple(Sampled(GaussianEvent(z * (1 + i / 60)), 0.1) for i in range(60))),
    "visible": lambda z: Repeated(Visible(GaussianEvent(z), 0.2), 20),
    "two parts": lambda z: Composed((GaussianEvent(z), Repeated(GaussianEvent(3 * z), 9))),
}


@pytest.mark.parametrize(
    ("name", "target", "delta"),
    [
        ("plain", 1.0, 1e-5),
        ("plain", 0.01, 1e-6),
        ("plain", 50.0, 1e-5),
        ("rounds", 2.0, 1e-5),
        ("rounds", 0.1, 1e-7),
        ("sampled", 1.5, 1e-5),
        ("sampled", 0.05, 1e-5),
        ("sampled", 30.0, 1e-5),
        ("fixed", 3.0, 1e-5),
        ("visible", 2.0, 1e-5),
        ("two parts", 4.0, 1e-4),
        ("replaced", 2.0, 1e-5),
        ("pure", 1.0, 1e-6),
        ("pure", 0.01, 1e-9),
        ("schedule", 3.0, 1e-5),
        ("sampled", 1e-3, 1e-5),
        ("sampled", 1e3, 1e-5),
        ("rounds", 1e3, 1e-12),
    ],
)
def test_the_noise_is_enough_and_not_more_than_enough(name, target, delta):
    make = PLANS[name]
    z = noise_multiplier(make, target, delta)
    assert epsilon(make(z), delta) <= target
    assert epsilon(make(z), delta) >= 0.995 * target
    assert epsilon(make(0.99 * z), delta) > target


@pytest.mark.slow
def test_a_whole_sampled_round_is_calibrated():
    def make(z):
        return Repeated(Sampled(Repeated(Sampled(GaussianEvent(z), 0.2), 3), 0.3), 5)

    z = noise_multiplier(make, 1.0, 1e-5)
    assert 0.995 < epsilon(make(z), 1e-5) <= 1.0 < epsilon(make(0.99 * z), 1e-5)


def test_a_smaller_target_needs_more_noise():
    found = [noise_multiplier(PLANS["rounds"], e, 1e-5) for e in (0.5, 1.0, 2.0, 8.0)]
    assert found[0] > found[1] > found[2] > found[3]


def test_impossible_targets_are_refused_with_the_lowest_reachable():
    with pytest.raises(BudgetError, match=r"no noise multiplier up to 1e\+06 reaches epsilon=0\.001.*lowest"):
        noise_multiplier(lambda z: Repeated(GaussianEvent(z), 10**16), 1e-3, 1e-5)
    with pytest.raises(BudgetError, match="the server sees all"):
        noise_multiplier(lambda z: NonPrivate("the server sees all"), 1.0, 1e-5)


@pytest.mark.parametrize(
    ("target", "delta"), [(0, 1e-5), (-1, 1e-5), (float("inf"), 1e-5), (1, 0), (1, 1), (True, 1e-5)]
)
def test_a_budget_is_a_positive_number_and_a_delta_a_probability(target, delta):
    with pytest.raises(SpecError):
        noise_multiplier(GaussianEvent, target, delta)


@settings(max_examples=25, deadline=None)
@given(
    name=st.sampled_from(sorted(PLANS)),
    target=st.floats(-3, 3).map(lambda x: 10**x),
    delta=st.floats(-12, -2).map(lambda x: 10**x),
)
def test_calibration_is_never_above_the_target_and_hardly_below(name, target, delta):
    z = noise_multiplier(PLANS[name], target, delta)
    assert 0.995 * target <= epsilon(PLANS[name](z), delta) <= target


@pytest.mark.parametrize("most", [1, 7, 1000])
def test_the_largest_number_of_steps_within_a_budget(most):
    for z in (0.5, 3.0, 20.0):
        found = steps_within(lambda n, z=z: Repeated(GaussianEvent(z), n), 1.0, 1e-5, most)
        within = [n for n in range(most + 1) if epsilon(Repeated(GaussianEvent(z), n), 1e-5) <= 1.0]
        assert found == max(within)
