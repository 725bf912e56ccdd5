"""Gaussian differential privacy, exact for plain Gaussian noise.

Dong, Roth, Su (2022), arXiv:1905.02383, Corollary 2.13; Balle and Wang (2018), arXiv:1805.06530, Theorem 8.
"""

import math

from scipy.optimize import brentq

from sordino.core import check
from sordino.core.errors import UnsupportedEvent
from sordino.privacy.algebra import gdp_mu_squared, parts, relations
from sordino.privacy.events import Event, GaussianEvent, Sampled
from sordino.privacy.pairs import gaussian_delta as delta_of_mu


def mu_of(event: Event) -> float:
    """Return mu of an event made of plain Gaussian noise; other events are refused."""
    relations(event)  # refuses events that no theorem covers
    squared = gdp_mu_squared(event)
    if squared is None:
        raise UnsupportedEvent("gdp is exact for plain Gaussian noise only.")
    return math.sqrt(squared)


def epsilon(event: Event, target_delta: float) -> float:
    """Return the exact epsilon at `target_delta`."""
    return epsilon_of_mu(mu_of(event), target_delta)


def delta(event: Event, target_epsilon: float) -> float:
    """Return the exact delta at `target_epsilon`."""
    return delta_of_mu(mu_of(event), target_epsilon)


def epsilon_of_mu(mu: float, target_delta: float) -> float:
    """Return the epsilon at which mu-GDP gives `target_delta`."""
    if mu <= 0 or delta_of_mu(mu, 0.0) <= target_delta:
        return 0.0
    high = 1.0
    while delta_of_mu(mu, high) > target_delta:
        high *= 2
    root = float(brentq(lambda e: delta_of_mu(mu, e) - target_delta, 0.0, high, xtol=1e-13, rtol=1e-14))
    return root * (1 + 1e-12)


def mu_for(epsilon: float, delta: float) -> float:
    """Return the largest mu that is (epsilon, delta)-DP, which expresses a whole budget in one number.

    Balle and Wang (2018), Algorithm 1.
    """
    check.positive(epsilon=epsilon)
    check.below_one(delta=delta)
    high = 1.0
    while delta_of_mu(high, epsilon) <= delta:
        high *= 2
    low = high
    while delta_of_mu(low, epsilon) > delta:
        low /= 2
    root = float(brentq(lambda m: delta_of_mu(m, epsilon) - delta, low, high, xtol=1e-16, rtol=1e-14))
    while delta_of_mu(root, epsilon) > delta:
        root *= 1 - 1e-12
    return root


def central_limit(event: Event) -> float | None:
    """Return the mu that sampled Gaussian steps tend to, q sqrt(T (e^{1/z^2} - 1)): an approximation, NEVER a
    guarantee.

    Bu, Dong, Long, Su (2020), arXiv:1911.11607, Corollary 5.4. It may lie below the true value. None for other events.
    """
    total = 0.0
    for part, count in parts(event).items():
        if not isinstance(part, Sampled) or not isinstance(part.event, GaussianEvent) or part.relation != "add/remove":
            return None
        if part.event.noise_multiplier < 0.05:  # e^{1/z^2} would overflow
            return None
        total += count * part.rate**2 * math.expm1(part.event.noise_multiplier**-2)
    return math.sqrt(total)
