"""Samplers of participants: the object that draws is the object that is accounted."""

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
    """A random draw of units."""

    @property
    def relation(self) -> str:
        """Return the neighbouring relation under which the draw amplifies privacy."""

    def draw(self, population: int, rng: Stream) -> Ints:
        """Return the indices of the drawn units."""
        ...

    def probability(self, population: int) -> float:
        """Return the probability with which one unit is drawn."""

    def hidden(self, event: Event, population: int) -> Event:
        """Return the cost to a unit of `event` on the drawn units, against a viewer who cannot see the draw."""


@dataclass(frozen=True)
class Poisson:
    """Draws each unit independently with probability `rate`."""

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
        """Return the sampled event.

        Whether a report arrived is visible, so an event about replaced units is `Visible`: only the probability of the
        draw reduces its cost.
        """
        if self.rate == 1:
            return event
        return Visible(event, self.rate) if of_replaced_units(event) else Sampled(event, self.rate)


@dataclass(frozen=True)
class FixedSizeSampler:
    """Draws `size` units without replacement; all subsets are equally likely."""

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
    """Return the cost of `event` to a record whose client is drawn, against a viewer who cannot see the draw.

    A drawn client contributes its other records as well, so its participation may be visible: see events.Visible.
    """
    rate = sampler.probability(population)
    return event if rate >= 1 else Visible(event, rate)
