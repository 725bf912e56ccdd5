"""Shapley values: the marginal contribution of each player to a game, averaged over all orders of joining.

    phi_g = sum over S without g of |S|! (n - |S| - 1)! / n! [v(S + g) - v(S)]

Shapley (1953); Li et al. (2025), arXiv:2503.12958, Eq. (2). `exact` evaluates all 2^n coalitions, `sampled` those along
some random orders (Castro, Gomez, Tejada 2009: unbiased), and a quadratic game has a closed form. Values may be arrays:
then as many games are solved side by side, one per client.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from sordino.core import check
from sordino.core.errors import SpecError
from sordino.core.rng import Floats, Stream

MOST = 12  # maximum number of players for `exact`: 4096 coalitions

Value = Callable[[frozenset[int]], ArrayLike]  # value of a coalition: a number, or an array of fixed shape


def exact(players: int, value: Value) -> Floats:
    """Return the exact Shapley values [players, ...]."""
    check.count(players=players)
    if players > MOST:
        raise SpecError(f"{players} players have 2^{players} coalitions: sample orders of them instead.")
    v = _remembered(value)
    everyone = range(players)
    phi = [
        sum(
            math.factorial(k) * math.factorial(players - k - 1) / math.factorial(players) * (v(s | {g}) - v(s))
            for k in everyone
            for s in map(frozenset, combinations([h for h in everyone if h != g], k))
        )
        for g in everyone
    ]
    return np.array(phi, dtype=np.float64)


@dataclass(frozen=True)
class Estimate:
    """Estimated Shapley values."""

    values: Floats  # [players, ...]
    errors: Floats  # standard errors of the values


def sampled(players: int, value: Value, orders: int, rng: Stream) -> Estimate:
    """Return Shapley values estimated from `orders` random orders, drawn with replacement.

    They add up to v(all) - v(none), since those of every single order do.
    """
    check.count(players=players, orders=orders)
    if orders < 2:
        raise SpecError("one order of the players says nothing about its own error: sample at least 2.")
    v = _remembered(value)
    contributions = []
    for number in range(orders):
        added, so_far = {}, frozenset[int]()
        for g in rng.at("order", number).permutation(players).tolist():
            added[g] = v(so_far | {g}) - v(so_far)
            so_far = so_far | {g}
        contributions.append([added[g] for g in range(players)])
    every = np.array(contributions, dtype=np.float64)  # [orders, players, ...]
    return Estimate(every.mean(axis=0), every.std(axis=0, ddof=1) / math.sqrt(orders))


def quadratic(sums: Tensor) -> Tensor:
    """Return the Shapley values of the game v(S) = |sum of s_g over S|^2, for s [players, dim].

    They are phi_g = <s_g, sum of all>, in float64: v adds |s_g|^2 for every member and 2 <s_g, s_h> for every pair,
    which the pair shares equally.
    """
    s = sums.to(torch.float64)
    return s @ s.sum(dim=0)


def _remembered(value: Value) -> Callable[[frozenset[int]], Floats]:
    known: dict[frozenset[int], Floats] = {}

    def ask(coalition: frozenset[int]) -> Floats:
        if coalition not in known:
            known[coalition] = np.asarray(value(coalition), dtype=np.float64)
        return known[coalition]

    return ask
