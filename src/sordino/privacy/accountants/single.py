"""The (epsilon, delta) of one use of every release, which is all that the oldest composition theorems use."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sordino.core.errors import UnsupportedEvent
from sordino.privacy.accountants import pld, rdp
from sordino.privacy.algebra import parts, relations
from sordino.privacy.events import Event, Sampled, Visible


@dataclass(frozen=True)
class Single:
    """The (epsilon, delta) of one use of a release."""

    epsilon: float
    delta: float


def steps_of(event: Event, spare: float) -> list[tuple[Single, int]]:
    """Return each elementary release with its count.

    Releases without a pure epsilon share the delta `spare` equally.
    """
    relations(event)  # refuses events that no theorem covers
    releases = parts(event)
    pure = {part: pure_of(part) for part in releases}
    needy = sum(count for part, count in releases.items() if pure[part] is None)
    out = []
    for part, count in releases.items():
        level = pure[part]
        step = Single(level, 0.0) if level is not None else _approximate(part, spare / needy)
        out.append((step, count))
    return out


def pure_of(part: Event) -> float | None:
    """Return the pure epsilon of one use, or None.

    A Poisson sample of an eps-DP release is ln(1 + q (e^eps - 1))-DP (Li, Qardaji, Su 2012).
    """
    if isinstance(part, Sampled) and part.relation == "add/remove":
        inner = pure_of(part.event)
        return None if inner is None else float(np.logaddexp(np.log1p(-part.rate), np.log(part.rate) + inner))
    if isinstance(part, Visible):
        return pure_of(part.event)
    if hasattr(part, "event"):
        return None
    return part.pure()


def _approximate(part: Event, delta: float) -> Single:
    try:
        return Single(pld.epsilon(part, delta), delta)
    except UnsupportedEvent:
        return Single(rdp.epsilon(part, delta), delta)
