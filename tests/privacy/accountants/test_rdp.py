"""Golden values of curves and conversions."""

import numpy as np
import pytest

from sordino.core.errors import UnsupportedEvent
from sordino.privacy.accountants import rdp
from sordino.privacy.events import Approximate, FixedSize, GaussianEvent, Repeated, Sampled

POISSON = [
    (0.01, 1.0, 8, 0.000893643907606),
    (0.01, 1.0, 32, 11.246275937),
    (0.05, 2.0, 16, 0.00734731410318),
    (0.1, 4.0, 64, 0.0379998859062),
]
GOLDEN_ORDERS = [1 + x / 10 for x in range(1, 100)] + [*range(11, 64), 128, 256, 512]


def at(event, order):
    return float(rdp.at(event, np.array([float(order)]))[0])


@pytest.mark.parametrize(("rate", "z", "order", "value"), POISSON)
def test_sampled_gaussian_curve(rate, z, order, value):
    assert at(Sampled(GaussianEvent(z), rate), order) == pytest.approx(value, rel=1e-6)


def test_gaussian_curve_is_order_over_two_z_squared():
    assert at(GaussianEvent(2.0), 8) == pytest.approx(1.0, rel=1e-12)


@pytest.mark.parametrize(
    ("z", "rate", "steps", "value"), [(1, 0.01, 1000, 2.10136652542), (2, 0.05, 300, 2.1182832483)]
)
def test_sampled_gaussian_epsilon(z, rate, steps, value):
    """The golden value is for the orders above; ours are more, so ours may lie below it, by a little."""
    event = Repeated(Sampled(GaussianEvent(z), rate), steps)
    assert value * (1 - 2e-3) <= rdp.epsilon(event, 1e-5) <= value * (1 + 1e-9)
    curve = rdp.rdp(event)
    kept = np.isin(rdp.ORDERS, GOLDEN_ORDERS)
    found = rdp.epsilon_of_curve(rdp.ORDERS[kept], curve[kept], 1e-5)
    assert float(found) == pytest.approx(value, rel=1e-6)


@pytest.mark.parametrize(("z", "size", "steps", "value"), [(1, 100, 1000, 3.57611148235), (2, 500, 300, 4.52445258498)])
def test_without_replacement_epsilon(z, size, steps, value):
    """z is relative to the replace-one sensitivity; Wang, Balle, Kasiviswanathan, orders 2 to 256."""
    event = Repeated(FixedSize(GaussianEvent(z), size, 10_000), steps)
    assert value * (1 - 1e-9) <= rdp.epsilon(event, 1e-5) <= value * (1 + 1e-3)
    curve = rdp.rdp(event)
    assert np.all(curve <= rdp.rdp(Repeated(GaussianEvent(z), steps)) * (1 + 1e-12))  # sampling never costs


def test_improved_conversion():
    """min over orders of R + ln(1 - 1/a) - (ln delta + ln a)/(a - 1) for rho = 1/8: 2.16571554518."""
    found = rdp.epsilon(GaussianEvent(2.0), 1e-5)
    assert 2.16571554518 - 1e-9 <= found <= 2.16571554518 * (1 + 1e-4)
    assert found < 2.52426295609  # the classic conversion


def test_single_conversions():
    assert rdp.epsilon_of_curve(np.array([10.0]), np.array([0.5]), 1e-5) == pytest.approx(1.41801063678, rel=1e-9)
    assert 0.5 + np.log(1e5) / 9 == pytest.approx(1.77921394055, rel=1e-9)  # the classic one, for comparison


def test_delta_is_the_inverse_of_epsilon():
    for event in (GaussianEvent(2.0), Repeated(Sampled(GaussianEvent(1.0), 0.02), 50)):
        for delta in (1e-3, 1e-9):
            assert rdp.delta(event, rdp.epsilon(event, delta)) == pytest.approx(delta, rel=1e-6)
    assert rdp.delta(Repeated(GaussianEvent(1.0), 0), 0.1) == 0.0


def test_sampling_any_release_is_the_sampled_gaussian_where_it_is_one():
    """The binomial sum over whole orders against the library's curve for the Gaussian; between them it lies above."""
    exact = rdp.at(Sampled(GaussianEvent(1.5), 0.1), rdp.ORDERS)
    ours = rdp._sampled(GaussianEvent(1.5), 0.1, rdp.ORDERS)
    whole = (np.floor(rdp.ORDERS) == rdp.ORDERS) & (rdp.ORDERS <= rdp.HIGHEST)
    np.testing.assert_allclose(ours[whole], exact[whole], rtol=1e-9)
    assert np.all(ours >= exact * (1 - 1e-9)) and np.all(ours <= rdp.ORDERS / (2 * 1.5**2) * (1 + 1e-12))


def test_nothing_costs_nothing_and_the_unknown_is_refused():
    assert rdp.epsilon(Repeated(GaussianEvent(1.0), 0), 1e-5) == 0.0
    with pytest.raises(UnsupportedEvent, match="rdp"):
        rdp.epsilon(Sampled(Sampled(GaussianEvent(1.0), 0.5), 0.1), 1e-5)
    with pytest.raises(UnsupportedEvent, match="rdp"):
        rdp.epsilon(Sampled(GaussianEvent(1.0), 0.1, "replace"), 1e-5)
    with pytest.raises(UnsupportedEvent, match="rdp"):
        rdp.epsilon(Approximate(1.0, 1e-6), 1e-5)
