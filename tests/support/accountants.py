"""All accountants by name, and what they say of an event."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from sordino.core.errors import UnsupportedEvent
from sordino.privacy import tightest
from sordino.privacy.accountants import advanced, basic, gdp, kov, pld, rdp, zcdp
from sordino.privacy.events import Event

Accountant = Callable[[Event, float], float]

BY_NAME: dict[str, Accountant] = {
    "basic": basic.epsilon,
    "advanced": advanced.epsilon,
    "kov": kov.epsilon,
    "zcdp": zcdp.epsilon,
    "rdp": rdp.epsilon,
    "gdp": gdp.epsilon,
    "pld": pld.epsilon,
}


def rough(event: Event, delta: float) -> float:
    """The epsilon of losses on a rough grid."""
    return pld.epsilon(event, delta, pld.ROUGH)


def answers_of(event: Event, accountants: Mapping[str, Accountant], at: float) -> dict[str, float]:
    """Return what every accountant says that says anything; at: the delta, or the epsilon where deltas are asked."""
    found = {}
    for name, ask in accountants.items():
        try:
            found[name] = ask(event, at)
        except UnsupportedEvent:
            continue
    return found


def by_accountant(event: Event, delta: float) -> dict[str, float]:
    """Return the epsilon of every accountant whose theory bounds the event, as `tightest.explain` lists them."""
    return {a.accountant: a.epsilon for a in tightest.explain(event, delta) if a.valid and a.epsilon is not None}
