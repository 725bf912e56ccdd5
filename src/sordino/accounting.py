"""Privacy accounting by itself: describe what is released, and ask what it costs in total. Imports no torch.

An event describes one release or many. Combine events, then ask for the smallest epsilon that all accountants together
can prove:

    >>> from sordino import accounting
    >>> step = accounting.Sampled(accounting.Gaussian(1.1), rate=0.01)  # one step of DP-SGD
    >>> run = accounting.Repeated(step, 1000)
    >>> round(accounting.epsilon(run, delta=1e-5), 3)
    1.515
    >>> hundred = lambda z: accounting.Repeated(accounting.Gaussian(z), 100)
    >>> round(accounting.calibrate(hundred, epsilon=2.0, delta=1e-5), 2)
    19.94

Events of other mechanisms come from the mechanisms themselves: `sordino.mechanisms.Laplace(2.0).event()`.
"""

from __future__ import annotations

from collections.abc import Callable

from sordino.privacy.events import (
    Approximate,
    Composed,
    Cost,
    Event,
    FixedSize,
    NonPrivate,
    Parallel,
    Pure,
    Repeated,
    Sampled,
    SampledGroup,
    Visible,
)
from sordino.privacy.events import GaussianEvent as Gaussian
from sordino.privacy.guarantee import Guarantee
from sordino.privacy.tightest import delta, epsilon, explain, trade_off

__all__ = [
    "Approximate",
    "Composed",
    "Cost",
    "Event",
    "FixedSize",
    "Gaussian",
    "Guarantee",
    "NonPrivate",
    "Parallel",
    "Pure",
    "Repeated",
    "Sampled",
    "SampledGroup",
    "Visible",
    "calibrate",
    "delta",
    "epsilon",
    "explain",
    "trade_off",
]


def calibrate(make: Callable[[float], Event], epsilon: float, delta: float) -> float:
    """Return the smallest noise multiplier with which a run stays within its total budget.

    Args:
        make: Builds the event of the whole run from a noise multiplier. More noise must never cost more.
        epsilon: The total epsilon of the run.
        delta: The total delta of the run.

    Returns:
        The noise multiplier, rounded up: the ratio of the noise's standard deviation to the sensitivity.

    Raises:
        BudgetError: No amount of noise reaches the budget; the message says which epsilon could be reached.
    """
    from sordino.privacy.calibrate import noise_multiplier

    return noise_multiplier(make, epsilon, delta)


def __dir__() -> list[str]:
    return sorted(__all__)
