"""Gaussian differential privacy, exact for plain Gaussian noise.

Dong, Roth, Su (2022), arXiv:1905.02383, Corollary 2.13; Balle and Wang (2018), arXiv:1805.06530, Theorem 8.
"""

import math

from scipy.optimize import brentq
from scipy.special import log_ndtr, ndtr

from sordino.core.errors import UnsupportedEvent
from sordino.privacy.events import Event, gdp_mu_squared


def delta(mu: float, epsilon: float) -> float:
    """delta(eps) = Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu)."""
    if mu <= 0:
        return 0.0
    a, b = mu / 2 - epsilon / mu, -mu / 2 - epsilon / mu
    # log of the ratio of the two terms, so that neither e^eps overflows nor a difference cancels
    ratio = epsilon + float(log_ndtr(b)) - float(log_ndtr(a))
    return float(ndtr(a)) * -math.expm1(min(ratio, 0.0))


def epsilon(event: Event, target_delta: float) -> float:
    squared = gdp_mu_squared(event)
    if squared is None:
        raise UnsupportedEvent(f"gdp is exact for plain Gaussian noise only, not for {event!r}.")
    return epsilon_of_mu(math.sqrt(squared), target_delta)


def epsilon_of_mu(mu: float, target_delta: float) -> float:
    if mu <= 0 or delta(mu, 0.0) <= target_delta:
        return 0.0
    high = 1.0
    while delta(mu, high) > target_delta:
        high *= 2
    root = float(brentq(lambda e: delta(mu, e) - target_delta, 0.0, high, xtol=1e-13, rtol=1e-14))
    return root * (1 + 1e-12)
