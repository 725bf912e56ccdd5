"""Operations on events: their elementary releases, costs for groups and replaced units, relations and properties."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import lru_cache
from itertools import chain, combinations_with_replacement, product

from sordino.core import check
from sordino.core.errors import UnsupportedEvent
from sordino.privacy.events import (
    Composed,
    Event,
    FixedSize,
    GaussianEvent,
    NonPrivate,
    Parallel,
    RandomStopping,
    Repeated,
    Sampled,
    SampledGroup,
    Visible,
    sampled_group,
)

RELATIONS = frozenset(("add/remove", "replace"))
MOST = 64  # largest number of alternatives that are accounted individually


def parts(event: Event) -> dict[Event, int]:
    """Return every elementary release of an event with its multiplicity.

    An elementary release is a leaf, or a leaf or a whole round under a sampler.
    """
    counts: Counter[Event] = Counter()
    _count(event, 1, counts)
    return dict(counts)


def _count(event: Event, times: int, counts: Counter[Event]) -> None:
    match event:
        case Repeated(inner, count):
            if count:
                _count(inner, times * count, counts)
        case Composed(events):
            for inner in events:
                _count(inner, times, counts)
        case Sampled(inner, 1.0, "add/remove") | Visible(inner, 1.0):
            _count(inner, times, counts)
        case FixedSize(inner, size, population) if size == population:
            _count(inner, times, counts)
        case _:
            counts[event] += times


def grouped(event: Event, k: int) -> Event:
    """Return the effect of an event on k units at once: a user with k records, or (k = 2) a replaced unit.

    Under a sampler the group is affected if any of its units is drawn, and then at most all k of them are.
    """
    check.count(group=k)
    if k == 1:
        return event
    match event:
        case Repeated(inner, count):
            return Repeated(grouped(inner, k), count)
        case Composed(events):
            return Composed(tuple(grouped(e, k) for e in events))
        case Parallel(events):  # the units of a group may lie in different parts
            return Composed(tuple(grouped(e, k) for e in events))
        case Sampled(GaussianEvent(z), rate, "add/remove"):
            return sampled_group(z, rate, k)
        case Sampled(inner, rate, relation):
            return Sampled(grouped(inner, k), -math.expm1(k * math.log1p(-rate)) if rate < 1 else 1.0, relation)
        case FixedSize(inner, size, population):
            return FixedSize(grouped(inner, k), min(k * size, population), population)
        case Visible(inner, rate):
            return Visible(grouped(inner, k), min(1.0, k * rate))
        case RandomStopping(inner):
            return replace(event, event=grouped(inner, k))
        case NonPrivate():
            return event
        case _:
            return event.grouped(k)


def replaced(event: Event) -> Event:
    """Return the effect of replacing one unit by another, given the effect of adding one.

    A report that is always sent is already about a replaced unit and is returned as it is.
    """
    match event:
        case Repeated(inner, count):
            return Repeated(replaced(inner), count)
        case Composed(events):
            return Composed(tuple(replaced(e) for e in events))
        case Sampled(inner, rate, "add/remove") if not of_replaced_units(inner):
            return Sampled(inner, rate, "replace")
        case Visible(inner, rate):
            return Visible(replaced(inner), rate)
        case RandomStopping(inner):
            return replace(event, event=replaced(inner))
        case Parallel(events, True):
            return Parallel(tuple(replaced(e) for e in events), by_place=True)
        case NonPrivate() | FixedSize() | Sampled():
            return event
        case _:
            return event if event.replaces else grouped(event, 2)


def scaled(event: Event, factor: float) -> Event:
    """Return the same releases with `factor` times their noise; each of them must have a noise scale."""
    match event:
        case Repeated(inner, count):
            return Repeated(scaled(inner, factor), count)
        case Composed(events):
            return Composed(tuple(scaled(e, factor) for e in events))
        case Parallel(events, by_place):
            return Parallel(tuple(scaled(e, factor) for e in events), by_place)
        case Sampled(inner, rate, relation):
            return Sampled(scaled(inner, factor), rate, relation)
        case FixedSize(inner, size, population):
            return FixedSize(scaled(inner, factor), size, population)
        case Visible(inner, rate):
            return Visible(scaled(inner, factor), rate)
        case RandomStopping(inner):
            return replace(event, event=scaled(inner, factor))
        case NonPrivate():
            return event
        case _:
            return event.scaled(factor)


def pure(event: Event) -> float | None:
    """Return epsilon if the releases of an event together are epsilon-DP, else None."""
    total = 0.0
    for part, count in parts(event).items():
        each = [pure(e) for e in part.events] if isinstance(part, Parallel) else [_pure_of(part)]
        if any(e is None for e in each):
            return None
        total += count * max((e for e in each if e is not None), default=0.0)
    return total


def _pure_of(part: Event) -> float | None:
    match part:
        case Sampled(inner, rate, "add/remove"):  # Balle, Barthe, Gaboardi (2018), Theorem 8
            epsilon = pure(inner)
            return None if epsilon is None else math.log1p(rate * math.expm1(min(epsilon, 700.0)))
        case FixedSize(inner, size, population):
            epsilon = pure(inner)
            return None if epsilon is None else math.log1p(size / population * math.expm1(min(epsilon, 700.0)))
        case Sampled(inner) | Visible(inner):
            return pure(inner)
        case _:
            return part.pure()


def of_replaced_units(event: Event) -> bool:
    """Return whether an event bounds the cost of replaced units only, and not of added or removed ones."""
    return "add/remove" not in relations(event)


@lru_cache(maxsize=4096)
def relations(event: Event) -> frozenset[str]:
    """Return the neighbouring relations under which an event bounds a cost; refuse an event that has none.

    A leaf is measured in units of the sensitivity that the code enforces and holds under either relation, unless it is
    a report that is always sent. A sampler has theorems for one relation only, and composed releases hold under the
    relations that they have in common.
    """
    match event:
        case Repeated(inner, count):
            return relations(inner) if count else RELATIONS
        case Composed(events):
            return _common(events)
        case Parallel(events, by_place):
            shared = _common(events)
            if not by_place and shared == {"replace"}:
                raise UnsupportedEvent(
                    "a replaced unit may leave one part of the data for another: "
                    "say by_place where the parts go by places and a public seed."
                )
            return shared if by_place else shared - {"replace"}
        case Visible(inner) | RandomStopping(inner):
            return relations(inner)
        case Sampled(inner, 1.0, "add/remove"):
            return relations(inner)
        case Sampled(inner, _, relation):
            if of_replaced_units(inner):
                raise UnsupportedEvent(
                    "the cost of replaced units cannot be Poisson-sampled: it shows whether a report came; use Visible."
                )
            return frozenset((relation,))
        case FixedSize(inner):
            if "replace" not in relations(inner):
                raise UnsupportedEvent(
                    "a sample of a fixed size hides replaced units only; this release is about added or removed ones."
                )
            if _splits(inner):
                raise UnsupportedEvent("no theorem covers parts of the data inside a sample of a fixed size.")
            return frozenset(("replace",))
        case SampledGroup():
            return frozenset(("add/remove",))
        case _:
            return frozenset(("replace",)) if event.replaces else RELATIONS


def _common(events: Iterable[Event]) -> frozenset[str]:
    shared = RELATIONS.intersection(*map(relations, events))
    if not shared:
        raise UnsupportedEvent(
            "a release about added or removed units and one about replaced units have no cost in common: "
            "price both under one relation."
        )
    return shared


def worst(theory: Callable[[Event], float], event: Event) -> float:
    """Return what a theory gives for the most expensive alternative of an event.

    An event that no theorem covers is refused.
    """
    relations(event)
    return max(theory(alternative) for alternative in alternatives(event))


def alternatives(event: Event) -> tuple[Event, ...]:
    """Return the effects that an event may have on one unit, depending on the parts of the data that contain it.

    None of the results contains a `Parallel`; the most expensive of them is the cost of the event. Every Parallel may
    split the data in its own way, so a unit in two of them can lie in any pair of parts. If there are more than MOST
    alternatives, the event is returned unchanged, and accountants take the worst part of every Parallel separately,
    which is an upper bound.
    """
    if not _splits(event):
        return (event,)
    places = [(_places(part), count) for part, count in parts(event).items()]
    if math.prod(math.comb(count + len(each) - 1, count) for each, count in places) > MOST:
        return (event,)
    ways = product(*(_shared(each, count) for each, count in places))
    return tuple(dict.fromkeys(_joined(way) for way in ways))


def _places(part: Event) -> tuple[Event, ...]:
    """Return the alternatives of one elementary release."""
    match part:
        case Parallel(events):
            nested: Iterable[Event] = chain.from_iterable(alternatives(e) for e in events)
            return tuple(dict.fromkeys(nested)) or (Composed(()),)
        case Sampled(inner, rate, "add/remove"):
            return tuple(Sampled(e, rate) for e in alternatives(inner))
        case Sampled(inner, rate, "replace") if "replace" in relations(inner):  # the unit stays in its part
            return tuple(Sampled(e, rate, "replace") for e in alternatives(inner))
        case Visible(inner, rate):
            return tuple(Visible(e, rate) for e in alternatives(inner))
        case _:
            return (part,)


def _shared(each: tuple[Event, ...], count: int) -> list[dict[Event, int]]:
    """Return all ways to distribute `count` repetitions over several alternatives."""
    if len(each) == 1:
        return [{each[0]: count}]
    return [dict(Counter(way)) for way in combinations_with_replacement(each, count)]


def _joined(way: tuple[dict[Event, int], ...]) -> Event:
    events = tuple(e if n == 1 else Repeated(e, n) for each in way for e, n in each.items())
    return events[0] if len(events) == 1 else Composed(events)


@lru_cache(maxsize=4096)
def _splits(event: Event) -> bool:
    """Return whether any release in the event is a Parallel, one of several on parts of the data."""
    releases = parts(event)
    inner = (getattr(part, "event", None) for part in releases)
    return any(isinstance(p, Parallel) for p in releases) or any(isinstance(e, Event) and _splits(e) for e in inner)


def non_private(event: Event) -> str | None:
    """Return the reason why an event gives no guarantee, or None if it gives one."""
    for part in parts(event):
        if isinstance(part, NonPrivate):
            return part.reason
        inner = part.events if isinstance(part, Parallel) else (getattr(part, "event", None),)
        for child in inner:
            if isinstance(child, Event) and (reason := non_private(child)) is not None:
                return reason
    return None


def gdp_mu_squared(event: Event) -> float | None:
    """Return mu^2 of an event that consists of plain Gaussians only (exactly mu-GDP), else None."""
    terms = [(_mu_squared(part), count) for part, count in parts(event).items()]
    if any(squared is None for squared, _ in terms):
        return None
    return math.fsum(count * squared for squared, count in terms if squared is not None)


def _mu_squared(part: Event) -> float | None:
    if not isinstance(part, Parallel):
        return None if (mu := part.gdp()) is None else mu * mu
    each = [gdp_mu_squared(e) for e in part.events]  # the largest is the worst at every delta
    return None if None in each else max((squared for squared in each if squared is not None), default=0.0)


def distance(event: Event) -> float:
    """Return a bound on the total variation distance of all samplers from the distributions that are accounted."""
    total = 0.0
    for part, count in parts(event).items():
        inner = part.events if isinstance(part, Parallel) else (getattr(part, "event", None),)
        total += count * float(getattr(part, "distance", 0.0))
        runs = part.mean if isinstance(part, RandomStopping) else 1.0
        total += count * runs * math.fsum(distance(child) for child in inner if isinstance(child, Event))
    return total


def steps(event: Event) -> int:
    """Return the number of elementary releases in an event."""
    total = 0
    for part, count in parts(event).items():
        inner = getattr(part, "event", None)
        if isinstance(part, Parallel):
            total += count * max((steps(e) for e in part.events), default=0)
        else:
            total += count * (steps(inner) if isinstance(inner, Event) else 1)
    return total
