"""Sound ways to distribute a Gaussian privacy budget over rounds and over coordinates.

The inputs of these rules must be public or already released; then every rule keeps the guarantee, whatever its shape:
Gaussian releases chosen one after the other with mu_1^2 + mu_2^2 + ... <= mu^2 are mu-GDP together (Smith and Thakurta
2022).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sordino.core import check
from sordino.core.errors import SpecError
from sordino.privacy.accountants import gdp

Floats = NDArray[np.float64]


def budget_mu(epsilon: float, delta: float) -> float:
    """Return the largest mu such that mu-GDP implies (epsilon, delta)-DP: the exact inverse, rounded down."""
    return gdp.mu_for(epsilon, delta)


def budget_rho(epsilon: float, delta: float) -> float:
    """Return the same budget in zCDP units, mu^2 / 2: the total that the rho_t of all rounds may reach."""
    return budget_mu(epsilon, delta) ** 2 / 2


def geometric_stds(rho: float, ratio: float, rounds: int, sensitivity: float = 1.0) -> Floats:
    """Return noise standard deviations [rounds] that grow geometrically and spend `rho` in total.

    sigma_t^2 = sigma_1^2 ratio^{t-1} with sum_t sensitivity^2 / (2 sigma_t^2) = rho. This is the sound core of
    time-varying noise (Yuan et al. 2023): a public ratio, and the true sensitivity.
    """
    check.positive(rho=rho, ratio=ratio, sensitivity=sensitivity)
    check.count(rounds=rounds)
    powers = math.log(ratio) * np.arange(rounds)
    top = float(np.max(-powers))
    log_first = top + math.log(float(np.exp(-powers - top).sum())) + math.log(sensitivity**2 / (2 * rho))
    logs = (log_first + powers) / 2
    if np.max(np.abs(logs)) > 300:
        raise SpecError(
            f"noise of ratio {ratio!r} over {rounds} rounds leaves the range of floats. Use a ratio near 1."
        )
    return np.exp(logs)


def component_variances(ranges: ArrayLike, noise_multiplier: float) -> Floats:
    """Return the noise variances of the smallest total that is (1/sigma_0)-GDP, for coordinates with public ranges.

    sigma_m^2 = sigma_0^2 Delta_m sum_j Delta_j, where coordinate m changes by at most the publicly known Delta_m: sum_m
    Delta_m^2 / sigma_m^2 = 1 / sigma_0^2. The total sigma_0^2 (sum Delta)^2 is at most the total M sigma_0^2 sum
    Delta^2 of sigma_m = sqrt(M) sigma_0 Delta_m. A coordinate of range zero is constant and needs no noise.

    Args:
        ranges: Delta_m [M].
        noise_multiplier: sigma_0.
    """
    check.positive(noise_multiplier=noise_multiplier)
    found = np.asarray(ranges, dtype=np.float64)
    if found.ndim != 1 or not len(found) or not np.all(np.isfinite(found)) or np.any(found < 0):
        raise SpecError("ranges must be a list of finite numbers, none of them negative.")
    return np.asarray(noise_multiplier**2 * found * found.sum())


def next_rho(remaining: float, rounds_left: int, ratio: float, slope: float) -> float:
    """Return rho of the next round: min(rem, w rem / n_left), w = 1 / (1 + slope (ratio - 1/2)).

    The larger the (privately released) contribution ratio in [0, 1], the more noise. The sum over all rounds never
    exceeds the budget, so the guarantee does not depend on the quality of the ratio.
    """
    check.non_negative(remaining=remaining, slope=slope)
    check.count(rounds_left=rounds_left)
    if slope > 2:
        raise SpecError(
            f"slope must lie in [0, 2], not {slope!r}: beyond it a small ratio would have a negative share."
        )
    check.non_negative(ratio=ratio)
    if ratio > 1:
        raise SpecError(f"ratio must lie in [0, 1], not {ratio!r}.")
    share = 1 + slope * (ratio - 0.5)  # 1 / w
    return remaining if rounds_left * share <= 1 else remaining / (rounds_left * share)
