"""One question for all theories: what epsilon does this event cost at this delta?

Every accountant gives an upper bound; the answer is the least of those that apply. Plain Gaussian noise is
exact (GDP). Everything is float64 on the host.
"""

import contextlib
import math
from functools import lru_cache

from sordino.core import check
from sordino.core.errors import UnsupportedEvent
from sordino.privacy.accountants import gdp, pld, rdp
from sordino.privacy.events import Event, gdp_mu_squared, non_private, steps

MANY = 100_000
__all__ = ["by_accountant", "epsilon"]


def by_accountant(event: Event, delta: float, grid: float = pld.FINE) -> dict[str, float]:
    """The answer of every accountant that has a theory for the event."""
    check.below_one(delta=delta)
    if non_private(event) is not None:
        return {"none": math.inf}
    if gdp_mu_squared(event) is not None:
        return {"gdp": gdp.epsilon(event, delta)}
    answers = {}
    with contextlib.suppress(UnsupportedEvent):
        answers["rdp"] = rdp.epsilon(event, delta)
    try:
        answers["pld"] = pld.epsilon(event, delta, grid)
    except UnsupportedEvent:
        if not answers:
            raise
    return answers


@lru_cache(maxsize=4096)
def epsilon(event: Event, delta: float, grid: float = pld.FINE) -> float:
    """The least valid epsilon of an event at delta; infinite where nothing is promised.

    A loss distribution beats RDP until the grid's error, which grows with the number of steps, takes over;
    below MANY steps RDP is therefore not asked.
    """
    if non_private(event) is None and gdp_mu_squared(event) is None and steps(event) < MANY:
        try:
            return pld.epsilon(event, delta, grid)
        except UnsupportedEvent:
            pass
    return min(by_accountant(event, delta, grid).values())
