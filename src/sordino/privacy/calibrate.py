"""Target epsilon -> noise multiplier, never less private than asked."""

import math
from collections.abc import Callable

from scipy.optimize import brentq

from sordino.core import check
from sordino.core.errors import BudgetError
from sordino.privacy.account import epsilon
from sordino.privacy.accountants import pld
from sordino.privacy.events import Event, non_private

LARGEST = 1e5  # a noise multiplier beyond which nothing is learnt


def noise_multiplier(make: Callable[[float], Event], target: float, delta: float) -> float:
    """The least noise multiplier z (to 1e-4, rounded up) with epsilon(make(z)) <= target.

    `make` builds the event of the whole run from z; epsilon must not grow with z.
    """
    check.positive(epsilon=target)
    check.below_one(delta=delta)
    if (reason := non_private(make(1.0))) is not None:
        raise BudgetError(f"no noise reaches epsilon={target:g} here: {reason}.")

    fine = pld.grid_for(target)

    def costs(z: float, grid: float = 10 * fine) -> float:
        return epsilon(make(z), delta, grid)

    high = 1.0
    while costs(high) > target:
        high *= 2
        if high > LARGEST:
            lowest = costs(LARGEST)
            raise BudgetError(
                f"no noise multiplier up to {LARGEST:g} reaches epsilon={target:g} at delta={delta:g} (lowest "
                f"reachable: {lowest:.3g}). Use fewer rounds or steps, a smaller rate, or a larger epsilon."
            )
    low = high / 2
    while costs(low) <= target and low > 1e-3:
        high, low = low, low / 2
    high = _root(costs, target, low, high)
    # the coarse grid lies above the fine one, so `high` is safe; look a little below it on the fine grid
    return _root(lambda z: costs(z, fine), target, 0.98 * high, high)


def _root(costs: Callable[[float], float], target: float, low: float, high: float) -> float:
    """A z in [low, high], within 1e-4 above the root of costs(z) = target; `high` is known to be good."""

    def excess(log_z: float) -> float:
        return math.log(max(costs(math.exp(log_z)), 1e-12) / target)

    if excess(math.log(low)) <= 0:
        return low
    root = math.exp(float(brentq(excess, math.log(low), math.log(high), xtol=2e-5)))
    while costs(root) > target:
        root = min(root * (1 + 2e-5), high)
    return root
