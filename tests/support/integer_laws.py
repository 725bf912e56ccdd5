"""Laws on the integers, as the tests of discrete noise compare them."""

from __future__ import annotations

import numpy as np
from scipy.special import ive
from scipy.stats import chi2

from sordino.privacy.mechanisms.skellam import _far


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


def skellam(mu: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the integers that Skellam noise reaches and their probabilities e^-mu I_k(mu), by Bessel functions."""
    k = np.arange(-_far(mu), _far(mu) + 1, dtype=np.float64)
    return k, ive(np.abs(k), mu)


def skellam_renyi(mu: float, shift: int, orders: np.ndarray) -> np.ndarray:
    """Return the Renyi divergences of one coordinate shifted by an integer, computed as a sum.

    The result is exact except for terms that floats drop.
    """
    _, mass = skellam(mu)
    some = (mass[shift:] > 0) & (mass[: len(mass) - shift] > 0)
    p, q = np.log(mass[: len(mass) - shift][some]), np.log(mass[shift:][some])
    return np.logaddexp.reduce(orders[:, None] * p + (1 - orders[:, None]) * q, axis=1) / (orders - 1)
