"""Calibration of noise to a target epsilon, never less private than requested.

It works for anything with a single parameter: a noise multiplier, a scale, a number of steps. Costs are computed on the
rough grid, which overestimates them by a few parts in ten thousand, so the result is safe and hardly larger than
needed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from sordino.core import check
from sordino.core.errors import BudgetError, SpecError
from sordino.privacy.accountants import pld
from sordino.privacy.algebra import alternatives, gdp_mu_squared, non_private
from sordino.privacy.events import Event, NonPrivate
from sordino.privacy.tightest import epsilon

LARGEST, SMALLEST = 1e6, 1e-4  # noise above which nothing is learnt, and below which nothing is hidden
CLOSE = 5e-4  # relative distance to the target at which a search stops


STARTS = tuple(16.0**k for k in (0, 1, -1, 2, -2, 3, -3, 4, -4, 5, -5))


def noise_multiplier(make: Callable[[float], Event], target: float, delta: float) -> float:
    """Return the smallest noise level z (rounded up) with epsilon(make(z)) <= target.

    Values that `make` refuses with a SpecError count as an infinite epsilon, so a mechanism with limits of its own is
    searched up to these limits. One evaluation may be slow, so few are made: the search is a secant method for ln
    epsilon over ln z, which starts on the coarsest grid. Where a unit may lie in one of several parts of the data, z is
    calibrated for each part that depends on it, and the largest z is returned.

    Args:
        make: builds the event of the whole run from z; its epsilon must not grow with z.
        target: the epsilon to reach.
        delta: the delta at which epsilon is evaluated.

    Raises:
        BudgetError: if no noise level reaches the target.
    """
    check.positive(epsilon=target)
    check.below_one(delta=delta)

    def tried(z: float) -> Event:
        try:
            return make(z)
        except SpecError as error:
            return NonPrivate(str(error))

    start = next((z for z in STARTS if non_private(tried(z)) is None), None)
    if start is None:
        make(1.0)  # raises the error that explains why
        raise BudgetError(f"no noise reaches epsilon={target:g} here: {non_private(make(1.0))}.")
    each = alternatives(tried(start))
    if len(each) == 1:
        return _noise(tried, start, target, delta)
    multipliers = []
    for i, alternative in enumerate(each):
        if alternative != _alternative(tried(2 * start), i):
            multipliers.append(_noise(lambda z, i=i: _alternative(tried(z), i), start, target, delta))  # type: ignore[misc]
        elif (cost := epsilon(alternative, delta)) > target:
            raise BudgetError(
                f"what is released of one part of the data costs epsilon={cost:.3g} of {target:g} at delta={delta:g}, "
                "whatever the noise elsewhere: add noise to that part."
            )
    return max(multipliers, default=start)


def _alternative(event: Event, i: int) -> Event:
    return event if non_private(event) is not None else alternatives(event)[i]


def _noise(make: Callable[[float], Event], start: float, target: float, delta: float) -> float:
    search = _Secant(target, delta)
    near = search.find(lambda z: epsilon(make(z), delta, pld.SLOPPY), start, close=0.03)
    close = CLOSE / 100 if gdp_mu_squared(make(start)) is not None else CLOSE  # plain Gaussian noise is exact and fast
    return search.find(lambda z: epsilon(make(z), delta, pld.ROUGH), near, close)


@dataclass
class _Secant:
    target: float
    delta: float
    slope: float = -1.0  # slope of ln epsilon over ln z, initially that of small Gaussian noise

    def find(self, costs: Callable[[float], float], z: float, close: float) -> float:
        """Return a z whose cost is below the target by a fraction of at most `close`, or the smallest safe z."""
        aim = math.log(self.target) - close / 2
        small: tuple[float, float] | None = None  # ln z at which the cost is too large, and ln of that cost
        large: tuple[float, float] | None = None
        x = math.log(z)
        for attempt in range(200):
            cost = costs(math.exp(x))
            y = math.log(min(max(cost, 1e-6 * self.target), 1e6 * self.target))
            known = small or large
            if known is not None and abs(x - known[0]) < 1 and x != known[0]:
                self.slope = min(max((y - known[1]) / (x - known[0]), -4.0), -0.05)
            if cost <= self.target:
                large = (x, y)
                if cost >= self.target * (1 - close) or x <= math.log(SMALLEST):
                    break
            else:
                small = (x, y)
            if small is None or large is None:
                x += math.copysign(min(max(abs(aim - y) / -self.slope, close), math.log(64)), y - aim)
                x = max(x, math.log(SMALLEST))
                if x > math.log(LARGEST):
                    raise self._out_of_reach(costs(LARGEST))
                continue
            if large[0] - small[0] < 1e-9:
                break
            share = (small[1] - aim) / (small[1] - large[1]) if small[1] > large[1] else 0.5
            share = min(max(share, 0.02), 0.98) if attempt < 12 else 0.5
            x = small[0] + share * (large[0] - small[0])
        if large is None:
            raise self._out_of_reach(cost)
        return math.exp(large[0])

    def _out_of_reach(self, lowest: float) -> BudgetError:
        return BudgetError(
            f"no noise multiplier up to {LARGEST:g} reaches epsilon={self.target:g} at delta={self.delta:g} "
            f"(lowest reachable: {lowest:.3g}). Use fewer rounds or steps, a smaller rate, or a larger epsilon."
        )


def smallest_multiple(make: Callable[[int], Event], target: float, delta: float, near: int, step: int = 1) -> int:
    """Return the smallest multiple of `step` whose event is within the target, such as a number of trials.

    The search starts from `near`, which must be within the target, and looks at most about 2 % below it.
    """
    low, high = max(0, int(0.98 * near) // step - 1), near // step
    while high - low > 1:
        middle = (low + high) // 2
        try:
            safe = epsilon(make(middle * step), delta, pld.ROUGH) <= target
        except SpecError:
            safe = False
        low, high = (low, middle) if safe else (middle, high)
    return high * step


def steps_within(make: Callable[[int], Event], target: float, delta: float, most: int) -> int:
    """Return the largest number of steps (rounds, participations) from 0 to `most` whose epsilon is within the target.

    Above ENOUGH steps the result may be a few steps below the largest number, with an epsilon that is 2e-5 (relative)
    below the target.
    """
    check.positive(epsilon=target)
    check.below_one(delta=delta)
    check.count(most=most)
    near = _steps(lambda n: epsilon(make(n), delta, pld.SLOPPY), target, most, 1, close=0.02)
    return _steps(lambda n: epsilon(make(n), delta, pld.ROUGH), target, most, max(near, 1), close=2e-5)


ENOUGH = 5000


def _steps(costs: Callable[[int], float], target: float, most: int, n: int, close: float) -> int:
    """Return the largest n within the target, or a large n that is `close`; epsilon is roughly a power of n."""
    low, high, slope = (0, 0.0), (most + 1, math.inf), 0.5
    for attempt in range(200):
        cost = costs(n)
        if 0 < low[0] != n and low[1] > 0 and math.isfinite(cost):
            slope = min(max(math.log(max(cost, 1e-300) / low[1]) / math.log(n / low[0]), 0.1), 2.0)
        if cost <= target:
            low = (n, cost)
        else:
            high = (n, cost)
        done = low[0] > ENOUGH and low[1] >= target * (1 - close)
        if high[0] - low[0] <= 1 or done:
            break
        known, value = low if low[1] > 0 else high
        guess = 2.0 * n
        if 0 < value < math.inf:
            guess = known * min(max(target / value, 1e-9), 1e9) ** (1 / slope)
        if attempt > 20 and high[0] <= most:
            guess = (low[0] + high[0]) / 2  # after that many evaluations: not a power of n, so bisect
        n = int(min(max(guess, low[0] + 1), high[0] - 1))
    return low[0]
