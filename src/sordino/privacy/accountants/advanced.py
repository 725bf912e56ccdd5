"""Advanced composition: sqrt(2 ln(1/delta') sum eps_i^2) + sum eps_i (e^eps_i - 1).

Dwork, Rothblum, Vadhan (2010), "Boosting and differential privacy", Theorem III.3. Half of delta pays for the
composition, half for the releases without a pure epsilon (all of it for the composition if every release has one).
"""

import math

from sordino.privacy.accountants import single
from sordino.privacy.algebra import worst
from sordino.privacy.events import Event


def epsilon(event: Event, target_delta: float) -> float:
    """Return epsilon at `target_delta` by advanced composition."""
    return worst(lambda alternative: _epsilon(alternative, target_delta), event)


def _epsilon(event: Event, target_delta: float) -> float:
    steps = single.steps_of(event, target_delta / 2)
    spent = math.fsum(count * step.delta for step, count in steps)
    return of_steps([(step.epsilon, count) for step, count in steps], target_delta - spent)


def of_steps(steps: list[tuple[float, int]], slack: float) -> float:
    """Return epsilon of pure steps, given as (epsilon, count), with delta' = `slack`."""
    squares = math.fsum(count * eps * eps for eps, count in steps)
    drift = math.fsum(count * eps * math.expm1(min(eps, 700.0)) for eps, count in steps)
    return math.sqrt(2 * math.log(1 / slack) * squares) + drift
