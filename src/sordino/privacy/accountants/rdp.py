"""Renyi differential privacy at fixed orders.

Mironov (2017), arXiv:1702.07476; sampled Gaussian: Mironov, Talwar, Zhang (2019), arXiv:1908.10530; without
replacement: Wang, Balle, Kasiviswanathan (2019), arXiv:1808.00087; conversion: Canonne, Kamath, Steinke (2020),
arXiv:2004.00010, Proposition 12. The curves of single steps come from `dp-accounting`.
"""

from functools import lru_cache

import dp_accounting as dp
import numpy as np
from absl import logging as absl_logging
from dp_accounting.rdp import rdp_privacy_accountant as library
from numpy.typing import NDArray

from sordino.core.errors import UnsupportedEvent
from sordino.privacy.events import Composed, Event, FixedSize, Gaussian, Repeated, Sampled, Visible

Curve = NDArray[np.float64]  # one Renyi divergence an order

ORDERS: Curve = np.array(
    [1 + x / 10.0 for x in range(1, 100)] + [*range(11, 64), 80, 96, 128, 192, 256, 384, 512, 768, 1024],
    dtype=np.float64,
)


# orders at which the (slow) bound without replacement is evaluated
WHOLE: Curve = np.array([*range(2, 33), 36, 40, 44, 48, 52, 56, 60, 80, 96, 128, 192, 256], dtype=np.float64)


def _library_curve(event: dp.DpEvent, relation: dp.NeighboringRelation, orders: Curve = ORDERS) -> Curve:
    accountant = library.RdpAccountant(orders.tolist(), relation)
    level = absl_logging.get_verbosity()
    absl_logging.set_verbosity(absl_logging.ERROR)  # an order that does not converge is left out, soundly
    try:
        accountant.compose(event)
    finally:
        absl_logging.set_verbosity(level)
    return np.asarray(accountant.rdp, dtype=np.float64)


@lru_cache(maxsize=256)
def rdp(event: Event) -> Curve:
    """The Renyi divergences of an event at ORDERS (the worse direction)."""
    match event:
        case Gaussian(z):
            return ORDERS / (2 * z**2)
        case Repeated(inner, count):
            return count * rdp(inner) if count else np.zeros_like(ORDERS)
        case Composed(events):
            return np.asarray(sum((rdp(e) for e in events), np.zeros_like(ORDERS)))
        case Visible(inner, rate):
            # E[(P/Q)^a] = 1 - rate + rate * e^{(a-1) D_a}: with probability 1 - rate nothing is learnt
            power = (ORDERS - 1) * rdp(inner)
            absent = np.log1p(-rate) if rate < 1 else -np.inf
            return np.asarray(np.logaddexp(absent, np.log(rate) + power) / (ORDERS - 1))
        case Sampled(inner, 1.0):
            return rdp(inner)
        case Sampled(Gaussian(z), rate):
            relation = dp.NeighboringRelation.ADD_OR_REMOVE_ONE
            return _library_curve(dp.PoissonSampledDpEvent(rate, dp.GaussianDpEvent(z)), relation)
        case FixedSize(inner, size, population) if size == population:
            return rdp(inner)
        case FixedSize(Gaussian(z), size, population):
            relation = dp.NeighboringRelation.REPLACE_ONE
            step = dp.SampledWithoutReplacementDpEvent(population, size, dp.GaussianDpEvent(z))
            curve: Curve = rdp(Gaussian(z)).copy()  # sampling never hurts, so this bounds the other orders
            whole = np.isin(ORDERS, WHOLE)
            curve[whole] = np.minimum(curve[whole], _library_curve(step, relation, WHOLE))
            return curve
        case _:
            raise UnsupportedEvent(f"rdp has no curve for {event!r}.")


def epsilon(event: Event, target_delta: float) -> float:
    curve = rdp(event)
    if not np.any(curve):
        return 0.0
    return float(library.compute_epsilon(ORDERS, curve, target_delta)[0])
