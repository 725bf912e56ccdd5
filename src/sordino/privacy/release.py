"""What a method lets out: a `Release` holds the mechanism object that will act, and is priced by it.

A method declares releases, computes inside the clients and lets values out through outlets (contract/outlets.py), which
clip, apply the declared mechanism and count. What a release costs is derived in privacy/derive.py, once for everyone.
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
GRADIENTS = 0  # `terms` of a sum of clipped gradients
DICE = "merge/path"  # the stream of a round from which a server's public randomness comes, and so no noise


@dataclass(frozen=True)
class Use:
    """The public circumstances of one application of a mechanism."""

    round: int = 0
    split: int = 1  # honest clients that add the noise together, each its share
    multiplier: Tensor | None = None  # [rows, 1]: each row's own; infinite where all is noise, so the row becomes zero


class Mechanism(Protocol):
    """An object that randomises values and says what one use of it costs.

    `noise_multiplier` is the scale of the noise over the bound, where there is one (clients' own multipliers and
    filters need it). `correlated` says that noise comes from the stream of the run and depends on the round.
    `std(bound)` is the deviation of the noise in a coordinate, where it is known.
    """

    def apply(self, x: Bounded, rng: RowStream, use: Use) -> Tensor: ...

    def event(self, split: int = 1) -> Event: ...


@dataclass(frozen=True)
class Unproven:
    """Acts as its mechanism, or lets values through as they are, at an infinite price: `reason` says why.

    Published methods whose claim has no proof act so, and whatever is not private at all."""

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
    size: int = 0  # above 0: a sample of a fixed size without replacement
    population: int = 0

    def __post_init__(self) -> None:
        check.probability(rate=self.rate)
        if self.size:
            check.count(size=self.size, population=self.population)

    @property
    def fixed(self) -> bool:
        """Whether samples have a fixed size, so that leaving a unit out lets another one in.

        Also where the priced client, the dearest one, takes all of its units: larger ones do not."""
        return self.size > 0

    def hidden(self, event: Event) -> Event:
        """Return what an event on the drawn units costs one of all units."""
        if self.fixed:
            return FixedSize(event, self.size, self.population)
        return event if self.rate >= 1 else Sampled(event, self.rate)


@dataclass(frozen=True)
class Release:
    """One outlet of a method: which mechanism, on whose data, with which bound, where and how often in a round."""

    name: str  # of the outlet, and usually of the message's field
    mechanism: Mechanism
    unit: str  # whose contribution the bound bounds: record, client, user
    bound: float | None = None  # on one unit's contribution, in the mechanism's norm
    where: str = "client"  # or "server": trusted with bounded rows, noise goes onto their sum
    times: int = 1  # uses in one participation
    draw: Draw = field(default_factory=Draw)
    total: Mechanism | None = None  # all uses of the run together cost one use of this, whatever each of them costs
    onto: str = ""  # at the server: a field whose sum gets this noise on top of what is there
    swing: int = 2  # bounds by which a replaced unit moves the value; 1 for values of one sign
    relation: str = ""  # "replace" where leaving a unit out means nothing; else as the draws say
    terms: int | None = None  # vectors within the bound that floating point has added up in the value; GRADIENTS: those
    # of clipped gradients; None: not known, so that exact noise has no proof for it
    additive: bool = False  # its field is what the outlet gave, unweighted, and `merge` reads the sum alone: in secure
    # mode it then travels as whole numbers, where everyone answers
    rows: bool = True  # at the server: whether each row is within the bound; else one unit moves it by that at most
    part: str = ""  # releases of different parts touch disjoint records and are priced in parallel
    phase: str = ""  # of the round; the first one unless said
    key: str = ""  # path of the noise stream below the client's (or the server's) of the round

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
            raise SpecError(f"the release {self.name}: what a server adds noise to is released once a round.")

    @property
    def multiplier(self) -> float | None:
        """The declared noise multiplier, where the mechanism has one."""
        inner = self.mechanism.mechanism if isinstance(self.mechanism, Unproven) else self.mechanism
        return getattr(inner, "noise_multiplier", None)

    @property
    def norm(self) -> float:
        """The norm that the bound is in."""
        inner = self.mechanism.mechanism if isinstance(self.mechanism, Unproven) else self.mechanism
        return float(getattr(inner, "norm", 2))
