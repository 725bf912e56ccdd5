"""Privacy loss distributions: dominating pairs, composed numerically and always rounded to the safe side.

Koskela, Jalko, Honkela (2020), arXiv:1906.03049; Zhu, Dong, Wang (2022), arXiv:2106.08567. Every elementary release
becomes a pair in closed form, also under its sampler; only composition needs a grid (privacy/loss_distributions.py).
"""

from __future__ import annotations

from functools import lru_cache

from sordino.core.errors import UnsupportedEvent
from sordino.privacy import loss_distributions, pairs
from sordino.privacy.algebra import grouped, parts, relations, worst
from sordino.privacy.events import Composed, Event, FixedSize, GaussianEvent, Parallel, Repeated, Sampled, Visible
from sordino.privacy.loss_distributions import FINE, ROUGH, SLOPPY
from sordino.privacy.pairs import Pair

__all__ = ["FINE", "ROUGH", "SLOPPY", "delta", "epsilon", "pair_of"]

FEW = 40  # number of different releases that a first estimate distinguishes
POINTS = {FINE: 2**16, ROUGH: 2**14, SLOPPY: 2**12}  # grid points of the loss distribution of a whole round


@lru_cache(maxsize=512)
def pair_of(event: Event, cells: float = FINE) -> Pair:
    """Return a pair that dominates one elementary release: with the unit against without it.

    Only a whole round under a sampler needs a grid, whose resolution is `cells`.
    """
    relations(event)  # refuses events that no theorem covers
    match event:
        case Sampled(GaussianEvent(z), rate, "replace"):
            # (1-q) N(0) + q N(1) against (1-q) N(0) + q N(-1), in units of the clip norm
            return pairs.Mixtures(z, {0.0: 1 - rate, 1.0: rate}, {0.0: 1 - rate, -1.0: rate})
        case Sampled(inner, rate, "replace"):
            return _either_way(grouped(inner, 2), rate, cells)
        case Sampled(inner, rate):
            return pairs.diluted(pair_of(inner, cells), rate)
        case FixedSize(inner, size, population):
            return _either_way(inner, size / population, cells)
        case Visible(inner, rate):
            return pairs.Seldom(pair_of(inner, cells), rate)
        case Repeated() | Composed():
            releases = parts(event)
            if not releases:
                return pairs.Atoms([0.0], [1.0], [1.0], symmetric=True)
            if list(releases.values()) == [1]:
                return pair_of(next(iter(releases)), cells)
            each, counts = [pair_of(e, cells) for e in releases], list(releases.values())
            forth = loss_distributions.composition(each, counts, POINTS[cells])
            if all(p.symmetric for p in each):
                return pairs.TwoSided(forth, forth, symmetric=True)
            back = loss_distributions.composition([p.reversed() for p in each], counts, POINTS[cells])
            return pairs.TwoSided(forth, back)
        case Parallel(events):
            return pairs.Worst([pair_of(e, cells) for e in events]) if events else pair_of(Composed(()), cells)
        case _:
            pair = event.pair()
            if pair is None:
                raise UnsupportedEvent(f"pld knows no dominating pair for {event!r}.")
            return pair


def _either_way(event: Event, rate: float, cells: float) -> Pair:
    """Return a pair for a replaced unit that is in the sample with probability `rate`, in both directions.

    H_g' <= rate * H_g with g' = 1 + rate (g - 1) for g >= 1, for both orders of the neighbours: Balle, Barthe, Gaboardi
    (2018), arXiv:1807.01647, Theorem 2 (advanced joint convexity) and Theorem 9. The symmetric pair with these
    hockey-stick divergences dominates.
    """
    inner = pair_of(event, cells)
    if rate >= 1:
        return inner
    if not inner.symmetric:
        raise UnsupportedEvent(f"pld samples a replaced unit of symmetric releases only, not of {event!r}.")
    return pairs.Mirrored(pairs.diluted(inner, rate))


def _thinned(releases: dict[Event, int]) -> dict[Event, int]:
    """Return a shortened version of a long schedule: one release stands for its neighbours. A guess, not a bound."""
    each = -(-len(releases) // FEW)
    kinds, counts = list(releases), list(releases.values())
    groups = [slice(i, i + each) for i in range(0, len(kinds), each)]
    return {kinds[g][len(kinds[g]) // 2]: sum(counts[g]) for g in groups}


def _directions(event: Event, cells: float) -> tuple[list[list[Pair]], list[int]]:
    releases = _thinned(parts(event)) if cells == SLOPPY else parts(event)
    each = [pair_of(e, cells) for e in releases]
    both = [each] if all(p.symmetric for p in each) else [each, [p.reversed() for p in each]]
    return both, list(releases.values())


def epsilon(event: Event, target_delta: float, cells: float = FINE) -> float:
    """Return epsilon at `target_delta`, rounded to the safe side.

    `cells` is the resolution of the grid. With SLOPPY the result may be a guess and not a bound, because long schedules
    are shortened.
    """
    return worst(lambda alternative: _epsilon(alternative, target_delta, cells), event)


def _epsilon(event: Event, target_delta: float, cells: float) -> float:
    """Return epsilon of the worse direction; a direction that is clearly better is only evaluated roughly.

    Both grids give upper bounds, and at a small delta the fine one may give the larger. The smaller of the two is
    returned, so that noise which is calibrated on the rough grid is enough on the fine one.
    """
    both, counts = _directions(event, cells)
    if not counts:
        return 0.0
    if cells >= ROUGH:
        return max(loss_distributions.epsilon(pairs, counts, target_delta, cells) for pairs in both)
    rough = [loss_distributions.epsilon(pairs, counts, target_delta, ROUGH) for pairs in both]

    def fine(i: int) -> float:
        return min(rough[i], loss_distributions.epsilon(both[i], counts, target_delta, cells))

    worse = rough.index(max(rough))
    bound = fine(worse)
    return max(bound, *(fine(i) for i in range(len(both)) if i != worse and rough[i] > bound), 0.0)


def delta(event: Event, target_epsilon: float, cells: float = FINE) -> float:
    """Return delta at `target_epsilon`, rounded to the safe side.

    `cells` is as in `epsilon`.
    """
    return worst(lambda alternative: _delta(alternative, target_epsilon, cells), event)


def _delta(event: Event, target_epsilon: float, cells: float) -> float:
    both, counts = _directions(event, cells)
    return max(loss_distributions.delta(pairs, counts, target_epsilon, cells) for pairs in both) if counts else 0.0
