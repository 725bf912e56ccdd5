"""Privacy events: the effect of releases on one protected unit, in units of the sensitivity that the code enforces.

A leaf is one use of one mechanism and states what is known about it: a dominating pair, a Renyi curve, a pure epsilon.
It is defined in the module of its mechanism. The events here combine leaves: a round of local DP-SGD is
`Repeated(Sampled(Gaussian(1.1), 0.05), 20)`. Accountants read an event through `algebra.parts`, which counts every
elementary release, so that none can forget a repetition.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from sordino.core import check
from sordino.core.errors import SpecError, UnsupportedEvent
from sordino.privacy import pairs, selection
from sordino.privacy.pairs import Pair

Floats = NDArray[np.float64]
LARGEST_GROUP = 64  # largest group whose units are drawn independently in the analysis


class Event:
    """Base class of all events, which are frozen, comparable and hashable.

    A leaf overrides what is known about it, and everything weaker follows: a GDP level gives a pair, a rho and a curve;
    a pure epsilon gives randomized response, which dominates it.
    """

    mirrored: ClassVar[bool] = True  # whether an involution swaps P and Q, as for symmetric additive noise
    replaces: ClassVar[bool] = False  # about a replaced value (a report that is always sent), not an added one
    _kinds: ClassVar[dict[str, type[Event]]] = {}

    written_as: ClassVar[str] = ""  # name of its kind in files; the name of the class by default

    def __init_subclass__(cls) -> None:
        cls.written_as = cls.__dict__.get("written_as") or cls.__name__
        if Event._kinds.setdefault(cls.written_as, cls).__module__ != cls.__module__:
            raise TypeError(f"two events are called {cls.written_as}")

    def gdp(self) -> float | None:
        """Return mu if one use is exactly mu-GDP (Gaussian noise), else None."""
        return None

    def pure(self) -> float | None:
        """Return epsilon if one use is epsilon-DP, else None."""
        return None

    def rho(self) -> float | None:
        """Return rho if one use is rho-zCDP (D_a <= rho a for every a > 1), else None."""
        mu, epsilon = self.gdp(), self.pure()
        if mu is not None:
            return mu * mu / 2
        return None if epsilon is None else epsilon * epsilon / 2  # Bun and Steinke (2016), Proposition 3.3

    def renyi(self, orders: Floats) -> Floats | None:
        """Return an upper bound on the Renyi divergences of one use, in both directions, or None."""
        epsilon, rho = self.pure(), self.rho()
        curves = [rho * orders] if rho is not None else []
        if epsilon is not None:
            curves.append(_renyi_of_randomized_response(epsilon, orders))
        return None if not curves else np.minimum.reduce(curves)

    def pair(self) -> Pair | None:
        """Return a dominating pair of one use (with the unit against without it), or None."""
        mu, epsilon = self.gdp(), self.pure()
        if mu is not None:
            return pairs.Shift(mu)
        return None if epsilon is None else pairs.randomized_response(epsilon)

    def grouped(self, k: int) -> Event:
        """Return the same release when k units change together (k = 2: one unit replaced by another)."""
        epsilon = self.pure()
        if epsilon is None:
            raise UnsupportedEvent(f"nothing is known about {k} units at once for {self!r}.")
        return Pure(k * epsilon)

    def summed(self, n: int) -> Event:
        """Return the event for n clients that each add this noise, if only their sum is seen; itself if unknown."""
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
    """Gaussian noise with standard deviation noise_multiplier * L2 sensitivity."""

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
    """Any epsilon-DP release about which nothing more is known."""

    epsilon: float

    def __post_init__(self) -> None:
        check.non_negative(epsilon=self.epsilon)

    def pure(self) -> float:
        return self.epsilon


@dataclass(frozen=True)
class Approximate(Event):
    """Any (epsilon, delta)-DP release about which nothing more is known."""

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
        """Return k eps and delta (e^{k eps} - 1)/(e^eps - 1): Vadhan (2017), "The complexity of DP", Lemma 2.2."""
        if k * self.epsilon > 700:  # out of the range of floats
            return Approximate(k * self.epsilon, 0.0 if self.delta == 0 else 1 - 2**-53)
        times = k if self.epsilon == 0 else math.expm1(k * self.epsilon) / math.expm1(self.epsilon)
        return Approximate(k * self.epsilon, min(times * self.delta, 1 - 2**-53))


@dataclass(frozen=True)
class Sampled(Event):
    """`event` if the protected unit is drawn (Poisson, with probability `rate`); the draw stays secret.

    A unit that is not drawn must look exactly like one that is absent. This is never true of a report that is always
    sent: use `Visible` for it. `event` is the effect of one added unit, also where the relation is "replace": then one
    unit takes the place of another, and both may be drawn.
    """

    event: Event
    rate: float
    relation: str = "add/remove"

    def __post_init__(self) -> None:
        check.probability(rate=self.rate)
        check.one_of(("add/remove", "replace"), relation=self.relation)


@dataclass(frozen=True)
class SampledGroup(Event):
    """Poisson-sampled Gaussian noise for a group: `size` units change together, each drawn independently.

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
    """Return Poisson-sampled Gaussian noise for a group of `size` units.

    For a group larger than LARGEST_GROUP, the result is an upper bound in which all units are drawn if any of them is.
    """
    if size <= LARGEST_GROUP:
        return SampledGroup(noise_multiplier, rate, size)
    touched = -math.expm1(size * math.log1p(-rate)) if rate < 1 else 1.0
    return Sampled(GaussianEvent(noise_multiplier / size), touched)


@dataclass(frozen=True)
class FixedSize(Event):
    """`event` on `size` of `population` units drawn without replacement; the draw stays secret.

    Holds under the replace-one relation only: `event` is the effect of replacing one unit of the sample.
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
    """`event` with probability `rate`, where the viewer is assumed to learn whether it happened.

    This is the cost of a record inside a client that is drawn with probability `rate`. A drawn client contributes all
    its other records as well, so "client not drawn" does not look like "record absent", and `Sampled` would
    underestimate the cost. By joint convexity of the hockey-stick divergence, delta(eps) = rate * delta_event(eps) for
    one round.
    """

    event: Event
    rate: float

    def __post_init__(self) -> None:
        check.probability(rate=self.rate)


@dataclass(frozen=True)
class Parallel(Event):
    """One of `events` on disjoint parts of the data; a unit lies in one part (McSherry 2009), the most expensive one.

    A replaced unit may leave one part and enter another, so the event holds for added or removed units only, unless
    `by_place` states that the part of a unit follows from its place and a public seed: then a replaced unit stays in
    its part. Releases that are repeated on the same parts belong inside, `Parallel((Repeated(a, 3), Repeated(b, 3)))`;
    each repetition of a repeated Parallel may split the data differently. The parts of FixedSize must be drawn, so it
    cannot contain a Parallel.
    """

    events: tuple[Event, ...]
    by_place: bool = False


@dataclass(frozen=True)
class Repeated(Event):
    """`event`, `count` times."""

    event: Event
    count: int  # zero is allowed: nothing has happened yet

    def __post_init__(self) -> None:
        if isinstance(self.count, bool) or not isinstance(self.count, int) or self.count < 0:
            raise SpecError(f"count must be a whole number of at least 0, not {self.count!r}.")


@dataclass(frozen=True)
class Composed(Event):
    """All of `events`."""

    events: tuple[Event, ...]


@dataclass(frozen=True)
class RandomStopping(Event):
    """The best of a random number of runs of `event`; the number and the other runs stay secret.

    Papernot and Steinke (2022), arXiv:2110.03620; the laws and their theorems are in privacy/selection.py. Every run
    must satisfy the same bound, whatever settings it was given.
    """

    event: Event
    mean: float  # expected number of runs
    law: str = "poisson"  # poisson or negative-binomial
    eta: float = 0.0  # shape of the negative binomial law; 0: logarithmic, 1: geometric
    mirrored: ClassVar[bool] = False

    def __post_init__(self) -> None:
        selection.check_law(self.mean, self.law, self.eta)


@dataclass(frozen=True)
class NonPrivate(Event):
    """A release without any guarantee: epsilon is infinite, and `reason` says why."""

    reason: str


@dataclass(frozen=True)
class Cost:
    """An event together with the protected unit, the neighbouring relation and the viewer."""

    unit: str  # "record" | "client" | "user" | "label"
    relation: str  # "add/remove" | "replace"
    viewer: str  # see trust.py
    event: Event
    # effect of the draw of clients: "unit" (the drawn client is the unit itself), "inside" (the unit lies inside a
    # drawn client), "changed" (the data of `copies` clients change; the event is the effect of adding one client)
    draw: str = ""  # default: "unit" for a client, else "inside"
    copies: int = 1  # largest number of clients that hold data of one unit

    def __post_init__(self) -> None:
        if not self.draw:
            object.__setattr__(self, "draw", "unit" if self.unit == "client" else "inside")
