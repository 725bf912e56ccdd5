"""Noise in a geometric series, in closed form: the second implementation that geodp's calibration is held against."""

from __future__ import annotations

import math

import numpy as np


def geometric_stds(rho: float, ratio: float, rounds: int, sensitivity: float = 1.0) -> np.ndarray:
    """Return noise standard deviations [rounds] that grow geometrically and spend `rho` in total.

    sigma_t^2 = sigma_1^2 ratio^{t-1} with sum_t sensitivity^2 / (2 sigma_t^2) = rho.
    """
    powers = math.log(ratio) * np.arange(rounds)
    first = float(np.exp(-powers).sum()) * sensitivity**2 / (2 * rho)
    return np.sqrt(first * np.exp(powers))
