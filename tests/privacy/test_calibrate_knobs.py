"""Calibration of any knob, of whole numbers, and of many steps."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sordino.core.errors import BudgetError, SpecError
from sordino.privacy.accountants import gdp
from sordino.privacy.calibrate import noise_multiplier, smallest_multiple, steps_within
from sordino.privacy.events import Composed, GaussianEvent, NonPrivate, Pure, Repeated, Sampled
from sordino.privacy.mechanisms.binomial import BinomialEvent
from sordino.privacy.mechanisms.laplace import LaplaceEvent
from sordino.privacy.mechanisms.skellam import SkellamEvent
from sordino.privacy.mechanisms.staircase import StaircaseEvent
from sordino.privacy.tightest import epsilon

PLANS = {
    "gaussian": lambda z: Repeated(GaussianEvent(z), 50),
    "sampled": lambda z: Repeated(Sampled(GaussianEvent(z), 0.05), 200),
    "laplace": lambda z: Repeated(Sampled(LaplaceEvent(z), 0.1), 30),
    "pure": lambda z: Repeated(Pure(1 / z), 20),
    "staircase": lambda z: Repeated(StaircaseEvent(1 / z, 0.4), 10),
    "skellam": lambda z: Repeated(SkellamEvent(16 * z * z, 8.0, 4.0), 5),
    "schedule": lambda z: Composed(
        (Repeated(Sampled(GaussianEvent(z), 0.1), 10), Repeated(Sampled(GaussianEvent(2 * z), 0.2), 9))
    ),
}


@settings(max_examples=20, deadline=None)
@given(
    name=st.sampled_from(sorted(PLANS)),
    target=st.floats(-1.5, 2).map(lambda x: 10**x),
    delta=st.floats(-9, -3).map(lambda x: 10**x),
)
def test_a_knob_is_never_above_the_target_and_hardly_below(name, target, delta):
    z = noise_multiplier(PLANS[name], target, delta)
    assert 0.995 * target <= epsilon(PLANS[name](z), delta) <= target


def test_few_looks_are_enough():
    looks = []

    def counted(z):
        looks.append(z)
        return PLANS["sampled"](z)

    noise_multiplier(counted, 0.3, 1e-5)
    assert len(set(looks)) <= 12


def test_sizes_that_a_mechanism_refuses_count_as_no_noise():
    def make(z):
        if not 0.5 <= z <= 1e4:
            raise SpecError("z must be from 0.5 to 1e4.")
        return GaussianEvent(z)

    assert noise_multiplier(make, 1e3, 1e-5) == pytest.approx(0.5, rel=1e-6)  # as little as there is
    assert 0.995 * 0.3 <= epsilon(make(noise_multiplier(make, 0.3, 1e-5)), 1e-5) <= 0.3
    with pytest.raises(BudgetError, match="reaches epsilon=1e-05"):
        noise_multiplier(make, 1e-5, 1e-9)

    def far(z):
        if z < 200:
            raise SpecError("z must be at least 200.")
        return GaussianEvent(z)

    assert noise_multiplier(far, 100.0, 1e-5) == pytest.approx(200, rel=1e-6)


def test_what_is_never_allowed_says_why():
    def refuse(z):
        raise SpecError("no l2 bound was given.")

    with pytest.raises(SpecError, match="no l2 bound"):
        noise_multiplier(refuse, 1.0, 1e-5)
    with pytest.raises(BudgetError, match="the server sees all"):
        noise_multiplier(lambda z: NonPrivate("the server sees all"), 1.0, 1e-5)
    with pytest.raises(BudgetError, match="Use fewer rounds"):
        noise_multiplier(lambda z: Composed((Pure(2.0), GaussianEvent(z))), 1.0, 1e-5)


@pytest.mark.parametrize(("target", "delta"), [(0, 1e-5), (-1, 1e-5), (float("nan"), 1e-5), (1, 0), (1, 1)])
def test_a_budget_is_a_positive_number_and_a_delta_a_probability(target, delta):
    for search in (noise_multiplier, lambda *args: steps_within(*args, most=5)):
        with pytest.raises(SpecError):
            search(lambda n: GaussianEvent(float(n)), target, delta)


def test_the_least_whole_number():
    def make(n):
        return BinomialEvent(n, 1, 3.0, 3.0, 3, 1e-6)

    good = [n for n in range(100, 900, 2) if epsilon(make(n), 1e-5) <= 2.0]
    assert 110 < min(good) < 800
    found = smallest_multiple(make, 2.0, 1e-5, near=min(good) + 2 * (min(good) // 200), step=2)
    assert found == min(good)


@pytest.mark.parametrize("most", [1, 7, 1000, 10**9])
@pytest.mark.parametrize("z", [0.5, 3.0, 20.0, 60.0])
def test_the_most_steps_are_those_that_the_exact_level_allows(z, most):
    allowed = math.floor((gdp.mu_for(1.0, 1e-5) * z) ** 2)  # n Gaussians are sqrt(n)/z-GDP
    assert steps_within(lambda n: Repeated(GaussianEvent(z), n), 1.0, 1e-5, most) == min(allowed, most)


def test_many_steps_take_few_looks_and_are_nearly_the_most():
    looks = []

    def make(n):
        looks.append(n)
        return Repeated(Sampled(GaussianEvent(4.0), 0.01), n)

    found = steps_within(make, 2.0, 1e-5, 10**9)
    assert len(looks) < 25
    assert 2 * (1 - 1e-3) < epsilon(make(found), 1e-5) <= 2.0
    assert epsilon(make(int(1.002 * found)), 1e-5) > 2.0


def test_nothing_fits_and_everything_fits():
    assert steps_within(lambda n: Repeated(Pure(3.0), n), 1.0, 1e-5, 100) == 0
    assert steps_within(lambda n: Repeated(GaussianEvent(1e6), n), 1.0, 1e-5, 12345) == 12345
