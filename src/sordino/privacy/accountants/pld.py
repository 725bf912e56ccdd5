"""Privacy loss distributions on a grid, rounded to the pessimistic side.

Composition and connect-the-dots come from `dp-accounting`: Doroshenko, Ghazi, Kamath, Kumar, Manurangsi (2022),
arXiv:2207.04380. Sampling a whole round is our own: Zhu, Dong, Wang (2022), arXiv:2106.08567, Theorem 11, says
that if (P, Q) dominates a mechanism, ((1-q)Q + qP, Q) and its reverse dominate the sampled one; their hockey
sticks are those of (P, Q) at a moved epsilon, so the grid of the inner distribution gives the outer one.
"""

import math
from functools import lru_cache

import numpy as np
from dp_accounting.pld import pld_pmf
from dp_accounting.pld import privacy_loss_distribution as library
from numpy.typing import NDArray

from sordino.core.errors import UnsupportedEvent
from sordino.privacy.events import Composed, Event, Gaussian, Repeated, Sampled, Visible

Floats = NDArray[np.float64]
FINE, COARSE = 1e-4, 1e-3  # loss grids: for a promise, and for a first look (still an upper bound)


def grid_for(epsilon: float) -> float:
    """A loss grid fine enough for an epsilon of about that size: FINE at 2, finer below, coarser above."""
    return min(max(epsilon * FINE / 2, 1e-5), 1e-2)


@lru_cache(maxsize=64)
def pld(event: Event, grid: float = FINE) -> library.PrivacyLossDistribution:
    match event:
        case Gaussian(z):
            return library.from_gaussian_mechanism(z, value_discretization_interval=grid)
        case Repeated(inner, count):
            return pld(inner, grid).self_compose(count) if count else _nothing(grid)
        case Composed(events):
            total = _nothing(grid)
            for part in events:
                total = total.compose(pld(part, grid))
            return total
        case Visible(inner, rate):
            return pld(inner, grid).compute_mixture(_nothing(grid), rate) if rate < 1 else pld(inner, grid)
        case Sampled(inner, 1.0):
            return pld(inner, grid)
        case Sampled(Gaussian(z), rate):
            return library.from_gaussian_mechanism(z, value_discretization_interval=grid, sampling_prob=rate)
        case Sampled(inner, rate):
            return _sampled(pld(inner, grid), rate, grid)
        case _:
            raise UnsupportedEvent(f"pld has no distribution for {event!r}.")


def epsilon(event: Event, target_delta: float, grid: float = FINE) -> float:
    return float(pld(event, grid).get_epsilon_for_delta(target_delta))


def _nothing(grid: float) -> library.PrivacyLossDistribution:
    return library.identity(value_discretization_interval=grid)


def _sampled(inner: library.PrivacyLossDistribution, q: float, grid: float) -> library.PrivacyLossDistribution:
    remove = inner._pmf_remove.to_dense_pmf()  # of (P, Q): with the unit against without it
    add = inner._pmf_add.to_dense_pmf()  # of (Q, P)
    top = max(_highest(remove), _highest(add))
    bound = math.ceil(math.log1p(q * math.expm1(min(top, 700.0))) / grid) + 1
    floor = math.floor(math.log1p(-q) / grid) - 1
    # H_g((1-q)Q + qP || Q) = q H_h(P || Q), h = 1 + (g - 1)/q; and 1 - g below g = 1 - q
    at = np.arange(floor, bound + 1)
    g = np.exp(at * grid)
    h = 1 + (g - 1) / q
    outer_remove = np.where(h > 0, q * _delta(remove, np.log(np.maximum(h, 1e-300))), 1 - g)
    # H_g(Q || (1-q)Q + qP) = (1 - g(1-q)) H_h(Q || P), h = g q / (1 - g(1-q)); and 0 from g = 1/(1-q)
    back = np.arange(-bound, -floor + 1)
    g = np.exp(back * grid)
    rest = 1 - g * (1 - q)
    h = np.where(rest > 0, g * q / np.where(rest > 0, rest, 1), np.inf)
    outer_add = np.where(rest > 0, rest * _delta(add, np.log(np.minimum(h, 1e300))), 0.0)
    return library.PrivacyLossDistribution(_connect(at, outer_remove, grid), _connect(back, outer_add, grid))


def _highest(pmf: pld_pmf.DensePLDPmf) -> float:
    return float((pmf._lower_loss + pmf.size) * pmf._discretization)


def _connect(at: NDArray[np.int64], deltas: Floats, grid: float) -> pld_pmf.PLDPmf:
    decreasing = np.minimum.accumulate(np.clip(deltas, 0.0, 1.0))
    return pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(grid, int(at[0]), int(at[-1]), decreasing)


def _delta(pmf: pld_pmf.DensePLDPmf, epsilons: Floats) -> Floats:
    """Hockey sticks of a dense distribution at any epsilons: sums over the losses above each of them."""
    losses = (pmf._lower_loss + np.arange(pmf.size)) * pmf._discretization
    probs = np.maximum(pmf._probs, 0.0)  # a Fourier transform leaves dust below zero
    mass = np.append(np.cumsum(probs[::-1])[::-1], 0.0)
    # sum of p e^{-loss} above an index, in logs: e^{-loss} of a very negative loss would overflow
    with np.errstate(divide="ignore"):
        logs = np.log(probs) - losses
    tails = np.append(np.logaddexp.accumulate(logs[::-1])[::-1], -np.inf)
    index = np.searchsorted(losses, epsilons, side="right")
    gone = np.exp(np.minimum(epsilons + tails[index], 700.0))
    return np.asarray(pmf._infinity_mass + np.maximum(mass[index] - gone, 0.0))
