"""Golden values: closed forms at 40 digits."""

import math

import pytest

from sordino.core.errors import SpecError, UnsupportedEvent
from sordino.privacy.accountants import gdp
from sordino.privacy.calibrate import noise_multiplier
from sordino.privacy.events import Composed, GaussianEvent, Repeated, Sampled

SIGMAS = [
    (0.1, 1e-5, 30.749566132),
    (0.5, 1e-5, 7.03182667558),
    (1, 1e-5, 3.73063163482),
    (2, 1e-5, 1.99381244564),
    (4, 1e-5, 1.08116184952),
    (8, 1e-5, 0.600229072199),
    (1, 1e-6, 4.22467888933),
    (0.5, 1e-3, 4.61012795073),
]
DELTAS = [(1, 1, 0.126936737507), (1, 4, 4.71224120079e-05), (0.5, 1, 0.00682959498311), (2, 5, 0.0322819847501)]
EPSILONS = [
    (0.1, 0.340669364684),
    (0.5, 1.99309140442),
    (1, 4.37717809568),
    (2, 9.99725614643),
    (3, 16.6754944028),
]


@pytest.mark.parametrize(("epsilon", "delta", "sigma"), SIGMAS)
def test_analytic_gaussian_sigma(epsilon, delta, sigma):
    assert gdp.delta_of_mu(1 / sigma, epsilon) == pytest.approx(delta, rel=1e-8)
    assert gdp.epsilon(GaussianEvent(sigma), delta) == pytest.approx(epsilon, rel=1e-9)
    found = noise_multiplier(GaussianEvent, epsilon, delta)
    assert sigma * (1 - 1e-10) <= found <= sigma * (1 + 1e-4)


@pytest.mark.parametrize(("mu", "epsilon", "delta"), DELTAS)
def test_gdp_delta(mu, epsilon, delta):
    assert gdp.delta_of_mu(mu, epsilon) == pytest.approx(delta, rel=1e-9)


@pytest.mark.parametrize(("mu", "epsilon"), EPSILONS)
def test_gdp_epsilon(mu, epsilon):
    assert gdp.epsilon_of_mu(mu, 1e-5) == pytest.approx(epsilon, rel=1e-9)
    assert gdp.delta_of_mu(mu, gdp.epsilon_of_mu(mu, 1e-5)) <= 1e-5  # never on the wrong side


def test_sixteen_half_releases_are_one_of_two():
    assert gdp.epsilon(Repeated(GaussianEvent(2.0), 16), 1e-5) == pytest.approx(9.99725614643, rel=1e-9)
    mixed = Composed((GaussianEvent(2.0), Repeated(GaussianEvent(2.0), 15)))
    assert gdp.epsilon(mixed, 1e-5) == pytest.approx(9.99725614643, rel=1e-9)


def test_far_ends_neither_overflow_nor_cancel():
    assert gdp.delta_of_mu(0.0, 1.0) == 0.0 and gdp.epsilon_of_mu(0.0, 1e-5) == 0.0
    assert gdp.epsilon_of_mu(1e-9, 1e-5) == 0.0
    assert gdp.delta_of_mu(1e-3, 5.0) == 0.0
    huge = gdp.epsilon_of_mu(100.0, 1e-5)
    assert 5000 < huge < 6000 and math.isfinite(huge)  # mu^2/2 + z mu
    assert 0 < gdp.delta_of_mu(1.0, 30.0) < 1e-150


def test_what_is_not_plain_gaussian_noise_is_refused():
    with pytest.raises(UnsupportedEvent, match="gdp"):
        gdp.epsilon(Sampled(GaussianEvent(1.0), 0.1), 1e-5)


def test_a_whole_budget_in_one_number():
    """FedSDP's budget: mu_tot and rho_tot at (1, 1e-5)."""
    mu = gdp.mu_for(1.0, 1e-5)
    assert mu == pytest.approx(0.268051123211, rel=1e-9) and mu * mu / 2 == pytest.approx(0.0359257023274, rel=1e-9)
    for epsilon in (1e-3, 1.0, 1e3):
        for delta in (1e-12, 1e-5, 0.1):
            mu = gdp.mu_for(epsilon, delta)
            assert gdp.delta_of_mu(mu, epsilon) <= delta < gdp.delta_of_mu(mu * (1 + 1e-6), epsilon)


@pytest.mark.parametrize(("epsilon", "delta"), [(0.0, 1e-5), (1.0, 0.0), (math.nan, 1e-5)])
def test_a_budget_that_is_none_is_refused(epsilon, delta):
    with pytest.raises(SpecError):
        gdp.mu_for(epsilon, delta)


def test_the_central_limit_is_no_promise():
    event = Repeated(Sampled(GaussianEvent(1.0), 0.01), 1000)
    mu = gdp.central_limit(event)
    assert mu == pytest.approx(0.414521631337, rel=1e-9)
    assert gdp.epsilon_of_mu(mu, 1e-5) == pytest.approx(1.61771180875, rel=1e-9)  # below the true 1.8282
    assert gdp.central_limit(GaussianEvent(1.0)) is None
