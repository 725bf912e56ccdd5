"""Releases of a method: a `Release` holds the mechanism that will be applied, and its cost is derived from it.

A method declares releases, computes inside the clients and releases values through outlets (contract/outlets.py), which
clip, apply the declared mechanism and count. The cost of a release is derived in privacy/derive.py, once for all
methods.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor

from sordino.core import check
from sordino.core.errors import SpecError
from sordino.core.rng import RowStream
from sordino.privacy.clip import Bounded
from sordino.privacy.events import Event, FixedSize, NonPrivate, Sampled

PLACES = ("client", "server")
GRADIENTS = 0  # value of `terms` for a sum of clipped gradients
DICE = "merge/path"  # stream of a round for a server's public randomness, so not for noise


@dataclass(frozen=True)
class Use:
    """The public circumstances of one application of a mechanism."""

    round: int = 0
    split: int = 1  # number of honest clients that share the noise
    multiplier: Tensor | None = None  # [rows, 1]: multiplier of each row; infinite: only noise, so the row becomes zero


class Mechanism(Protocol):
    """An object that randomises values and states the cost of one use.

    `noise_multiplier` is the noise scale over the bound, if there is one (clients with their own multipliers, and
    filters, need it). `correlated` states that the noise comes from the stream of the run and depends on the round.
    `std(bound)` is the standard deviation of the noise in a coordinate, where it is known.
    """

    def apply(self, x: Bounded, rng: RowStream, use: Use) -> Tensor:
        """Return the randomised rows."""
        ...

    def event(self, split: int = 1) -> Event:
        """Return the event of one use, if `split` clients share the noise."""
        ...


@dataclass(frozen=True)
class Unproven:
    """Acts as its mechanism, or passes values through unchanged, at infinite cost; `reason` says why.

    It is used for published methods whose claim has no proof, and for whatever is not private at all.
    """

    reason: str
    mechanism: Mechanism | None = None

    def apply(self, x: Bounded, rng: RowStream, use: Use) -> Tensor:
        return x.value if self.mechanism is None else self.mechanism.apply(x, rng, use)

    def event(self, split: int = 1) -> Event:
        return NonPrivate(self.reason)


@dataclass(frozen=True)
class Draw:
    """A secret draw of units inside a client before a release: Poisson with a rate, or `size` of `population`."""

    rate: float = 1.0
    size: int = 0  # above 0: fixed-size sample without replacement
    population: int = 0

    def __post_init__(self) -> None:
        check.probability(rate=self.rate)
        if self.size:
            check.count(size=self.size, population=self.population)

    @property
    def fixed(self) -> bool:
        """Return whether samples have a fixed size, so that leaving one unit out lets another one in.

        This is also the case where the client used for pricing, the most expensive one, takes all of its units: larger
        clients do not.
        """
        return self.size > 0

    def hidden(self, event: Event) -> Event:
        """Return the cost to one of all units of an event on the drawn units."""
        if self.fixed:
            return FixedSize(event, self.size, self.population)
        return event if self.rate >= 1 else Sampled(event, self.rate)


@dataclass(frozen=True)
class Release:
    """One outlet of a method: its mechanism, unit, bound, location and number of uses in a round."""

    name: str  # name of the outlet, and usually of the message's field
    mechanism: Mechanism
    unit: str  # unit whose contribution is bounded: record, client, user
    bound: float | None = None  # bound on one unit's contribution, in the mechanism's norm
    where: str = "client"  # or "server": trusted with bounded rows, and adds noise to their sum
    times: int = 1  # number of uses in one participation
    draw: Draw = field(default_factory=Draw)
    total: Mechanism | None = None  # all uses in the run together cost one use of this, whatever each costs
    onto: str = ""  # at the server: field to whose sum this noise is added, beyond the noise already there
    swing: int = 2  # number of bounds by which a replaced unit changes the value; 1 for values of one sign
    relation: str = ""  # "replace" where leaving a unit out has no meaning; else determined by the draws
    terms: int | None = None  # number of vectors within the bound that were summed in floating point; GRADIENTS: a sum
    # of clipped gradients; None: unknown, so there is no proof for exact noise
    additive: bool = False  # whether the field is the unweighted output of the outlet and `merge` reads only its sum;
    # in secure mode it is then sent as integers, if all clients answer or share the noise
    rows: bool = True  # at the server: whether each row is within the bound; else one unit changes it by at most that
    part: str = ""  # releases with different parts use disjoint records and compose in parallel
    phase: str = ""  # phase of the round; the first by default
    key: str = ""  # path of the noise stream below the stream of the client (or server) for the round

    def __post_init__(self) -> None:
        check.one_of(PLACES, where=self.where)
        check.count(times=self.times)
        if self.bound is not None:
            check.positive(bound=self.bound)
        if self.bound is None and not isinstance(self.mechanism, Unproven):
            raise SpecError(f"the release {self.name} needs a bound: noise without one protects nothing.")
        if self.where == "server" and f"{self.key or self.name}/".startswith(f"{DICE}/"):
            raise SpecError(f"the release {self.name}: {DICE} is the stream of public randomness, not of noise.")
        if self.where == "server" and (self.times != 1 or self.draw != Draw()):
            raise SpecError(f"the release {self.name}: what the server adds noise to is released once a round.")

    @property
    def multiplier(self) -> float | None:
        """Return the declared noise multiplier, if the mechanism has one."""
        inner = self.mechanism.mechanism if isinstance(self.mechanism, Unproven) else self.mechanism
        return getattr(inner, "noise_multiplier", None)

    @property
    def norm(self) -> float:
        """Return the order of the norm of the bound."""
        inner = self.mechanism.mechanism if isinstance(self.mechanism, Unproven) else self.mechanism
        return float(getattr(inner, "norm", 2))
