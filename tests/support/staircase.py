"""The staircase of least variance in closed form: Geng and Viswanath (2016), l2 cost."""

from __future__ import annotations

import math

import numpy as np


def best_gamma_variance(epsilon: float) -> float:
    """Return the gamma with the smallest variance."""
    b = math.exp(-epsilon)
    return float(np.cbrt(b * (1 + b) / 2) - b) / (1 - b)


def least_variance(epsilon: float, bound: float) -> float:
    """Return the variance at `best_gamma_variance`."""
    b = math.exp(-epsilon)
    return float(np.cbrt(b * (1 + b) / 2) ** 2 + b) * (bound / (1 - b)) ** 2
