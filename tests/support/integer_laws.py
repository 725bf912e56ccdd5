"""Laws on the integers, as the tests of discrete noise compare them."""

from __future__ import annotations

import numpy as np
from scipy.stats import chi2


def chi_square(x: np.ndarray, outcomes: np.ndarray, mass: np.ndarray) -> float:
    """Return the p-value of a sample under a law; rare outcomes at either end are taken together.

    outcomes: consecutive integers; mass: the probability of each.
    """
    often = np.flatnonzero(mass * len(x) > 20)
    low, high = often[0], often[-1]
    seen = np.bincount(np.clip(x - int(outcomes[low]), 0, high - low), minlength=high - low + 1)
    expected = len(x) * np.concatenate([[mass[: low + 1].sum()], mass[low + 1 : high], [mass[high:].sum()]])
    return float(chi2.sf(((seen - expected) ** 2 / expected).sum(), high - low))


def shifted(mass: np.ndarray, by: int) -> tuple[np.ndarray, np.ndarray]:
    """Return a law moved up by an integer, and the law itself, over the same outcomes."""
    return np.append(np.zeros(by), mass), np.append(mass, np.zeros(by))
