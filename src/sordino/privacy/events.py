"""What a release does to one protected unit, measured in units of the sensitivity the code enforces.

A leaf is one use of one mechanism and says what is known about it: a dominating pair, a Renyi curve, a pure epsilon.
It stands in the mechanism's own file. The events here combine leaves: a round of local DP-SGD is
`Repeated(Sampled(Gaussian(1.1), 0.05), 20)`. Accountants read an event through `algebra.parts`, which
counts every elementary release, so that none can forget a repetition.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from sordino.core import check
from sordino.core.errors import SpecError, UnsupportedEvent
from sordino.privacy import pairs
from sordino.privacy.pairs import Pair

Floats = NDArray[np.float64]
LARGEST_GROUP = 64  # units whose draws are told apart


class Event:
    """The root of all events; frozen, comparable, hashable.

    A leaf overrides what it knows. Everything weaker follows: a GDP level gives a pair, a rho and a curve; a pure
    epsilon gives randomized response, which dominates it.
    """

    mirrored: ClassVar[bool] = True  # some involution swaps P and Q: true of symmetric additive noise
    replaces: ClassVar[bool] = False  # about one value replaced by another (a report that is always sent), not added
    _kinds: ClassVar[dict[str, type[Event]]] = {}

    written_as: ClassVar[str] = ""  # its kind in files; the name of the class unless it says otherwise

    def __init_subclass__(cls) -> None:
        cls.written_as = cls.__dict__.get("written_as") or cls.__name__
        if Event._kinds.setdefault(cls.written_as, cls).__module__ != cls.__module__:
            raise TypeError(f"two events are called {cls.written_as}")

    def gdp(self) -> float | None:
        """mu, if one use is exactly mu-GDP: Gaussian noise."""
        return None

    def pure(self) -> float | None:
        """epsilon, if one use is epsilon-DP."""
        return None

    def rho(self) -> float | None:
        """rho, if one use is rho-zCDP: D_a <= rho a for every a > 1."""
        mu, epsilon = self.gdp(), self.pure()
        if mu is not None:
            return mu * mu / 2
        return None if epsilon is None else epsilon * epsilon / 2  # Bun and Steinke (2016), Proposition 3.3

    def renyi(self, orders: Floats) -> Floats | None:
        """An upper bound on the Renyi divergences of one use, both directions."""
        epsilon, rho = self.pure(), self.rho()
        curves = [rho * orders] if rho is not None else []
        if epsilon is not None:
            curves.append(_renyi_of_randomized_response(epsilon, orders))
        return None if not curves else np.minimum.reduce(curves)

    def pair(self) -> Pair | None:
        """A dominating pair of one use: with the unit against without it."""
        mu, epsilon = self.gdp(), self.pure()
        if mu is not None:
            return pairs.Shift(mu)
        return None if epsilon is None else pairs.randomized_response(epsilon)

    def grouped(self, k: int) -> Event:
        """The same release when k units change together (k = 2: one unit replaced by another)."""
        epsilon = self.pure()
        if epsilon is None:
            raise UnsupportedEvent(f"nothing is known about {k} units at once for {self!r}.")
        return Pure(k * epsilon)

    def summed(self, n: int) -> Event:
        """The same noise added by n clients, of whom only the sum is seen; itself, where no more is known."""
        return self

    def scaled(self, factor: float) -> Event:
        """Return the same release with `factor` times the noise."""
        scale = getattr(self, "noise_multiplier", None)
        if scale is None:
            raise UnsupportedEvent(f"{self!r} has no noise of which a viewer could know a share.")
        return replace(self, noise_multiplier=scale * factor)  # type: ignore[type-var]


def _renyi_of_randomized_response(epsilon: float, orders: Floats) -> Floats:
    if epsilon == 0:
        return np.zeros_like(orders)
    keep, flip = -np.logaddexp(0.0, -epsilon), -np.logaddexp(0.0, epsilon)
    both = np.logaddexp(keep + (orders - 1) * epsilon, flip - (orders - 1) * epsilon)
    return np.asarray(both / (orders - 1))


@dataclass(frozen=True)
class GaussianEvent(Event):
    """Gaussian noise with std = noise_multiplier * L2 sensitivity."""

    noise_multiplier: float

    written_as: ClassVar[str] = "Gaussian"

    def __post_init__(self) -> None:
        check.positive(noise_multiplier=self.noise_multiplier)

    def gdp(self) -> float:
        return 1 / self.noise_multiplier

    def grouped(self, k: int) -> Event:
        return GaussianEvent(self.noise_multiplier / k)

    def summed(self, n: int) -> Event:
        return GaussianEvent(self.noise_multiplier * math.sqrt(n))


@dataclass(frozen=True)
class Pure(Event):
    """Anything that is epsilon-DP, of which no more is known."""

    epsilon: float

    def __post_init__(self) -> None:
        check.non_negative(epsilon=self.epsilon)

    def pure(self) -> float:
        return self.epsilon


@dataclass(frozen=True)
class Approximate(Event):
    """Anything that is (epsilon, delta)-DP, of which no more is known."""

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        check.non_negative(epsilon=self.epsilon)
        check.fraction(delta=self.delta)

    def pure(self) -> float | None:
        return self.epsilon if self.delta == 0 else None

    def pair(self) -> Pair:
        return pairs.randomized_response(self.epsilon, self.delta)

    def grouped(self, k: int) -> Event:
        """k eps and delta (e^{k eps} - 1)/(e^eps - 1): Vadhan (2017), "The complexity of DP", Lemma 2.2."""
        if k * self.epsilon > 700:  # beyond floats
            return Approximate(k * self.epsilon, 0.0 if self.delta == 0 else 1 - 2**-53)
        times = k if self.epsilon == 0 else math.expm1(k * self.epsilon) / math.expm1(self.epsilon)
        return Approximate(k * self.epsilon, min(times * self.delta, 1 - 2**-53))


@dataclass(frozen=True)
class Sampled(Event):
    """`event`, if the protected unit is drawn (Poisson, probability `rate`); the draw stays secret.

    Not drawn must look exactly like not there, which no report that is always sent does: that one is `Visible`.
    `event` is what one added unit does, also where the relation is "replace": then two units change places, and both
    may be drawn.
    """

    event: Event
    rate: float
    relation: str = "add/remove"

    def __post_init__(self) -> None:
        check.probability(rate=self.rate)
        check.one_of(("add/remove", "replace"), relation=self.relation)


@dataclass(frozen=True)
class SampledGroup(Event):
    """Poisson-sampled Gaussian noise, of which `size` units change together, each drawn on its own.

    Dominated by sum_j Bin(size, rate)(j) N(j, z^2) against N(0, z^2): Ganesh (2024), arXiv:2401.10294, Theorem 3.1.
    """

    noise_multiplier: float
    rate: float
    size: int
    mirrored: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check.positive(noise_multiplier=self.noise_multiplier)
        check.probability(rate=self.rate)
        check.count(size=self.size)

    def pair(self) -> Pair:
        n, q = self.size, self.rate
        weights = {float(j): math.comb(n, j) * q**j * (1 - q) ** (n - j) for j in range(n + 1)}
        return pairs.Mixtures(self.noise_multiplier, weights, {0.0: 1.0})

    def grouped(self, k: int) -> Event:
        return sampled_group(self.noise_multiplier, self.rate, self.size * k)


def sampled_group(noise_multiplier: float, rate: float, size: int) -> Event:
    if size <= LARGEST_GROUP:
        return SampledGroup(noise_multiplier, rate, size)
    touched = -math.expm1(size * math.log1p(-rate)) if rate < 1 else 1.0
    return Sampled(GaussianEvent(noise_multiplier / size), touched)


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
class Parallel(Event):
    """One of `events` on disjoint parts of the data: a unit lives in one part (McSherry 2009), whichever costs most.

    A replaced unit may leave one part and enter another, so this speaks of added or removed units alone, unless
    `by_place` says that the part of a unit follows from its place and a public seed: then a replaced unit stays where
    it was. Releases that are repeated on the same parts belong inside, `Parallel((Repeated(a, 3), Repeated(b, 3)))`;
    of a repeated Parallel every one may split the data anew. The parts of FixedSize must be drawn, so none is inside.
    """

    events: tuple[Event, ...]
    by_place: bool = False


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

    unit: str  # "record" | "client" | "user" | "label"
    relation: str  # "add/remove" | "replace"
    viewer: str  # see trust.py
    event: Event
    # how the draw of clients acts: "unit" (the drawn client is the unit itself), "inside" (the unit lies inside a drawn
    # client), "changed" (the data of `copies` clients change; the event is what adding one client does)
    draw: str = ""  # "unit" for a client, else "inside"
    copies: int = 1  # in how many clients one unit lies at most

    def __post_init__(self) -> None:
        if not self.draw:
            object.__setattr__(self, "draw", "unit" if self.unit == "client" else "inside")
