"""The one question for all theories, and its ways of asking."""

import math

import numpy as np
import pytest
from scipy.stats import norm

from sordino.core.errors import SpecError, UnsupportedEvent
from sordino.privacy import tightest
from sordino.privacy.accountants import gdp, kov, pld, rdp, zcdp
from sordino.privacy.events import (
    Approximate,
    Composed,
    FixedSize,
    GaussianEvent,
    NonPrivate,
    Parallel,
    Pure,
    Repeated,
    Sampled,
    Visible,
)
from sordino.privacy.mechanisms.discrete_gaussian import DiscreteGaussianEvent
from sordino.privacy.mechanisms.exponential import ExponentialEvent
from sordino.privacy.mechanisms.laplace import LaplaceEvent, LaplaceL2Event
from support.accountants import by_accountant

STEPS = Repeated(Sampled(GaussianEvent(1.0), 0.01), 1000)


def test_golden_values():
    assert tightest.epsilon(STEPS, 1e-5) == pytest.approx(1.82823666593, abs=5e-6)
    assert tightest.epsilon(GaussianEvent(1.0), 1e-5) == pytest.approx(4.37717809568, rel=1e-9)
    assert tightest.epsilon(Repeated(Pure(0.1), 100), 1e-5) == pytest.approx(4.30679137252, rel=1e-6)
    assert tightest.epsilon(Repeated(Sampled(LaplaceEvent(2.0), 0.05), 300), 1e-5) == pytest.approx(
        1.60971156383, abs=1e-5
    )
    assert tightest.epsilon(DiscreteGaussianEvent(2.0), 1e-5) == pytest.approx(2.16571554518, rel=1e-9)


def test_the_best_theory_wins_whichever_it_is():
    """Each of these is won by another accountant."""
    won = {}
    for name, event, delta in (
        ("gdp", Repeated(GaussianEvent(2.0), 7), 1e-5),
        ("kov", Repeated(Pure(0.1), 16), 1e-5),
        ("zcdp", Repeated(LaplaceL2Event(3.0), 7), 1e-5),
        ("rdp", Repeated(ExponentialEvent(0.5), 5), 1e-5),
        ("pld", STEPS, 1e-5),
        ("basic", Composed((Pure(0.3), Pure(0.4))), 1e-12),
    ):
        found = by_accountant(event, delta)
        least = min(found.values())
        won[name] = found[name] <= least * (1 + 1e-9)
        assert tightest.epsilon(event, delta) == pytest.approx(least, rel=1e-6)
    assert all(won.values()), won


def test_no_promise_is_an_infinite_epsilon_with_its_reason():
    said = tightest.explain(Composed((GaussianEvent(1.0), NonPrivate("no noise at all"))), 1e-5)
    assert [(a.accountant, a.epsilon, a.valid, a.note) for a in said] == [("none", math.inf, True, "no noise at all")]


def test_a_silent_theory_says_why():
    said = {a.accountant: a for a in tightest.explain(Repeated(Sampled(GaussianEvent(1.0), 0.1, "replace"), 3), 1e-5)}
    for name in ("rdp", "zcdp", "gdp"):
        assert said[name].epsilon is None and not said[name].valid and name in said[name].note
    assert said["pld"].valid and not said.get("gdp-clt", said["rdp"]).valid


def test_the_central_limit_is_shown_and_never_taken():
    said = {a.accountant: a for a in tightest.explain(STEPS, 1e-5)}
    assert not said["gdp-clt"].valid and said["gdp-clt"].epsilon < tightest.epsilon(STEPS, 1e-5)
    assert "gdp-clt" not in by_accountant(STEPS, 1e-5)


@pytest.mark.parametrize("delta", [0, 1, -1e-5, 1.5, math.nan, math.inf, True, "1e-5", None])
def test_a_delta_is_a_number_between_zero_and_one(delta):
    for ask in (tightest.epsilon, tightest.explain):
        with pytest.raises((SpecError, TypeError)):
            ask(GaussianEvent(1.0), delta)


@pytest.mark.parametrize("epsilon", [-1e-9, math.nan, math.inf, True, "1"])
def test_an_epsilon_is_a_number_of_at_least_zero(epsilon):
    with pytest.raises(SpecError):
        tightest.delta(GaussianEvent(1.0), epsilon)


@pytest.mark.parametrize("event", [
    Sampled(FixedSize(GaussianEvent(1.0), 1, 10), 0.5), FixedSize(Sampled(GaussianEvent(1.0), 0.5), 1, 10),
    FixedSize(Parallel((GaussianEvent(1.0), Pure(1.0)), by_place=True), 1, 10),
    Composed((Sampled(GaussianEvent(1.0), 0.5), FixedSize(GaussianEvent(1.0), 1, 10))),
])  # fmt: skip
def test_what_no_theory_covers_is_refused(event):
    for ask in (
        lambda: tightest.epsilon(event, 1e-5),
        lambda: tightest.explain(event, 1e-5),
        lambda: tightest.delta(event, 1.0),
    ):
        with pytest.raises(UnsupportedEvent):
            ask()


@pytest.mark.slow
def test_small_deltas_are_left_to_those_who_can():
    """Below 1e-200 losses are not added up; below 1e-15 moments may be better than a grid."""
    for delta in (1e-30, 1e-100, 1e-300):
        found = tightest.epsilon(STEPS, delta)
        assert pld.epsilon(STEPS, 1e-12) < found <= rdp.epsilon(STEPS, delta)
    assert tightest.epsilon(Repeated(Pure(0.5), 3), 1e-300) <= 1.5


def test_ten_million_steps_are_no_dearer_than_rdp_says():
    event = Repeated(Sampled(GaussianEvent(2.0), 1e-4), 10**7)
    assert rdp.epsilon(event, 1e-8) == pytest.approx(0.905, abs=5e-4)
    assert 0.85 < tightest.epsilon(event, 1e-8, pld.ROUGH) <= 0.905


def test_a_schedule_of_unlike_steps():
    """60 noises that grow slowly: between 60 steps of the least and of the most noise; the outlier is paid for."""
    zs = [1.0 + 0.01 * i for i in range(60)]
    event = Composed(tuple(Sampled(GaussianEvent(z), 0.02) for z in zs))
    found = tightest.epsilon(event, 1e-5)
    ends = [tightest.epsilon(Repeated(Sampled(GaussianEvent(z), 0.02), 60), 1e-5, pld.ROUGH) for z in (zs[0], zs[-1])]
    assert ends[1] < found < ends[0] and found <= rdp.epsilon(event, 1e-5)
    with_one = Composed((Sampled(GaussianEvent(0.4), 0.02), event))
    assert found < tightest.epsilon(with_one, 1e-5) <= rdp.epsilon(with_one, 1e-5)


def test_delta_at_the_ends():
    assert tightest.delta(GaussianEvent(1.0), 1.0) == pytest.approx(0.126936737507, rel=1e-9)
    assert tightest.delta(Pure(0.5), 0.5) == pytest.approx(0.0, abs=1e-15)
    assert tightest.delta(Repeated(Pure(0.5), 2), 1.5) <= 1e-200
    assert tightest.delta(Approximate(0.5, 1e-3), 9.0) == pytest.approx(1e-3, rel=1e-6)
    assert tightest.delta(GaussianEvent(1e-3), 1.0) == pytest.approx(1.0)
    assert tightest.delta(NonPrivate("x"), 1.0) == 1.0 and tightest.delta(Repeated(NonPrivate("x"), 0), 0.0) == 0.0


# --- trade-off curves ------------------------------------------------------------------------------------------------


ALPHAS = np.linspace(0, 1, 41)


@pytest.mark.parametrize(("mu", "count"), [(0.5, 1), (1.0, 4), (3.0, 1)])
def test_the_trade_off_of_gaussians_is_known(mu, count):
    """Phi(Phi^-1(1 - alpha) - mu): from below, and close."""
    exact = norm.cdf(norm.ppf(1 - ALPHAS) - mu * math.sqrt(count))
    curve = tightest.trade_off(Repeated(GaussianEvent(1 / mu), count), ALPHAS)
    assert np.all(curve <= exact + 1e-9) and np.all(curve >= exact - 0.01)


@pytest.mark.slow
def test_a_trade_off_curve_is_convex_and_below_chance():
    for event in (Pure(0.7), Repeated(Sampled(GaussianEvent(0.8), 0.1), 20), Visible(LaplaceEvent(0.5), 0.3)):
        curve = tightest.trade_off(event, ALPHAS)
        assert np.all(curve <= 1 - ALPHAS + 1e-12) and np.all(curve >= 0) and np.all(np.diff(curve, 2) >= -1e-9)
    response = tightest.trade_off(Pure(0.7), ALPHAS)
    exact = np.maximum(0, np.maximum(1 - math.exp(0.7) * ALPHAS, math.exp(-0.7) * (1 - ALPHAS)))
    assert np.all(response <= exact + 1e-9) and np.all(response >= exact - 0.02)
    with pytest.raises(SpecError):
        tightest.trade_off(Pure(0.7), np.array([0.5, 1.5]))
    with pytest.raises(SpecError):
        tightest.trade_off(Pure(0.7), np.array([0.5, math.nan]))


def test_theories_agree_where_they_must():
    """Optimal composition is what the pair of randomized response gives; zCDP over real orders is never above RDP."""
    for epsilon, count, delta in ((0.3, 12, 1e-4), (1.0, 20, 1e-7), (0.05, 400, 1e-6)):
        event = Repeated(Pure(epsilon), count)
        assert pld.epsilon(event, delta) == pytest.approx(kov.epsilon(event, delta), rel=1e-3)
    for z in (0.5, 3.0, 100.0):
        event = Repeated(GaussianEvent(z), 3)
        assert gdp.epsilon(event, 1e-6) <= zcdp.epsilon(event, 1e-6) <= rdp.epsilon(event, 1e-6) * (1 + 1e-12)
