"""Small worlds whose laws are written down outcome by outcome: what an event must cost at least.

A world says what is seen while one unit is absent, has one value, or has another. A leaf's laws come from its
mechanism's own probabilities, or from its noise seen through cells (a function of the output, so never more than the
truth). Draws, compositions and splits are done to these laws by hand; no accountant, pair or algebra is asked.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce

import numpy as np
from scipy.special import expit
from scipy.stats import binom, laplace, norm

from peers import direct
from sordino.privacy import events
from sordino.privacy.events import Composed, Event, FixedSize, Parallel, Repeated, Sampled, Visible
from sordino.privacy.mechanisms.count_mean_sketch import CountMeanSketch
from sordino.privacy.mechanisms.d_bit_flip import DBitFlip
from sordino.privacy.mechanisms.discrete_gaussian import probabilities as discrete_gaussian
from sordino.privacy.mechanisms.duchi import Duchi
from sordino.privacy.mechanisms.exponential import Exponential
from sordino.privacy.mechanisms.generalized_rr import GeneralizedRR
from sordino.privacy.mechanisms.hadamard_sketch import HadamardSketch
from sordino.privacy.mechanisms.harmony import Harmony
from sordino.privacy.mechanisms.hybrid import Hybrid
from sordino.privacy.mechanisms.one_bit_mean import OneBitMean
from sordino.privacy.mechanisms.piecewise import Piecewise
from sordino.privacy.mechanisms.priv_unit import PrivUnit
from sordino.privacy.mechanisms.randomized_response import RandomizedResponse
from sordino.privacy.mechanisms.sparse_vector import SparseVector
from sordino.privacy.mechanisms.unary_encoding import UnaryEncoding
from support.integer_laws import skellam as skellam

Law = np.ndarray
AR, RO = "add/remove", "replace"


@dataclass(frozen=True)
class World:
    """Laws over the same outcomes; `absent` is None where nobody can be absent without showing it."""

    absent: Law | None
    one: Law
    other: Law

    def each(self, of: Callable[[Law], Law]) -> World:
        return World(None if self.absent is None else of(self.absent), of(self.one), of(self.other))

    def neighbours(self, relation: str) -> list[tuple[Law, Law]]:
        if relation == RO or self.absent is None:
            return [(self.one, self.other)]
        return [(self.one, self.absent), (self.other, self.absent)]


# --- leaves: (value moved down, unmoved, moved up), by one sensitivity each; of a report: (a value, another, it again)


def moved(mass: Law, shift: int = 1) -> tuple[Law, Law, Law]:
    """Noise on the integers, on an answer that is lower, the same or higher by the bound."""
    none = np.zeros(shift)
    laws = [np.concatenate(p) for p in ((mass, none, none), (none, mass, none), (none, none, mass))]
    some = np.max(laws, axis=0) > 1e-12
    return tuple(law[some] for law in laws)


def cells(cdf: Callable[[Law], Law], width: float, points: int = 60) -> tuple[Law, Law, Law]:
    at = np.linspace(-1 - width, 1 + width, points)
    return tuple(np.diff(np.concatenate([[0.0], cdf(at - move), [1.0]])) for move in (-1.0, 0.0, 1.0))


def staircase(epsilon: float, gamma: float) -> tuple[Law, Law, Law]:
    k = np.arange(-30, 31)
    edges = np.unique(np.round(np.concatenate([k, k + gamma, k - gamma]), 12))
    middle, wide = (edges[1:] + edges[:-1]) / 2, np.diff(edges)

    def density(x):
        level = np.floor(np.abs(x))
        return np.exp(-epsilon * (level + (np.abs(x) - level >= gamma)))

    whole = 2 * (gamma + math.exp(-epsilon) * (1 - gamma)) / -math.expm1(-epsilon)
    laws = [wide * density(middle - move) / whole for move in (-1.0, 0.0, 1.0)]
    return tuple(np.append(law, 1 - law.sum()) for law in laws)


def response(epsilon: float, delta: float = 0.0) -> tuple[Law, Law, Law]:
    """Anything (epsilon, delta)-DP may be this: two answers, and two that give everything away."""
    keep, flip = (1 - delta) * expit(epsilon), (1 - delta) * expit(-epsilon)
    less = flip * math.exp(-epsilon)
    lower = np.array([1 - less, less, 0, 0]) if delta == 0 else np.array([flip, keep, 0, delta])
    return lower, np.array([keep, flip, delta, 0]), np.array([flip, keep, 0, delta])


def report(one: Law, other: Law) -> tuple[Law, Law, Law]:
    first, second = (np.ravel(np.asarray(law, dtype=np.float64)) for law in (one, other))
    return first, second, first


def bits(one: Law, other: Law) -> tuple[Law, Law, Law]:
    """Independent bits, of which those that are alike for both values say nothing."""
    told = [(p, q) for p, q in zip(np.ravel(one), np.ravel(other), strict=True) if p != q]
    laws = [reduce(np.multiply.outer, [np.array([1 - p[i], p[i]]) for p in told]) for i in (0, 1)]
    return report(*laws)


def unlike(mechanism, items: int = 50) -> tuple[Law, Law]:
    """The bits of two items that share no column."""
    first = mechanism.probabilities(0)
    return next((first, p) for p in map(mechanism.probabilities, range(1, items)) if not np.array_equal(p, first))


def rappor(event: Event) -> tuple[Law, Law, Law]:
    """Every bit is remembered, blurred, and reported several times; two items differ in twice as many as hashes."""
    counts = np.arange(event.reports + 1)
    ones, zeros = (binom.pmf(counts, event.reports, p) for p in (event.high, event.low))
    set_bit, unset = ((1 - f) * ones + f * zeros for f in (event.blur / 2, 1 - event.blur / 2))
    h = event.hashes
    return report(*(reduce(np.multiply.outer, [a] * h + [b] * h) for a, b in ((set_bit, unset), (unset, set_bit))))


def piecewise(event: Event) -> tuple[Law, Law, Law]:
    one = Piecewise(event.epsilon / event.coordinates)
    at = np.linspace(-one.bound, one.bound, 4001)
    laws = [np.diff(one.cumulative(v, at)) for v in (-1.0, 1.0)]
    kinds = np.unique(np.round(np.log(laws[0] / laws[1]), 9), return_inverse=True)[1]
    laws = [np.bincount(kinds, law) for law in laws]
    return report(*(reduce(np.multiply.outer, [law] * event.coordinates) for law in laws))


def hybrid(event: Event) -> tuple[Law, Law, Law]:
    one = Hybrid(event.epsilon)
    rest = 1 - one.probabilities(0.0).sum()
    parts = [piecewise(events_of("PiecewiseEvent")(event.epsilon))[i] for i in (0, 1)]
    return report(*(np.append(one.probabilities(v), rest * p) for v, p in zip((-1.0, 1.0), parts, strict=True)))


def cap(event: Event) -> tuple[Law, Law, Law]:
    """Near the vector, near the opposite one, elsewhere."""
    one = PrivUnit(event.epsilon, event.dim)
    far = one.outside * one.cap / (1 - one.cap)
    law = np.array([1 - one.outside, far, one.outside - far])
    return report(law, law[[1, 0, 2]])


def sparse(event: Event) -> tuple[Law, Law, Law]:
    one = SparseVector(event.epsilon)
    keys = ((1, -1), (0, 1), (0, 0))
    return tuple(
        np.array([one.probability(key, answers, 0.0, 1.0) for key in keys])
        for answers in ((-1.0, 1.0), (0.0, 0.0), (1.0, -1.0))
    )


def shuffled(event: Event) -> tuple[Law, Law, Law]:
    """How many of all reports are 1, where everybody else has a 0: binary randomized response."""
    flip, n = expit(-event.epsilon), event.reports
    others = binom.pmf(np.arange(n), n - 1, flip)
    laws = [np.append(others, 0) * (1 - p) + np.append(0, others) * p for p in (flip, 1 - flip)]
    some = np.max(laws, axis=0) > 1e-12
    return report(laws[0][some], laws[1][some])


def coins(event: Event) -> tuple[Law, Law, Law]:
    """The sum of all clients' coins, of whom one has the lowest or the highest value."""
    m, n = event.levels, event.clients
    others = binom.pmf(np.arange(m * (n - 1) + 1), m * (n - 1), 0.5 + event.theta)
    return report(*(np.convolve(others, binom.pmf(np.arange(m + 1), m, 0.5 + s * event.theta)) for s in (-1, 1)))


def summed(event: Event) -> tuple[Law, Law, Law]:
    return moved(reduce(np.convolve, [discrete_gaussian(event.sigma)[1]] * event.clients), int(min(event.l1, event.l2)))


def events_of(kind: str) -> type[Event]:
    return Event._kinds[kind]


def utilities(event: Event) -> tuple[Law, Law, Law]:
    one = Exponential(event.epsilon)
    return tuple(one.probabilities(u, 1.0) for u in ([-1.0, 1.0, 1.0], [0.0, 0.0, 0.0], [1.0, -1.0, -1.0]))


LAWS: dict[str, Callable[[Event], tuple[Law, Law, Law]]] = {
    "Gaussian": lambda e: cells(norm(scale=e.noise_multiplier).cdf, 7 * e.noise_multiplier),
    "Pure": lambda e: response(e.epsilon),
    "Approximate": lambda e: response(e.epsilon, e.delta),
    "LaplaceEvent": lambda e: cells(laplace(scale=e.noise_multiplier).cdf, 9 * e.noise_multiplier),
    "LaplaceL2Event": lambda e: cells(laplace(scale=e.noise_multiplier).cdf, 9 * e.noise_multiplier),
    "StaircaseEvent": lambda e: staircase(e.epsilon, e.gamma),
    "PerCoordinateStaircaseEvent": lambda e: staircase(e.epsilon, e.gamma),  # all of it in one coordinate
    "StaircaseBallEvent": lambda e: staircase(e.epsilon, 0.5),  # of one dimension
    "DiscreteGaussianEvent": lambda e: moved(discrete_gaussian(e.noise_multiplier)[1]),
    "DistributedDiscreteGaussianEvent": summed,
    "DiscreteLaplaceEvent": lambda e: moved(
        np.exp(-e.epsilon / e.l1 * np.abs(np.arange(-150.0, 151))) * math.tanh(e.epsilon / e.l1 / 2), e.l1
    ),
    "SkellamEvent": lambda e: moved(skellam(e.mu)[1], int(min(e.l1, e.l2))),
    "BinomialEvent": lambda e: moved(binom.pmf(np.arange(e.trials + 1), e.trials, 0.5), int(min(e.l1, e.l2, e.linf))),
    "PoissonBinomialEvent": coins,
    "ExponentialEvent": utilities,
    "NoisyMaxEvent": utilities,
    "SparseVectorEvent": sparse,
    "RandomizedResponseEvent": lambda e: report(*map(RandomizedResponse(e.epsilon).probabilities, (1, 0))),
    "GeneralizedRREvent": lambda e: report(*map(GeneralizedRR(e.epsilon, e.categories).probabilities, (0, 1))),
    "UnaryEncodingEvent": lambda e: bits(*map(UnaryEncoding(e.epsilon, 3, e.optimized).probabilities, (0, 1))),
    "DBitFlipEvent": lambda e: bits(*unlike(DBitFlip(e.epsilon, e.bits, e.bits))),  # all buckets are assigned
    "CountMeanSketchEvent": lambda e: bits(*unlike(CountMeanSketch(e.epsilon, 1, 16))),
    "HadamardSketchEvent": lambda e: report(*unlike(HadamardSketch(e.epsilon, 1, 16))),
    "FragmentPuzzleEvent": lambda e: report(
        *map(
            np.multiply.outer,
            bits(*unlike(CountMeanSketch(e.epsilon, 1, 16)))[:2],
            bits(*unlike(CountMeanSketch(e.fragment_epsilon, 1, 16)))[:2],
        )
    ),
    "RapporEvent": rappor,
    "DuchiEvent": lambda e: report(*(Duchi(e.epsilon, e.dim).probabilities([v] * e.dim) for v in (-1.0, 1.0))),
    "HarmonyEvent": lambda e: report(*(Harmony(e.epsilon, 2).probabilities([v] * 2) for v in (-1.0, 1.0))),
    "PiecewiseEvent": piecewise,
    "HybridEvent": hybrid,
    "OneBitMeanEvent": lambda e: report(*map(OneBitMean(e.epsilon).probabilities, (0.0, 1.0))),
    "PrivUnitEvent": cap,
    "ShuffledEvent": shuffled,
}


# --- what is made of them


def worlds(event: Event, reading: str) -> list[World]:
    """Every world in which the event is what it says, the unit being added or removed, or replaced."""
    match event:
        case Repeated(inner, count):
            return _beside([worlds(inner, reading)] * count)
        case Composed(parts):
            return _beside([worlds(e, reading) for e in parts])
        case Parallel(parts, by_place):
            inside = [w for e in parts for w in worlds(e, reading)]
            if reading == AR or by_place:
                return inside
            return inside + [_crossed(a, b) for x, y in itertools.permutations(parts, 2) for a, b in _added(x, y)]
        case Visible(inner, rate):
            return [w.each(lambda law: np.append(rate * law, 1 - rate)) for w in worlds(inner, reading)]
        case Sampled(inner, rate, relation):
            found = [_drawn(w, rate) for w in worlds(inner, AR)]
            return found if (relation, reading) == (AR, AR) else [World(None, w.one, w.other) for w in found]
        case FixedSize(inner, size, population):
            q = size / population  # else somebody else is in, who has the one value or the other
            return [
                World(None, q * w.one + (1 - q) * somebody, q * w.other + (1 - q) * somebody)
                for w in worlds(inner, RO)
                for somebody in (w.one, w.other)
            ]
        case events.SampledGroup(z, rate, size):
            at = np.linspace(-size - 7 * z, size + 7 * z, 90)
            step = {j: np.diff(np.concatenate([[0.0], norm(j, z).cdf(at), [1.0]])) for j in range(-size, size + 1)}
            drawn = [(j, float(binom.pmf(j, size, rate))) for j in range(size + 1)]
            return [World(step[0], *(sum(p * step[s * j] for j, p in drawn) for s in (1, -1)))]
        case _:
            low, base, high = LAWS[event.written_as](event)
            return [World(None, high, base) if event.replaces or reading == RO else World(base, high, low)]


def _drawn(world: World, rate: float) -> World:
    """A unit that is not drawn looks as if it were not there; where it shows, it is missed."""
    if world.absent is None:
        return world.each(lambda law: np.append(rate * law, 1 - rate))
    return world.each(lambda law: rate * law + (1 - rate) * world.absent)


def _beside(each: list[list[World]]) -> list[World]:
    return [reduce(_both, way, World(np.ones(1), np.ones(1), np.ones(1))) for way in itertools.product(*each)]


def _both(a: World, b: World) -> World:
    absent = None if a.absent is None or b.absent is None else np.outer(a.absent, b.absent).ravel()
    return World(absent, np.outer(a.one, b.one).ravel(), np.outer(a.other, b.other).ravel())


def _added(x: Event, y: Event) -> list[tuple[World, World]]:
    found = itertools.product(worlds(x, AR), worlds(y, AR))
    return [(a, b) for a, b in found if a.absent is not None and b.absent is not None]


def _crossed(a: World, b: World) -> World:
    """The unit leaves one part and enters another."""
    return World(None, np.outer(a.one, b.absent).ravel(), np.outer(a.absent, b.one).ravel())


def readings(event: Event) -> set[str]:
    """The relations of which the event can be meant to speak; both, where it can be mistaken for either."""
    match event:
        case Sampled(inner, _, relation):
            return {relation} | (readings(inner) & {RO} if readings(inner) == {RO} else set())
        case FixedSize(inner):
            return {RO} | (readings(inner) & {AR} if readings(inner) == {AR} else set())
        case Repeated(inner) | Visible(inner):
            return readings(inner)
        case Parallel(parts, False):
            own = set.intersection(*map(readings, parts)) or {AR, RO}
            return {AR} if own == {AR, RO} else own
        case Composed(parts) | Parallel(parts):
            return set.intersection(*map(readings, parts)) or {AR, RO}
        case events.SampledGroup():
            return {AR}
        case _:
            return {RO} if event.replaces else {AR, RO}


def exact_epsilon(found: list[tuple[Law, Law]], copies: int, delta: float) -> float:
    both = [pair for p, q in found for pair in ((p, q), (q, p))]
    return max(direct.epsilon(p, q, copies, delta) for p, q in both)


def exact_delta(found: list[tuple[Law, Law]], copies: int, epsilon: float) -> float:
    both = [pair for p, q in found for pair in ((p, q), (q, p))]
    return max(direct.delta(p, q, copies, epsilon) for p, q in both)
