"""Basic composition: epsilons and deltas add up.  Dwork et al. (2006), "Our data, ourselves", Theorem 1.

A release without a pure epsilon gets an equal share of delta and costs the exact epsilon of one use at that share.
"""

import math

from sordino.privacy.accountants import single
from sordino.privacy.algebra import worst
from sordino.privacy.events import Event


def epsilon(event: Event, target_delta: float) -> float:
    """Return epsilon at `target_delta` by basic composition."""
    return worst(lambda alternative: _epsilon(alternative, target_delta), event)


def _epsilon(event: Event, target_delta: float) -> float:
    return math.fsum(count * step.epsilon for step, count in single.steps_of(event, target_delta))
