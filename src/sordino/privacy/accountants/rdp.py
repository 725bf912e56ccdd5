"""Renyi differential privacy at fixed orders.

Mironov (2017), arXiv:1702.07476; sampled Gaussian: Mironov, Talwar, Zhang (2019), arXiv:1908.10530; sampling without
replacement: Wang, Balle, Kasiviswanathan (2019), arXiv:1808.00087; conversion: Canonne, Kamath, Steinke (2020),
arXiv:2004.00010, Proposition 12. The curve for sampling without replacement comes from `dp-accounting`.
"""

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln

from sordino.core.errors import UnsupportedEvent
from sordino.privacy import selection
from sordino.privacy.algebra import parts, relations, worst
from sordino.privacy.events import (
    Composed,
    Event,
    FixedSize,
    GaussianEvent,
    Parallel,
    RandomStopping,
    Repeated,
    Sampled,
    Visible,
)
from sordino.privacy.pairs import logsumexp

Curve = NDArray[np.float64]  # one Renyi divergence per order

ORDERS: Curve = np.array(
    [1 + x / 10.0 for x in range(1, 100)] + [*range(11, 64), 80, 96, 128, 192, 256, 384, 512, 768, 1024],
    dtype=np.float64,
)
# orders at which the (slow) bound for sampling without replacement is evaluated
WHOLE: Curve = np.array([*range(2, 33), 36, 40, 44, 48, 52, 56, 60, 80, 96, 128, 192, 256], dtype=np.float64)
HIGHEST = 256  # largest order up to which a sampled release is expanded
LARGE, LARGEST_GRID = 4096, 2**20  # largest order and grid for which a sampled Gaussian is summed


def rdp(event: Event) -> Curve:
    """Return the Renyi divergences of an event at ORDERS.

    They are those of the worse direction, and of the worst part of a split.
    """
    relations(event)  # refuses events that no theorem covers
    total = np.zeros_like(ORDERS)
    for part, count in parts(event).items():
        total += count * _curve(part)
    return total


@lru_cache(maxsize=1024)
def _curve(part: Event) -> Curve:
    return at(part, ORDERS)


def at(event: Event, orders: Curve) -> Curve:
    """Return the Renyi divergences of an event at any orders above 1."""
    match event:
        case Repeated() | Composed():
            return np.asarray(sum((n * at(e, orders) for e, n in parts(event).items()), np.zeros_like(orders)))
        case Parallel(events):
            return np.maximum.reduce([at(e, orders) for e in events]) if events else np.zeros_like(orders)
        case Visible(inner, rate):
            # E[(P/Q)^a] = 1 - rate + rate * e^{(a-1) D_a}: with probability 1 - rate nothing is learnt
            power = (orders - 1) * at(inner, orders)
            absent = np.log1p(-rate) if rate < 1 else -np.inf
            return np.asarray(np.logaddexp(absent, np.log(rate) + power) / (orders - 1))
        case RandomStopping(inner, mean, law, eta):
            return selection.curve(orders, at(inner, orders), ORDERS, at(inner, ORDERS), mean, law, eta)
        case Sampled(inner, 1.0, "add/remove"):
            return at(inner, orders)
        case Sampled(GaussianEvent(z), rate, "add/remove"):
            return _sampled_gaussian(z, rate, orders)
        case Sampled(inner, rate, "add/remove"):
            return _sampled(inner, rate, orders)
        case FixedSize(inner, size, population) if size == population:
            return at(inner, orders)
        case FixedSize(GaussianEvent(z), size, population):
            return _between(_without_replacement(z, size, population, WHOLE), WHOLE, orders, orders / (2 * z**2))
        case Sampled() | FixedSize():
            raise UnsupportedEvent("rdp has no curve for this release under this sampler.")
        case _:
            curve = event.renyi(orders)
            if curve is None:
                raise UnsupportedEvent(f"rdp has no curve for {event!r}.")
            return curve


def _without_replacement(z: float, size: int, population: int, orders: Curve) -> Curve:
    """Return the curve of a Gaussian release on a sample of fixed size, for a replaced unit."""
    import dp_accounting as dp  # takes a second to import
    from absl import logging as absl_logging
    from dp_accounting.rdp import rdp_privacy_accountant as library

    accountant = library.RdpAccountant(orders.tolist(), dp.NeighboringRelation.REPLACE_ONE)
    level = absl_logging.get_verbosity()
    absl_logging.set_verbosity(absl_logging.ERROR)  # an order that does not converge is dropped, which is sound
    try:
        accountant.compose(dp.SampledWithoutReplacementDpEvent(population, size, dp.GaussianDpEvent(z)))
    finally:
        absl_logging.set_verbosity(level)
    return np.asarray(accountant.rdp, dtype=np.float64)


def _sampled_gaussian(z: float, rate: float, orders: Curve) -> Curve:
    """Return ln E_Q[(1 - q + q e^L)^a] / (a - 1), L = (2x - 1)/(2 z^2), x ~ N(0, z^2).

    Mironov, Talwar, Zhang, Section 3.3. At integer orders it is a binomial sum. Between them we use the trapezoid rule,
    which is exact to all digits for a smooth function times a normal density with a step of z/8 (Trefethen and Weideman
    2014, "The exponentially convergent ...").
    """
    curve = np.empty_like(orders)
    summed = (orders == np.floor(orders)) & (orders <= LARGE)
    grids = [0 if is_summed else int(8 * (a + 26 * z) / z) for a, is_summed in zip(orders, summed, strict=True)]
    most = max(points for points in [0, *grids] if points <= LARGEST_GRID)
    x = (np.arange(most) / 8 - 13) * z  # shared grid; orders differ in how much of it they use
    ratio = np.logaddexp(math.log1p(-rate), math.log(rate) + (2 * x - 1) / (2 * z * z))
    halves = x * x / (2 * z * z)
    for i, a in enumerate(orders):
        if summed[i]:
            j, binomials = _binomials(int(a))
            logs = binomials + j * (j - 1) / (2 * z * z)
            moment = float(logsumexp(logs + j * math.log(rate) + (a - j) * math.log1p(-rate)))
        elif (points := grids[i]) <= LARGEST_GRID:
            moment = float(logsumexp(a * ratio[:points] - halves[:points])) - math.log(8 * math.sqrt(2 * math.pi))
        else:
            moment = math.inf
        curve[i] = (max(moment, 0.0) + 1e-15) / (a - 1)  # margin for rounding
    return np.asarray(np.minimum(curve, orders / (2 * z * z)))  # sampling never increases the cost


@lru_cache(maxsize=512)
def _binomials(a: int) -> tuple[NDArray[np.int64], Curve]:
    """Return j = 0 ... a and ln C(a, j)."""
    j = np.arange(a + 1)
    return j, gammaln(a + 1) - gammaln(j + 1) - gammaln(a - j + 1)


def _sampled(inner: Event, rate: float, orders: Curve) -> Curve:
    """Return the curve of a Poisson sample of a release for which some involution swaps P and Q.

    Mironov, Talwar, Zhang, Theorem 5: E_Q[((1-q) + q P/Q)^a] = sum_j C(a,j) (1-q)^(a-j) q^j e^{(j-1) D_j} at integer
    orders a.
    """
    if not _mirrored(inner):
        raise UnsupportedEvent("rdp samples symmetric releases only.")
    integers = np.arange(2, HIGHEST + 1, dtype=np.float64)
    j = np.arange(0, HIGHEST + 1)
    powers = np.concatenate([[0.0, 0.0], (integers - 1) * at(inner, integers)])  # (j-1) D_j
    powers += j * math.log(rate)
    logs = [
        float(logsumexp(_binomials(a)[1] + (a - j[: a + 1]) * math.log1p(-rate) + powers[: a + 1])) / (a - 1)
        for a in range(2, HIGHEST + 1)
    ]
    return _between(np.maximum(logs, 0.0), integers, orders, at(inner, orders))


def _mirrored(event: Event) -> bool:
    inner = [e.event if isinstance(e, Sampled | Visible | FixedSize) else e for e in parts(event)]
    return all(e.mirrored and not isinstance(e, Repeated | Composed | Parallel) for e in inner) and not any(
        isinstance(e, Sampled | FixedSize) for e in parts(event)
    )


def _between(curve: Curve, known: Curve, orders: Curve, unsampled: Curve) -> Curve:
    """Return the curve at orders between the known ones, by interpolation.

    (a-1) D_a is convex in a and zero at 1. Sampling never increases the cost, so `unsampled` bounds the result.
    """
    moments = np.interp(orders - 1, np.append(0.0, known - 1), np.append(0.0, (known - 1) * curve), right=np.inf)
    return np.asarray(np.minimum(moments / (orders - 1), unsampled))


def epsilon(event: Event, target_delta: float) -> float:
    """Return an upper bound on epsilon at `target_delta`."""
    return worst(lambda alternative: epsilon_of_curve(ORDERS, rdp(alternative), target_delta), event)


def delta(event: Event, target_epsilon: float) -> float:
    """Return an upper bound on delta at `target_epsilon`."""
    return worst(lambda alternative: _delta(alternative, target_epsilon), event)


def _delta(event: Event, target_epsilon: float) -> float:
    curve = rdp(event)
    if not np.any(curve):
        return 0.0
    logs = (ORDERS - 1) * (curve + np.log1p(-1 / ORDERS) - target_epsilon) - np.log(ORDERS)
    return float(np.exp(min(0.0, float(np.min(logs)))))


def epsilon_of_curve(orders: Curve, curve: Curve, target_delta: float) -> float:
    """Return the epsilon of a Renyi curve at `target_delta`.

    It is the minimum over the orders of D_a + ln((a-1)/a) - (ln delta + ln a)/(a-1).
    """
    if not np.any(curve):
        return 0.0
    epsilons = curve + np.log1p(-1 / orders) - (math.log(target_delta) + np.log(orders)) / (orders - 1)
    return max(0.0, float(np.min(epsilons)))
