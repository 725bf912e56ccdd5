"""Shapley values: what each player adds to a game, on average over all orders in which players may join.

    phi_g = sum over S without g of |S|! (n - |S| - 1)! / n! [v(S + g) - v(S)]

Shapley (1953); Li et al. (2025), arXiv:2503.12958, Eq. (2). `exact` asks for all 2^n coalitions, `sampled` for those on
the way of some random orders (Castro, Gomez, Tejada 2009: unbiased), and a quadratic game has a closed form. Values may
be arrays: then as many games are solved side by side, one a client."""

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

MOST = 12  # players for whom all coalitions are asked: 4096 of them

Value = Callable[[frozenset[int]], ArrayLike]  # of a coalition; a number, or an array of one shape


def exact(players: int, value: Value) -> Floats:
    """The values [players, ...]."""
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
    values: Floats  # [players, ...]
    errors: Floats  # their standard errors


def sampled(players: int, value: Value, orders: int, rng: Stream) -> Estimate:
    """From that many random orders, drawn with replacement; they add up to v(all) - v(none), as one order's do."""
    check.count(players=players, orders=orders)
    if orders < 2:
        raise SpecError("one order of the players says nothing about its own error: sample at least 2.")
    v = _remembered(value)
    found = []
    for number in range(orders):
        added, so_far = {}, frozenset[int]()
        for g in rng.at("order", number).permutation(players).tolist():
            added[g] = v(so_far | {g}) - v(so_far)
            so_far = so_far | {g}
        found.append([added[g] for g in range(players)])
    every = np.array(found, dtype=np.float64)  # [orders, players, ...]
    return Estimate(every.mean(axis=0), every.std(axis=0, ddof=1) / math.sqrt(orders))


def quadratic(sums: Tensor) -> Tensor:
    """Of the game v(S) = |sum of s_g over S|^2, s [players, dim]: phi_g = <s_g, sum of all>, float64.

    v adds |s_g|^2 for every member and 2 <s_g, s_h> for every pair, which a pair shares in halves."""
    s = sums.to(torch.float64)
    return s @ s.sum(dim=0)


def _remembered(value: Value) -> Callable[[frozenset[int]], Floats]:
    known: dict[frozenset[int], Floats] = {}

    def ask(coalition: frozenset[int]) -> Floats:
        if coalition not in known:
            known[coalition] = np.asarray(value(coalition), dtype=np.float64)
        return known[coalition]

    return ask
