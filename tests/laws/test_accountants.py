"""True of every kind of event and every accountant."""

import math

import numpy as np
import pytest
from numpy.testing import assert_allclose

from sordino.core.errors import UnsupportedEvent
from sordino.privacy import account
from sordino.privacy.accountants import gdp, pld, rdp
from sordino.privacy.events import Composed, FixedSize, Gaussian, NonPrivate, Repeated, Sampled, Visible

DELTA, GRID = 1e-5, pld.COARSE


def gaussian(z=1.0, rate=0.1, count=1):
    return Gaussian(z)


def sampled(z=1.0, rate=0.1, count=1):
    return Sampled(Gaussian(z), rate)


def fixed(z=1.0, rate=0.1, count=1):
    return FixedSize(Gaussian(z), round(100 * rate), 100)


def visible(z=1.0, rate=0.1, count=1):
    return Visible(Gaussian(z), rate)


def repeated(z=1.0, rate=0.1, count=1):
    return Repeated(Sampled(Gaussian(z), rate), count)


def composed(z=1.0, rate=0.1, count=1):
    return Composed((Gaussian(2 * z), Repeated(Sampled(Gaussian(z), rate), count)))


def sampled_round(z=1.0, rate=0.1, count=2):
    return Sampled(Repeated(Sampled(Gaussian(z), 0.5), count), rate)


def visible_round(z=1.0, rate=0.1, count=2):
    return Visible(Repeated(Sampled(Gaussian(z), 0.5), count), rate)


EVENTS = [gaussian, sampled, fixed, visible, repeated, composed, sampled_round, visible_round]
PLD = [e for e in EVENTS if e is not fixed]
RDP = [e for e in EVENTS if e is not sampled_round]


def price(event):
    return account.epsilon(event, DELTA, GRID)


@pytest.mark.parametrize("make", RDP)
def test_repeating_is_composing_rdp(make):
    event = make()
    assert_allclose(rdp.rdp(Repeated(event, 5)), rdp.rdp(Composed((event,) * 5)), rtol=1e-12)


@pytest.mark.parametrize("make", PLD)
def test_repeating_is_composing_pld(make):
    event = make(2.0)
    one, other = Repeated(event, 3), Composed((event,) * 3)
    assert pld.epsilon(one, DELTA, GRID) == pytest.approx(pld.epsilon(other, DELTA, GRID), abs=2 * GRID)
    assert pld.epsilon(Repeated(event, 4), DELTA, GRID) > pld.epsilon(other, DELTA, GRID)


@pytest.mark.parametrize("make", EVENTS)
def test_more_noise_costs_less_and_more_rounds_or_a_higher_rate_cost_more(make):
    noise = [price(Repeated(make(z=z), 2)) for z in (1.5, 2.0, 3.0)]
    assert noise[0] > noise[1] > noise[2] > 0
    count = [price(Repeated(make(2.0), n)) for n in (0, 1, 2, 10)]
    assert count[0] == pytest.approx(0.0, abs=1e-9) and count[0] < count[1] < count[2] < count[3]
    if make is not gaussian:
        rate = [price(Repeated(make(2.0, rate=q), 2)) for q in (0.05, 0.2, 1.0)]
        assert rate[0] < rate[1] < rate[2]


@pytest.mark.parametrize("make", [sampled, fixed, visible, sampled_round, visible_round])
def test_a_rate_of_one_is_no_sampling(make):
    event = make(rate=1.0)
    assert price(Repeated(event, 3)) == pytest.approx(price(Repeated(event.event, 3)), rel=1e-9)


@pytest.mark.parametrize("make", EVENTS)
def test_no_bound_lies_below_another_by_more_than_its_proof(make):
    """Sampled <= Visible <= unsampled: who sees more pays more."""
    event = Repeated(make(z=1.5), 3)
    every = account.by_accountant(event, DELTA, GRID)
    assert every and price(event) == pytest.approx(min(every.values()), rel=1e-9)
    hidden, seen = Repeated(Sampled(Gaussian(1.5), 0.2), 3), Repeated(Visible(Gaussian(1.5), 0.2), 3)
    assert price(hidden) < price(seen) < price(Repeated(Gaussian(1.5), 3))


@pytest.mark.parametrize(("z", "count", "delta"), [(1.0, 1, 1e-3), (1.5, 10, 1e-6), (20.0, 10, 1e-6)])
def test_every_accountant_is_above_the_exact_answer(z, count, delta):
    event = Repeated(Gaussian(z), count)
    exact = gdp.epsilon(event, delta)
    for found in (rdp.epsilon(event, delta), pld.epsilon(event, delta, pld.COARSE), pld.epsilon(event, delta)):
        assert exact * (1 - 1e-9) <= found <= exact * 1.35 + 2e-3
    assert pld.epsilon(event, delta) == pytest.approx(exact, rel=5e-3, abs=2e-4)


def test_the_coarse_grid_is_above_the_fine_one():
    for event in (Repeated(Sampled(Gaussian(1.0), 0.05), 20), Repeated(Visible(Gaussian(4.0), 0.3), 20)):
        fine, coarse = pld.epsilon(event, DELTA), pld.epsilon(event, DELTA, pld.COARSE)
        assert fine <= coarse <= fine * 1.01


def test_rdp_is_above_pld_for_sampled_noise():
    for event in (Repeated(Sampled(Gaussian(1.0), 0.05), 200), Repeated(Visible(Gaussian(2.0), 0.3), 20)):
        tight = pld.epsilon(event, DELTA, GRID)
        assert tight < rdp.epsilon(event, DELTA) < 1.5 * tight


@pytest.mark.parametrize("wrap", [lambda e: e, lambda e: Repeated(e, 3), lambda e: Sampled(e, 0.1)])
def test_no_guarantee_is_an_infinite_epsilon(wrap):
    event = Composed((Gaussian(1.0), wrap(NonPrivate("no noise"))))
    assert math.isinf(account.epsilon(event, DELTA)) and account.by_accountant(event, DELTA) == {"none": math.inf}


def test_an_event_without_a_theory_is_an_error_not_a_number():
    orphan = Sampled(FixedSize(Gaussian(1.0), 1, 10), 0.5)
    with pytest.raises(UnsupportedEvent):
        account.epsilon(orphan, DELTA)


def test_visible_rdp_is_the_mixture():
    """E[(P/Q)^a] = 1 - q + q e^{(a-1) D_a}, written out."""
    a, q = rdp.ORDERS[:40], 0.3
    exact = np.log(1 - q + q * np.exp((a - 1) * a / 2)) / (a - 1)
    assert_allclose(rdp.rdp(Visible(Gaussian(1.0), q))[:40], exact, rtol=1e-12)


@pytest.mark.parametrize("delta", [0, 1, -1e-5, math.nan, True])
def test_a_delta_is_between_zero_and_one(delta):
    with pytest.raises(Exception, match="delta must"):
        account.by_accountant(Gaussian(1.0), delta)


def test_ten_million_steps_are_priced_by_the_better_accountant(monkeypatch):
    """q = 1e-4, z = 2, T = 1e7, delta = 1e-8: the grid's error takes over and RDP says 0.905 (THEORY 7.1)."""
    event = Repeated(Sampled(Gaussian(2.0), 1e-4), 10**7)
    assert rdp.epsilon(event, 1e-8) == pytest.approx(0.905, abs=5e-4)
    monkeypatch.setattr(pld, "epsilon", lambda *_: 1.7)  # what a grid so coarse would say; it takes minutes
    assert account.epsilon.__wrapped__(event, 1e-8) == rdp.epsilon(event, 1e-8)
