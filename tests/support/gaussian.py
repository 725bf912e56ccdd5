"""The Gaussian mechanism's exact curve, written down a second time."""

from __future__ import annotations

import math

from scipy.stats import norm


def gaussian_delta(mu: float, epsilon: float) -> float:
    """Balle and Wang (2018), Theorem 8; mu: sensitivity over standard deviation."""
    return norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu) if mu else 0.0
