"""Likelihood ratios of log-odds under models that were trained on a target, and under others.

Carlini et al. (2022), arXiv:2112.03570, Algorithm 1: both are taken as Gaussian.
"""

from __future__ import annotations

import numpy as np

from sordino.attacks.base import Bools
from sordino.core.rng import Floats

VARIANCES = ("auto", "own", "shared")
ENOUGH = 32  # shadows on either side of a target from which its own variance is used: the paper says 64 in all
LEAST = 1e-4  # added to variances


def ratios(seen: Floats, others: Floats, members: Bools, offline: bool = False, variance: str = "auto") -> Floats:
    """Return the scores of targets.

    Args:
        seen: [targets], log-odds of the attacked model.
        others: [models, targets], those of the shadow models.
        members: [models, targets], which shadow models were trained on which targets.
        offline: whether to use only models that were not trained on the target.
        variance: one of `VARIANCES`.
    """
    outside, spread_out = _moments(others, ~members, variance)
    if offline:
        return np.asarray((seen - outside) / np.sqrt(spread_out), dtype=np.float64)
    within, spread_in = _moments(others, members, variance)
    return _log_density(seen, within, spread_in) - _log_density(seen, outside, spread_out)


def _moments(values: Floats, where: Bools, variance: str) -> tuple[Floats, Floats]:
    """Return mean and variance of the models at `where`, for every target [targets]."""
    count = where.sum(axis=0)
    mean = np.where(where, values, 0.0).sum(axis=0) / count
    squares = (np.where(where, values - mean, 0.0) ** 2).sum(axis=0)
    own = variance == "own" or (variance == "auto" and int(count.min()) >= ENOUGH)
    if own:
        return mean, squares / np.maximum(count - 1, 1) + LEAST
    return mean, np.full_like(mean, squares.sum() / max(1, int((count - 1).sum())) + LEAST)


def _log_density(value: Floats, mean: Floats, variance: Floats) -> Floats:
    return np.asarray(-0.5 * ((value - mean) ** 2 / variance + np.log(variance)), dtype=np.float64)
