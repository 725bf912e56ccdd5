"""What a release does to one protected unit: data only, no arithmetic.

An event says how two neighbouring inputs can be told apart, measured in units of the sensitivity the code
enforces. Events nest: a round of local DP-SGD is `Repeated(Sampled(Gaussian(1.1), 0.05), 20)`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from sordino.core import check
from sordino.core.errors import SpecError


class Event:
    """The root of all events; frozen, comparable, hashable."""


@dataclass(frozen=True)
class Gaussian(Event):
    """Gaussian noise with std = noise_multiplier * L2 sensitivity."""

    noise_multiplier: float

    def __post_init__(self) -> None:
        check.positive(noise_multiplier=self.noise_multiplier)


@dataclass(frozen=True)
class Sampled(Event):
    """`event`, if the protected unit is drawn (Poisson, probability `rate`); the draw stays secret.

    Not drawn must look exactly like not there. Add/remove relation only.
    """

    event: Event
    rate: float

    def __post_init__(self) -> None:
        check.probability(rate=self.rate)


@dataclass(frozen=True)
class FixedSize(Event):
    """`event` on `size` of `population` units drawn without replacement; the draw stays secret.

    Replace-one relation only: `event` is what replacing one unit of the sample does.
    """

    event: Event
    size: int
    population: int

    def __post_init__(self) -> None:
        check.count(size=self.size, population=self.population)
        if self.size > self.population:
            raise SpecError(f"cannot draw {self.size} of {self.population} without replacement.")


@dataclass(frozen=True)
class Visible(Event):
    """`event` happens with probability `rate`, and the viewer is assumed to learn whether it did.

    The price of a record inside a client that is drawn with probability `rate`. A drawn client brings all its
    other records, so "client not drawn" does not look like "record not there" and `Sampled` would under-count.
    By joint convexity of the hockey-stick divergence, delta(eps) = rate * delta_event(eps) for one round.
    """

    event: Event
    rate: float

    def __post_init__(self) -> None:
        check.probability(rate=self.rate)


@dataclass(frozen=True)
class Repeated(Event):
    event: Event
    count: int  # zero is allowed: nothing has happened yet

    def __post_init__(self) -> None:
        if isinstance(self.count, bool) or not isinstance(self.count, int) or self.count < 0:
            raise SpecError(f"count must be a whole number of at least 0, not {self.count!r}.")


@dataclass(frozen=True)
class Composed(Event):
    events: tuple[Event, ...]


@dataclass(frozen=True)
class NonPrivate(Event):
    """No guarantee at all: epsilon is infinite, and `reason` says why."""

    reason: str


@dataclass(frozen=True)
class Cost:
    """An event, for whose data (unit, relation) and against whom (viewer)."""

    unit: str  # "record" | "client"
    relation: str  # "add/remove" | "replace"
    viewer: str  # "server": sees every message; "public": sees the released models
    event: Event


_KINDS: dict[str, type[Event]] = {
    c.__name__: c for c in (Gaussian, Sampled, FixedSize, Visible, Repeated, Composed, NonPrivate)
}


def to_json(event: Event) -> dict[str, Any]:
    out: dict[str, Any] = {"kind": type(event).__name__}
    for name, value in vars(event).items():
        if isinstance(value, Event):
            out[name] = to_json(value)
        elif isinstance(value, tuple):
            out[name] = [to_json(v) for v in value]
        else:
            out[name] = value
    return out


def from_json(data: dict[str, Any]) -> Event:
    fields = {k: v for k, v in data.items() if k != "kind"}
    for name, value in fields.items():
        if isinstance(value, dict):
            fields[name] = from_json(value)
        elif isinstance(value, list):
            fields[name] = tuple(from_json(v) for v in value)
    kind = _KINDS.get(data.get("kind", ""))
    if kind is None:
        raise SpecError(f"unknown privacy event {data.get('kind')!r}.")
    return kind(**fields)


def non_private(event: Event) -> str | None:
    """The reason why an event gives no guarantee, or None if it gives one."""
    if isinstance(event, NonPrivate):
        return event.reason
    if isinstance(event, Repeated) and event.count == 0:
        return None
    if isinstance(event, Composed):
        return next((r for e in event.events if (r := non_private(e)) is not None), None)
    inner = getattr(event, "event", None)
    return non_private(inner) if isinstance(inner, Event) else None


def gdp_mu_squared(event: Event) -> float | None:
    """mu^2 of an event made of plain Gaussians only (exactly mu-GDP), else None."""
    if isinstance(event, Gaussian):
        return event.noise_multiplier**-2
    if isinstance(event, Repeated):
        inner = gdp_mu_squared(event.event)
        return None if inner is None else inner * event.count
    if isinstance(event, Composed):
        parts = [gdp_mu_squared(e) for e in event.events]
        return None if None in parts else math.fsum(p for p in parts if p is not None)
    if isinstance(event, Sampled | Visible) and event.rate == 1.0:
        return gdp_mu_squared(event.event)
    if isinstance(event, FixedSize) and event.size == event.population:
        return gdp_mu_squared(event.event)
    return None


def steps(event: Event) -> int:
    """How many elementary releases an event is made of."""
    if isinstance(event, Repeated):
        return event.count * steps(event.event)
    if isinstance(event, Composed):
        return sum(steps(e) for e in event.events)
    inner = getattr(event, "event", None)
    return steps(inner) if isinstance(inner, Event) else 1
