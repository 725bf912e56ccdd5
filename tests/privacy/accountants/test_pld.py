"""Golden values: THEORY.md, section 8, "Sampled mechanisms: PLD / exact", and section 7.1 for whole rounds."""

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import norm

from sordino.core.errors import UnsupportedEvent
from sordino.privacy.accountants import gdp, pld
from sordino.privacy.events import FixedSize, Gaussian, Repeated, Sampled, Visible

GOLDEN = [
    (1.0, 0.01, 1000, 1e-5, 1.82823666593),
    pytest.param(1.1, 0.004266666667, 14062, 1e-5, 2.38159692937, marks=pytest.mark.slow),
    (2.0, 0.05, 300, 1e-5, 1.92856780804),
    (0.8, 0.02, 500, 1e-5, 4.66801175287),
    (4.0, 0.1, 1000, 1e-6, 3.86883250946),
    pytest.param(0.5, 0.001, 1, 1e-6, 1.08523570956, marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("z", "rate", "steps", "delta", "value"), GOLDEN)
def test_sampled_gaussian(z, rate, steps, delta, value):
    found = pld.epsilon(Repeated(Sampled(Gaussian(z), rate), steps), delta)
    tolerance = 1e-4 if steps < 10_000 else 3e-4
    assert value - 1e-9 <= found <= value + tolerance


def local_round(z, rate, steps):
    return Repeated(Sampled(Gaussian(z), rate), steps)


@pytest.mark.slow
def test_whole_rounds_are_sampled():
    """Client rate 0.1, 20 local steps at record rate 0.05, z = 1, 30 rounds: 8.29 to the server, 0.81 hidden."""
    one = local_round(1.0, 0.05, 20)
    assert round(pld.epsilon(Repeated(Sampled(one, 0.1), 30), 1e-5), 2) == 0.81
    assert round(pld.epsilon(Repeated(one, 30), 1e-5), 2) == 8.29


@pytest.mark.slow
def test_one_sampled_round():
    assert round(pld.epsilon(Sampled(local_round(0.8, 0.1, 50), 0.05), 1e-5), 2) == 3.32


def hockey_stick(p, q, epsilon, low=-40.0, high=40.0):
    """Integral of max(0, p - e^eps q), numerically."""
    at = np.linspace(low, high, 400_001)
    return float(np.trapezoid(np.maximum(0.0, p(at) - np.exp(epsilon) * q(at)), at))


@pytest.mark.parametrize(("z", "rate"), [(1.0, 0.1), (0.7, 0.4)])
def test_our_own_sampling_is_the_librarys_where_both_apply(z, rate):
    """_sampled on the grid of a plain Gaussian against the integral of the two densities."""
    inner = pld.pld(Gaussian(z))
    own = pld._sampled(inner, rate, pld.FINE)
    without = norm(0, z).pdf
    with_unit = lambda x: (1 - rate) * norm(0, z).pdf(x) + rate * norm(1, z).pdf(x)  # noqa: E731
    for epsilon in (0.05, 0.5, 1.0):
        exact = max(hockey_stick(with_unit, without, epsilon), hockey_stick(without, with_unit, epsilon))
        found = own.get_delta_for_epsilon(epsilon)
        assert exact - 1e-9 <= found <= exact * (1 + 1e-3) + 1e-7
    # the tail, in closed form: q H_h(P || Q) at h = 1 + (e^eps - 1)/q
    tail = rate * gdp.delta(1 / z, float(np.log1p(np.expm1(3.0) / rate)))
    assert tail - 1e-12 <= own.get_delta_for_epsilon(3.0) <= tail * (1 + 1e-2) + 1e-8


def test_visible_mixes_the_deltas():
    """delta(eps) = rate * delta_event(eps) for one round (joint convexity)."""
    visible = pld.pld(Visible(Gaussian(1.0), 0.1))
    for epsilon in (0.5, 1.0, 2.0, 3.0):
        exact = 0.1 * gdp.delta(1.0, epsilon)
        assert exact * (1 - 1e-9) <= visible.get_delta_for_epsilon(epsilon) <= exact * (1 + 1e-3) + 1e-8


def test_a_drawn_client_shows_that_it_was_drawn():
    """THE COUNTEREXAMPLE of events.Visible.

    A client is drawn with probability 0.1; its other 1000 records add up to 1000 and make its presence visible.
    With and without one more record the released sum is 0.9 N(0,1) + 0.1 N(1001,1) or 0.9 N(0,1) + 0.1 N(1000,1).
    """
    delta, rate = 1e-5, 0.1

    def exact(epsilon):
        """The two humps do not overlap, so each adds its own hockey stick; the first is the same in both."""
        near = quad(
            lambda x: max(0.0, rate * norm.pdf(x, 1001) - np.exp(epsilon) * rate * norm.pdf(x, 1000)),
            980, 1021, points=[1000.5 + epsilon], limit=500, epsabs=1e-12,
        )[0]  # fmt: skip
        return near

    assert exact(1.0) == pytest.approx(rate * gdp.delta(1.0, 1.0), rel=1e-6)
    too_low = pld.epsilon(Sampled(Gaussian(1.0), rate), delta)
    right = pld.epsilon(Visible(Gaussian(1.0), rate), delta)
    assert exact(too_low) > 1.5 * delta  # Sampled would promise what does not hold
    assert exact(right) <= delta * (1 + 1e-3)
    assert exact(right - 0.01) > delta  # and Visible is not merely large


def test_without_replacement_is_not_its_business():
    with pytest.raises(UnsupportedEvent, match="pld"):
        pld.epsilon(Repeated(FixedSize(Gaussian(1.0), 10, 100), 3), 1e-5)
