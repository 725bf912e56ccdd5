"""Zero-concentrated differential privacy: D_a <= rho a for all a > 1; rhos add up.

Bun and Steinke (2016), arXiv:1605.02065; conversion over all real orders by Canonne, Kamath, Steinke (2020),
arXiv:2004.00010, Proposition 12.
"""

import math
from collections.abc import Callable

from scipy.optimize import minimize_scalar

from sordino.core.errors import UnsupportedEvent
from sordino.privacy.algebra import parts, relations
from sordino.privacy.events import Event, Parallel


def rho_of(event: Event) -> float:
    """Return the sum of rho over all releases; a split counts with its worst part, the one with the largest rho."""
    relations(event)  # refuses events that no theorem covers
    total = []
    for part, count in parts(event).items():
        rho = max(map(rho_of, part.events), default=0.0) if isinstance(part, Parallel) else part.rho()
        if rho is None:
            raise UnsupportedEvent("zcdp needs a rho for every release; a sampled one has none.")
        total.append(count * rho)
    return math.fsum(total)


def epsilon(event: Event, target_delta: float) -> float:
    """Return an upper bound on epsilon at `target_delta`."""
    return epsilon_of_rho(rho_of(event), target_delta)


def delta(event: Event, target_epsilon: float) -> float:
    """Return an upper bound on delta at `target_epsilon`."""
    rho = rho_of(event)
    return math.exp(min(0.0, _least(lambda a: _log_delta(a, rho, target_epsilon)))) if rho > 0 else 0.0


def epsilon_of_rho(rho: float, target_delta: float) -> float:
    """Return the epsilon of rho-zCDP at `target_delta`.

    It is the minimum over real a > 1 of rho a + ln((a-1)/a) - (ln delta + ln a)/(a-1).
    """
    if rho <= 0:
        return 0.0
    log = math.log(target_delta)
    return max(0.0, _least(lambda a: rho * a + math.log1p(-1 / a) - (log + math.log(a)) / (a - 1)))


def _log_delta(a: float, rho: float, epsilon: float) -> float:
    return (a - 1) * (rho * a + math.log1p(-1 / a) - epsilon) - math.log(a)


def _least(of_order: Callable[[float], float]) -> float:
    """Return the minimum over orders a = 1 + e^t of a function with a single minimum."""
    options = {"xatol": 1e-10}
    result = minimize_scalar(lambda t: of_order(1 + math.exp(t)), bounds=(-12, 25), method="bounded", options=options)
    return float(result.fun)
