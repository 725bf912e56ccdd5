"""Optimal composition of k equal (epsilon, delta) releases.

Kairouz, Oh, Viswanath (2017), arXiv:1311.0776, Theorem 3.3. Nothing better holds for releases of which only (epsilon,
delta) is known: they may be randomized response, whose k-fold composition is computed here, at every real epsilon' and
not only at the theorem's (k - 2i) epsilon.
"""

import math

import numpy as np
from scipy.optimize import brentq
from scipy.special import expit

from sordino.core.errors import UnsupportedEvent
from sordino.privacy.accountants import single
from sordino.privacy.algebra import worst
from sordino.privacy.events import Event

MANY = 50_000_000  # maximum number of releases


def epsilon(event: Event, target_delta: float) -> float:
    """Return epsilon at `target_delta` by optimal composition of equal releases."""
    return worst(lambda alternative: _epsilon(alternative, target_delta), event)


def _epsilon(event: Event, target_delta: float) -> float:
    steps = single.steps_of(event, target_delta / 2)
    if len(steps) != 1:
        raise UnsupportedEvent("kov composes equal releases only.")
    step, count = steps[0]
    return of_steps(step.epsilon, step.delta, count, target_delta)


def of_steps(epsilon: float, delta: float, count: int, target_delta: float) -> float:
    """Return the smallest epsilon' with delta' <= target_delta for `count` releases.

    The condition is 1 - (1-delta)^k (1 - delta_k(epsilon')) <= target_delta.
    """
    if count > MANY:
        raise UnsupportedEvent(f"kov sums over at most {MANY} releases.")
    left = -math.expm1(math.log1p(-target_delta) - count * math.log1p(-delta))  # delta left for randomized response
    if left <= 0:
        return math.inf
    if count * epsilon > 1e5:
        raise UnsupportedEvent("kov is only for epsilons of at most 1e5 in total.")
    if delta_of(epsilon, count, 0.0) <= left:
        return 0.0
    root = brentq(lambda e: delta_of(epsilon, count, e) - left, 0.0, count * epsilon, xtol=1e-13, rtol=1e-13)
    return float(root) * (1 + 1e-12)


def delta_of(epsilon: float, count: int, at: float) -> float:
    """Return delta_k at epsilon' = `at` of k-fold randomized response.

    It is the sum over l <= (k - at/eps)/2 of P(l) (1 - e^{at - (k-2l) eps}), where l of the k answers are flipped and
    the loss is (k - 2l) eps.
    """
    from scipy.stats import binom  # takes a second to import

    flip = float(expit(-epsilon))
    middle, width = count * flip, 40 * math.sqrt(count * flip * (1 - flip)) + 40
    most = min(count, math.ceil((count - at / epsilon) / 2), math.ceil(middle + width)) if epsilon > 0 else -1
    lost = np.arange(max(0, math.floor(middle - 2 * width)), most + 1)
    gain = np.minimum(at - (count - 2 * lost) * epsilon, 0.0)
    return float(np.sum(binom.pmf(lost, count, flip) * -np.expm1(gain)))
