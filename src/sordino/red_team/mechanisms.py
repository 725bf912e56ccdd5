"""Audits of single mechanisms: one mechanism applied to two neighbouring inputs, many times.

The inputs are those that are hardest to hide: a row of zeros (nobody) and one of the whole bound along one axis; under
"replace" the two ends of that axis; for a local randomizer, two values far apart. Each row has a stream of its own, so
that every row is an independent trial, and all of them are drawn at once. Two mechanisms are different. Noise that is
correlated over rounds is applied in all rounds, since its price is that of the whole run; and noise that several
clients share is seen in the sum of their rows.

`exact` is the epsilon of the same two inputs by the ratio of densities, where the mechanism states its distribution:
no audit may exceed it, and the price may not lie below it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from sordino.audits.bounds import Floats
from sordino.audits.game import Trials
from sordino.core import check
from sordino.core.errors import SpecError
from sordino.core.rng import RowStream, Stream
from sordino.privacy import pairs, tightest
from sordino.privacy.accountants import pld
from sordino.privacy.clip import Bounded
from sordino.privacy.events import Event
from sordino.privacy.pairs import Atoms, Pair, Shift
from sordino.privacy.quantise import Bounds, Integers
from sordino.privacy.release import Use

RELATIONS = ADD_REMOVE, REPLACE = ("add/remove", "replace")
CELLS, REACH = 60_000, 60.0  # points at which densities are compared, and how many noise scales they reach out
WORDS = ("aaaa", "zzzz")  # the two values of a randomizer of words


def mechanism_trials(
    mechanism: Any,
    bound: float = 1.0,
    dim: int = 1,
    count: int = 2000,
    seed: int = 0,
    split: int = 1,
    relation: str = ADD_REMOVE,
) -> Trials:
    """Return trials of a mechanism on two neighbouring inputs.

    Args:
        mechanism: an object that has `apply` (as in `Release`), or `add`, `randomize`, `select` or `above`.
        bound: bound on the row of one unit; a whole number for noise on integers.
        dim: number of coordinates.
        count: number of trials with the unit, and as many without it.
        seed: of the noise.
        split: number of clients that share the noise; the trials are sums of their rows.
        relation: "add/remove" compares a unit with nobody, "replace" a unit with its opposite.
    """
    check.positive(bound=bound)
    check.count(dim=dim, count=count, split=split)
    check.one_of(RELATIONS, relation=relation)
    sides = []
    for name, side in (("inside", 1.0), ("outside", -1.0 if relation == REPLACE else 0.0)):
        streams = Stream.research(seed).at("audit", name).rows(np.arange(count * split))
        sides.append(_numbers(_outputs(mechanism, bound, dim, count, split, side, streams), count, split))
    return Trials(*sides)


def one_use(mechanism: Any, bound: float = 1.0, dim: int = 1, split: int = 1) -> Event:
    """Return the event of one use, whatever the mechanism has to be told for it."""
    if _on_integers(mechanism):
        limits = _limits(bound, dim)
        event: Event = mechanism.event(limits) if split == 1 else mechanism.event(limits, split)
        return event
    for args in ((split,) if split > 1 else (), (split, dim), (dim,)):
        try:
            priced: Event = mechanism.event(*args)
        except (TypeError, SpecError):
            continue
        return priced
    raise SpecError(f"{type(mechanism).__name__}.event takes arguments that an audit does not know.")


def claimed(mechanism: Any, bound: float = 1.0, dim: int = 1, split: int = 1) -> Callable[[float], float]:
    """Return the accounted curve of one use: epsilon as a function of delta, on a coarse grid, so slightly above."""
    event = one_use(mechanism, bound, dim, split)
    return lambda delta: tightest.epsilon(event, delta, pld.ROUGH)


def exact(mechanism: Any, delta: float, bound: float = 1.0, relation: str = ADD_REMOVE) -> float:
    """Return the epsilon at delta of the two inputs in one dimension, by the ratio of their densities.

    Where a mechanism states no distribution, the pair of its event is used, which is the price again.
    """
    check.fraction(delta=delta)
    check.one_of(RELATIONS, relation=relation)
    return epsilon_of_pair(_pair(mechanism, bound, relation), delta)


def epsilon_of_pair(pair: Pair, delta: float) -> float:
    """Return the least epsilon at which both directions of a pair have a hockey-stick divergence of at most delta."""
    both = (pair,) if pair.symmetric else (pair, pair.reversed())

    def too_much(epsilon: float) -> bool:
        return max(pairs.delta(p, epsilon) for p in both) > delta * (1 + 1e-12) + 1e-15

    if not too_much(0.0):
        return 0.0
    low, high = 0.0, 1.0
    while too_much(high):
        low, high = high, 2 * high
        if high > 1e4:
            return math.inf
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if too_much(middle) else (low, middle)
    return high


def _pair(mechanism: Any, bound: float, relation: str) -> Pair:
    """Return the two distributions of what comes out."""
    swing = 2.0 if relation == REPLACE else 1.0
    event = one_use(mechanism, bound)
    if (mu := event.gdp()) is not None and not hasattr(mechanism, "density"):
        return Shift(swing * mu)
    if hasattr(mechanism, "density") and hasattr(mechanism, "cdf"):  # noise on a number that moves by the bound
        reach = REACH * bound * max(1.0, float(getattr(mechanism, "noise_multiplier", 1.0)))
        edges = np.linspace(-reach, reach + swing * bound, CELLS)
        at, wide = (edges[1:] + edges[:-1]) / 2, np.diff(edges)
        moved, unmoved = (wide * mechanism.density(at - move, bound) for move in (swing * bound, 0.0))
        return Atoms.of(moved, unmoved)
    if hasattr(mechanism, "randomize") and hasattr(mechanism, "probabilities") and not hasattr(mechanism, "alphabet"):
        one, other = (np.ravel(mechanism.probabilities(v)) for v in _values(mechanism))
        if abs(float(one.sum()) - 1) < 1e-9:  # else they are of single bits
            return Atoms.of(one, other)
    if swing == 1.0 and (stated := event.pair()) is not None:
        return stated
    raise SpecError(f"{type(mechanism).__name__} states no distribution that a density ratio could be taken of.")


# --- inputs


def _outputs(mechanism: Any, bound: float, dim: int, count: int, split: int, side: float, rng: RowStream) -> list[Any]:
    """Return what comes out of the mechanism where one unit is at `side` times the bound, row by row."""
    if hasattr(mechanism, "randomize"):  # a report always has a value: the other one stands for nobody
        value = _values(mechanism)[0 if side > 0 else 1]
        return _flat(mechanism.randomize(_repeated(value, count), rng))
    rows = torch.zeros(count, split, dim, dtype=torch.float64)
    rows[:, 0, 0] = side * bound
    if _on_integers(mechanism):
        integers = Integers(rows.reshape(-1, dim).long(), _limits(bound, dim))
        return [mechanism.add(integers, rng, split) if split > 1 else mechanism.add(integers, rng)]
    norm = _norm(mechanism)
    if hasattr(mechanism, "select") or hasattr(mechanism, "above"):  # two candidates that a unit moves apart
        pair = Bounded(rows.new_tensor([[side * bound, -side * bound]]).repeat(count, 1), bound, norm)
        return [mechanism.select(pair, rng) if hasattr(mechanism, "select") else mechanism.above(pair, 0.0, rng)]
    x = Bounded(rows.reshape(-1, dim), bound, norm)
    if getattr(mechanism, "correlated", False):
        return _all_rounds(mechanism, x, rng)
    if hasattr(mechanism, "apply"):
        return [mechanism.apply(x, rng, Use(0, split))]
    if not hasattr(mechanism, "add"):
        raise SpecError(f"{type(mechanism).__name__} has neither apply nor add nor randomize, so nothing can be tried.")
    return [mechanism.add(x, rng)]


def _all_rounds(mechanism: Any, x: Bounded, rng: RowStream) -> list[Any]:
    """Return the releases of all rounds, in as many of which the unit takes part as it may, and as early."""
    apart = getattr(mechanism, "bands", 0) or getattr(mechanism, "separation", 1)
    inside = {k * apart for k in range(mechanism.participations)}
    nobody = Bounded(torch.zeros_like(x.value), x.bound, x.norm)
    return [mechanism.apply(x if t in inside else nobody, rng, Use(t)) for t in range(mechanism.rounds)]


def _values(mechanism: Any) -> tuple[Any, Any]:
    """Return two values of a local randomizer that are as unlike as they can be."""
    names = {f.name for f in fields(mechanism)} if is_dataclass(mechanism) else set()
    if "alphabet" in names:
        return WORDS
    if "top" in names:
        return 0.0, float(mechanism.top)
    if "dim" in names:
        ones = np.ones(mechanism.dim)
        return -ones, ones
    return 0, 1


def _repeated(value: Any, count: int) -> Any:
    return [value] * count if isinstance(value, str) else np.repeat(np.asarray(value)[None], count, axis=0)


def _on_integers(mechanism: Any) -> bool:
    return str(getattr(mechanism, "geometry", "")).startswith("integers")


def _limits(bound: float, dim: int) -> Bounds:
    whole = int(bound)
    if whole != bound:
        raise SpecError(f"noise on integers needs a bound that is a whole number, not {bound!r}.")
    return Bounds(dim, whole, whole * whole, whole)


def _norm(mechanism: Any) -> float:
    """Return the order of the norm in which a mechanism wants its rows."""
    if (stated := getattr(mechanism, "norm", None)) is not None:
        return float(stated)
    return {"L1": 1.0, "L-infinity": math.inf}.get(str(getattr(mechanism, "geometry", "L2")), 2.0)


# --- outputs


def _flat(report: Any) -> list[Any]:
    """Return the parts of a report."""
    return [part for item in report for part in _flat(item)] if isinstance(report, tuple) else [report]


def _numbers(parts: list[Any], count: int, split: int) -> Floats:
    """Return what came out as rows of numbers [trials, numbers], summed over those who share the noise."""
    rows = [np.asarray(p, dtype=np.float64).reshape(count, split, -1).sum(axis=1) for p in parts]
    wide: NDArray[np.float64] = np.concatenate(rows, axis=1)
    return wide
