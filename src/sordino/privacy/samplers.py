"""Who takes part: the object that draws is the object that is accounted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from sordino.core import check
from sordino.core.errors import SpecError
from sordino.core.rng import Ints, Stream
from sordino.privacy import events
from sordino.privacy.algebra import of_replaced_units
from sordino.privacy.events import Event, Sampled, Visible


class Sampler(Protocol):
    @property
    def relation(self) -> str:
        """The neighbouring relation under which the draw amplifies."""

    def draw(self, population: int, rng: Stream) -> Ints: ...

    def probability(self, population: int) -> float:
        """With which one unit is drawn."""

    def hidden(self, event: Event, population: int) -> Event:
        """What `event`, done to the drawn units, costs a unit against a viewer who cannot see the draw."""


@dataclass(frozen=True)
class Poisson:
    """Each unit independently with probability `rate`."""

    rate: float

    def __post_init__(self) -> None:
        check.probability(rate=self.rate)

    @property
    def relation(self) -> str:
        return "add/remove"

    def draw(self, population: int, rng: Stream) -> Ints:
        return rng.poisson(population, self.rate)

    def probability(self, population: int) -> float:
        return self.rate

    def hidden(self, event: Event, population: int) -> Event:
        """Sampled; but whether a report came shows, so of a statement about replaced units the chance alone helps."""
        if self.rate == 1:
            return event
        return Visible(event, self.rate) if of_replaced_units(event) else Sampled(event, self.rate)


@dataclass(frozen=True)
class FixedSizeSampler:
    """`size` units without replacement, all subsets equally likely."""

    size: int

    def __post_init__(self) -> None:
        check.count(size=self.size)

    @property
    def relation(self) -> str:
        return "replace"

    def draw(self, population: int, rng: Stream) -> Ints:
        if self.size > population:
            raise SpecError(f"cannot draw {self.size} clients: there are {population}.")
        return rng.fixed(population, self.size)

    def probability(self, population: int) -> float:
        return min(1.0, self.size / population)

    def hidden(self, event: Event, population: int) -> Event:
        return events.FixedSize(event, min(self.size, population), population)


def of_records_inside(sampler: Sampler, event: Event, population: int) -> Event:
    """What `event` costs a record whose client is drawn by `sampler`, against a viewer who cannot see the draw.

    A drawn client brings its other records along, so whether it took part may show: see events.Visible.
    """
    rate = sampler.probability(population)
    return event if rate >= 1 else Visible(event, rate)
