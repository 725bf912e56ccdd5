"""The algebra of events: what they are made of, what k units at once or a replaced one cost, what they promise."""

from __future__ import annotations

import math
from collections import Counter

from sordino.core import check
from sordino.privacy.events import (
    Composed,
    Event,
    FixedSize,
    Gaussian,
    NonPrivate,
    Parallel,
    Repeated,
    Sampled,
    Visible,
    sampled_group,
)


def parts(event: Event) -> dict[Event, int]:
    """Every elementary release of an event (a leaf, or a leaf or whole round under a sampler) and how often."""
    found: Counter[Event] = Counter()
    _count(event, 1, found)
    return dict(found)


def _count(event: Event, times: int, found: Counter[Event]) -> None:
    match event:
        case Repeated(inner, count):
            if count:
                _count(inner, times * count, found)
        case Composed(events):
            for inner in events:
                _count(inner, times, found)
        case Sampled(inner, 1.0, "add/remove") | Visible(inner, 1.0):
            _count(inner, times, found)
        case FixedSize(inner, size, population) if size == population:
            _count(inner, times, found)
        case _:
            found[event] += times


def grouped(event: Event, k: int) -> Event:
    """What an event does to k units at once: a user with k records, or (k = 2) a replaced unit.

    Under a sampler the group is touched if any of its units is drawn, and then at most all k of them are.
    """
    check.count(group=k)
    if k == 1:
        return event
    match event:
        case Repeated(inner, count):
            return Repeated(grouped(inner, k), count)
        case Composed(events):
            return Composed(tuple(grouped(e, k) for e in events))
        case Parallel(events):  # the units of a group may live in different parts
            return Composed(tuple(grouped(e, k) for e in events))
        case Sampled(Gaussian(z), rate, "add/remove"):
            return sampled_group(z, rate, k)
        case Sampled(inner, rate, relation):
            return Sampled(grouped(inner, k), -math.expm1(k * math.log1p(-rate)) if rate < 1 else 1.0, relation)
        case FixedSize(inner, size, population):
            return FixedSize(grouped(inner, k), min(k * size, population), population)
        case Visible(inner, rate):
            return Visible(grouped(inner, k), min(1.0, k * rate))
        case NonPrivate():
            return event
        case _:
            return event.grouped(k)


def replaced(event: Event) -> Event:
    """What replacing one unit by another does, given what adding one does; a report is about that already."""
    match event:
        case Repeated(inner, count):
            return Repeated(replaced(inner), count)
        case Composed(events):
            return Composed(tuple(replaced(e) for e in events))
        case Sampled(inner, rate, "add/remove") if not of_replaced_units(inner):
            return Sampled(inner, rate, "replace")
        case Visible(inner, rate):
            return Visible(replaced(inner), rate)
        case NonPrivate() | FixedSize() | Sampled():
            return event
        case _:
            return event if event.replaces else grouped(event, 2)


def of_replaced_units(event: Event) -> bool:
    """Whether some part is a statement about replaced units only, and so none about added or removed ones."""
    for part in parts(event):
        inner = getattr(part, "event", None)
        if part.replaces or isinstance(part, FixedSize) or getattr(part, "relation", None) == "replace":
            return True
        if isinstance(inner, Event) and of_replaced_units(inner):
            return True
    return False


def non_private(event: Event) -> str | None:
    """The reason why an event gives no guarantee, or None if it gives one."""
    for part in parts(event):
        if isinstance(part, NonPrivate):
            return part.reason
        inner = part.events if isinstance(part, Parallel) else (getattr(part, "event", None),)
        for one in inner:
            if isinstance(one, Event) and (reason := non_private(one)) is not None:
                return reason
    return None


def gdp_mu_squared(event: Event) -> float | None:
    """mu^2 of an event made of plain Gaussians only (exactly mu-GDP), else None."""
    found = [(part.gdp(), count) for part, count in parts(event).items()]
    if any(mu is None for mu, _ in found):
        return None
    return math.fsum(count * mu * mu for mu, count in found if mu is not None)


def distance(event: Event) -> float:
    """How far, in total variation, the samplers of all releases may be from the laws that are accounted."""
    total = 0.0
    for part, count in parts(event).items():
        inner = part.events if isinstance(part, Parallel) else (getattr(part, "event", None),)
        total += count * float(getattr(part, "distance", 0.0))
        total += count * math.fsum(distance(one) for one in inner if isinstance(one, Event))
    return total


def steps(event: Event) -> int:
    """How many elementary releases an event is made of."""
    total = 0
    for part, count in parts(event).items():
        inner = getattr(part, "event", None)
        if isinstance(part, Parallel):
            total += count * max((steps(e) for e in part.events), default=0)
        else:
            total += count * (steps(inner) if isinstance(inner, Event) else 1)
    return total
