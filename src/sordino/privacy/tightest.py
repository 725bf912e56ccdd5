"""The cost of an event under all theories at once: epsilon(delta), delta(epsilon), the trade-off curve.

Every accountant gives an upper bound; the result is the smallest of those that apply. Everything is float64 on the
host.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial

import numpy as np
from numpy.typing import NDArray

from sordino.core import check
from sordino.core.errors import SpecError, UnsupportedEvent
from sordino.privacy.accountants import advanced, basic, gdp, kov, pld, rdp, zcdp
from sordino.privacy.algebra import alternatives, distance, gdp_mu_squared, non_private, parts, relations
from sordino.privacy.events import Event, FixedSize, GaussianEvent, Sampled, Visible
from sordino.privacy.pairs import Floats

__all__ = ["AccountantBound", "delta", "epsilon", "explain", "trade_off"]

SPARE = 1e-6  # fraction of delta reserved for samplers that are not exact
TINY = 1e-15  # delta below which the composition of pairs is loose
MANY = 40  # number of different releases above which the grid is coarser
WHY = {
    "basic": "adds the epsilons and deltas of all releases",
    "advanced": "Dwork, Rothblum, Vadhan: grows with the root of the number of releases",
    "kov": "optimal if nothing is known of equal releases but their (epsilon, delta)",
    "zcdp": "adds the rhos, converts over all real orders",
    "rdp": "adds Renyi divergences at fixed orders, improved conversion",
    "gdp": "exact for plain Gaussian noise",
    "pld": "composes dominating pairs numerically, rounded to the safe side",
    "gdp-clt": "central limit: an approximation that may lie below the truth, never a promise",
}


@dataclass(frozen=True)
class AccountantBound:
    """The result of one accountant."""

    accountant: str
    epsilon: float | None  # None: the theory does not apply
    valid: bool  # whether epsilon is an upper bound
    note: str


def explain(event: Event, delta: float) -> list[AccountantBound]:
    """Return the result of every accountant, or the reason why it has none."""
    check.below_one(delta=delta)
    if (reason := non_private(event)) is not None:
        return [AccountantBound("none", math.inf, True, reason)]
    relations(event)  # refuses what no theorem covers
    dearest = _dearest(event, delta)
    answers, off = [], distance(dearest)
    for name, theory in _theories(dearest).items():
        try:
            bound = theory(delta * (1 - SPARE)) if off else theory(delta)
            bound = _of_inexact_samplers(bound, delta * SPARE, off) if off else bound
            answers.append(AccountantBound(name, bound, True, WHY[name]))
        except UnsupportedEvent as error:
            answers.append(AccountantBound(name, None, False, str(error)))
    if not any(a.valid for a in answers):
        raise UnsupportedEvent("no accountant has a theory for this: " + "; ".join(a.note for a in answers))
    if (mu := gdp.central_limit(event)) is not None:
        answers.append(AccountantBound("gdp-clt", gdp.epsilon_of_mu(mu, delta), False, WHY["gdp-clt"]))
    return answers


def _dearest(event: Event, delta: float) -> Event:
    """Return the alternative of an event that costs most, over the parts of the data that a unit may lie in."""
    each = alternatives(event)
    return each[0] if len(each) == 1 else max(each, key=lambda e: epsilon(e, delta, pld.ROUGH))


def _theories(event: Event) -> dict[str, Callable[[float], float]]:
    modules = {"basic": basic, "advanced": advanced, "kov": kov, "zcdp": zcdp, "rdp": rdp, "gdp": gdp, "pld": pld}
    return {name: partial(module.epsilon, event) for name, module in modules.items()}


@lru_cache(maxsize=4096)
def epsilon(event: Event, delta: float, cells: float = pld.FINE) -> float:
    """Return the smallest valid epsilon of an event at delta; infinite if there is no guarantee.

    Coarser `cells` (pld.ROUGH) are many times faster, and the result is larger by a few parts in ten thousand.
    """
    check.below_one(delta=delta)
    if non_private(event) is not None:
        return math.inf
    relations(event)  # refuses what no theorem covers
    if (each := alternatives(event)) != (event,):
        return max(epsilon(alternative, delta, cells) for alternative in each)
    if (off := distance(event)) > 0:
        return _of_inexact_samplers(_epsilon(event, delta * (1 - SPARE), cells), delta * SPARE, off)
    return _epsilon(event, delta, cells)


def _of_inexact_samplers(bound: float, spare: float, distance: float) -> float:
    """Return epsilon if the deviation of inexact samplers fits into the spare delta, else infinity.

    Samplers at a total variation distance from the accounted distributions cost (1 + e^epsilon) * distance of delta.
    """
    return bound if bound < 600 and (1 + math.exp(bound)) * distance <= spare else math.inf


def _epsilon(event: Event, delta: float, cells: float) -> float:
    releases = parts(event)
    if gdp_mu_squared(event) is not None:
        return gdp.epsilon(event, delta)
    if cells == pld.FINE and len(releases) > MANY:
        cells = pld.ROUGH
    theories: list[Callable[[], float]] = [lambda: pld.epsilon(event, delta, cells)]
    if delta < TINY or not all(_tight(part) for part in releases):  # no theory beats the composition of exact pairs
        if cells == pld.FINE or not any(isinstance(part, FixedSize) for part in releases):  # whose curve is slow
            theories.append(lambda: rdp.epsilon(event, delta))
        theories += [lambda: zcdp.epsilon(event, delta), lambda: basic.epsilon(event, delta)]
        theories.append(lambda: kov.epsilon(event, delta))
    return min(_answers(theories))


def _answers(theories: Sequence[Callable[[], float]]) -> list[float]:
    answers, problems = [], []
    for theory in theories:
        try:
            answers.append(theory())
        except UnsupportedEvent as error:
            problems.append(error)
    if not answers:
        raise problems[0]
    return answers


def _tight(part: Event) -> bool:
    """Return whether the pair of a release is exact: Gaussian noise, alone, sampled, or in rounds of such noise."""
    if isinstance(part, Sampled | Visible):
        return all(_tight(inner) for inner in parts(part.event))
    return isinstance(part, GaussianEvent)


def delta(event: Event, epsilon: float) -> float:
    """Return the smallest valid delta at epsilon >= 0; 1 if there is no guarantee."""
    check.non_negative(epsilon=epsilon)
    if non_private(event) is not None:
        return 1.0
    relations(event)  # refuses what no theorem covers
    if (each := alternatives(event)) != (event,):
        return max(delta(alternative, epsilon) for alternative in each)
    if gdp_mu_squared(event) is not None:
        return gdp.delta(event, epsilon)
    theories = [partial(theory, event, epsilon) for theory in (pld.delta, rdp.delta, zcdp.delta)]
    off = distance(event)
    return min(1.0, min(_answers(theories)) + (off * (1 + math.exp(min(epsilon, 700.0))) if off else 0.0))


def trade_off(event: Event, alphas: Floats, epsilons: int = 64) -> NDArray[np.float64]:
    """Return f(alpha), a lower bound on the type II error of any test at type I error alpha.

    f is the upper envelope of the lines of all (epsilon, delta(epsilon)): Dong, Roth, Su (2022), Proposition 2.12.

    Args:
        event: the event.
        alphas: type I errors in [0, 1].
        epsilons: the number of values of epsilon at which the envelope is evaluated.
    """
    points = np.asarray(alphas, dtype=np.float64)
    if not np.all((points >= 0) & (points <= 1)):
        raise SpecError("alphas are type I errors: they must lie in [0, 1].")
    if non_private(event) is not None:
        return np.zeros_like(points)
    most = max(epsilon(event, 1e-6, pld.ROUGH), 1e-3)
    curve = np.zeros_like(points)
    for eps in np.concatenate([[0.0], np.geomspace(most / 1e3, most, epsilons - 1)]):
        d = delta(event, float(eps))
        curve = np.maximum(curve, np.maximum(1 - d - np.exp(eps) * points, np.exp(-eps) * (1 - d - points)))
    return np.maximum(curve, 0.0)
