"""The Poisson binomial mechanism.  Chen, Ozgur, Kairouz (2022), arXiv:2207.09916, Algorithm 1.

For every coordinate x in [-c, c] a client sends how many of m coins come up heads, each with probability 1/2 + theta
x/c. The server of a secure sum sees only the sum over n clients, which is unbiased after scaling and private by the
coins alone.

The privacy cost is our own derivation, exact except for a grouping of cases. The neighbouring relation is replace-one:
everyone sends m coins. The sum is that of nm coins; its distribution is affine in each coin's probability, and Renyi
divergence is quasi-convex, so in the worst case every coin has one of the extreme probabilities 1/2 +- theta. A
distribution is then given by its number of high coins. A client changes that number by at most m, and as high coins
raise the sum in likelihood ratio order, the worst change is exactly m. What remains is a maximum over the number of
high coins among the others. We cover it by groups: within a group some coins are of unknown kind, and dropping those
coins can only help the server. Coordinates compose: the cost is multiplied by the dimension.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from sordino.core import check
from sordino.core.errors import SpecError
from sordino.core.rng import RowStream
from sordino.privacy.clip import Bounded
from sordino.privacy.events import Event, Floats

__all__ = ["PoissonBinomial"]

GROUPS = 32  # number of groups; a group drops at most one coin in 32
MOST_COINS = 2**19  # more coins hide more, but are priced as this many
MOST_LEVELS = 2**12
SMALL, REST = (
    1e-290,
    -640.0,
)  # probabilities below SMALL are dropped from a sum; together they weigh less than e^REST


@dataclass(frozen=True)
class PoissonBinomialEvent(Event):
    """The sum over `clients`, of which `changed` (one by default) are replaced.

    It has a curve and no pair: a sampler for the add/remove relation must not use it, because an absent client sends no
    coins.
    """

    mirrored: ClassVar[bool] = False
    replaces: ClassVar[bool] = True

    levels: int  # m: number of coins per client and coordinate
    theta: float
    clients: int
    dim: int
    changed: int = 1

    def __post_init__(self) -> None:
        check.count(levels=self.levels, clients=self.clients, dim=self.dim, changed=self.changed)
        _check_theta(self.theta)
        if self.changed > self.clients:
            raise SpecError(f"{self.changed} of {self.clients} clients cannot change.")

    def renyi(self, orders: Floats) -> Floats:
        """Return the Renyi divergences of the worst case, times the dimension and at most the largest loss."""
        moved = self.changed * self.levels
        if moved > MOST_LEVELS:  # a group this large is priced by its largest loss alone
            return np.full(len(orders), self.largest())
        others = min((self.clients - self.changed) * self.levels, MOST_COINS)
        worst = np.array(_worst(self.theta, moved, others, tuple(orders.tolist())))
        return np.asarray(np.minimum(self.dim * worst, self.largest()))

    def grouped(self, k: int) -> Event:
        return replace(self, changed=min(k * self.changed, self.clients))

    def scaled(self, factor: float) -> Event:
        """Return the event of a sum of which the viewer knows the coins of some clients."""
        known = self.clients - math.floor(self.clients * min(1.0, factor * factor) * (1 + 1e-12))
        return replace(self, clients=max(self.changed, self.clients - known))

    def largest(self) -> float:
        """Return the largest possible loss: the pure epsilon of replacing the changed clients."""
        return self.dim * _largest(self.theta, self.changed * self.levels)


def _largest(theta: float, moved: int) -> float:
    """Return the largest loss of one coordinate.

    It is ln((1/2 + theta)/(1/2 - theta)) for every coin of the changed clients.
    """
    return moved * 2 * math.atanh(2 * theta)


@lru_cache(maxsize=32)  # accountants ask for the same orders repeatedly
def _worst(theta: float, moved: int, others: int, orders: tuple[float, ...]) -> tuple[float, ...]:
    a = np.array(orders)
    log = np.full(len(a), -np.inf)
    for p, q, complete in _laws(theta, moved, others):
        loss = p - q
        for i, order in enumerate(orders):
            term = order * loss + q
            top = float(term.max())
            log_sum = top + math.log(float(np.exp(term - top).sum()))
            if not complete:
                log_sum = float(np.logaddexp(log_sum, REST + order * _largest(theta, moved)))
            log[i] = max(log[i], log_sum)
    return tuple(((log + 1e-12 * a) / (a - 1)).tolist())  # margin for rounding in the sums


@lru_cache(maxsize=8)
def _laws(theta: float, moved: int, others: int) -> tuple[tuple[Floats, Floats, bool], ...]:
    """Return, for each group, the log-probabilities of the sum with and without the change, and whether they are
    complete.

    What is dropped, by windows of 38 standard deviations and by SMALL, is bounded: p^a q^(1-a) is subadditive and p/q
    is at most e^_largest, so it adds less than e^(REST + a _largest).
    """
    from scipy.stats import binom  # takes a second to import

    edges = np.unique(np.linspace(0, others + 1, min(others + 1, GROUPS) + 1).astype(int))
    laws = []
    for low, high in zip(edges[:-1], edges[1:] - 1, strict=True):  # low to high: number of high coins among the others
        shared = np.convolve(_window(int(low), 0.5 + theta), _window(others - int(high), 0.5 - theta))
        p, q = (np.convolve(shared, binom.pmf(np.arange(moved + 1), moved, 0.5 + s * theta)) for s in (1, -1))
        mask = (p > SMALL) & (q > SMALL)
        complete = bool(mask.all()) and len(p) == moved + int(low) + others - int(high) + 1
        laws.append((np.log(p[mask] / p.sum()), np.log(q[mask] / q.sum()), complete))
    return tuple(laws)


def _window(coins: int, chance: float) -> Floats:
    from scipy.stats import binom  # takes a second to import

    wide = math.ceil(19 * math.sqrt(coins)) + 1  # Hoeffding: the mass beyond is below 2 e^-722
    k = np.arange(max(0, math.floor(coins * chance) - wide), min(coins, math.ceil(coins * chance) + wide) + 1)
    return np.asarray(binom.pmf(k, coins, chance), dtype=np.float64)


def _check_theta(theta: float) -> None:
    check.positive(theta=theta)
    if theta >= 0.5:
        raise SpecError(f"theta must be below 1/2, not {theta!r}: a coin that always shows heads hides nothing.")


@dataclass(frozen=True)
class PoissonBinomial:
    """Send Binomial(levels, 1/2 + theta x / bound) for every coordinate x of rows clipped in the L-infinity norm."""

    levels: int = 16  # m: number of coins per client and coordinate; messages lie between 0 and this
    theta: float = 0.25  # bias of a coin at the bound, below 1/2; smaller is more private

    geometry: ClassVar[str] = "L-infinity"
    exact: ClassVar[bool] = True
    calibrated: ClassVar[str] = "theta"

    def __post_init__(self) -> None:
        check.count(levels=self.levels)
        _check_theta(self.theta)
        if self.levels > MOST_LEVELS:
            raise SpecError(f"levels must be at most {MOST_LEVELS}, not {self.levels}; fewer are private enough.")

    def add(self, rows: Bounded, rng: RowStream) -> Tensor:
        """Return the messages [clients, dim], int64, to be summed securely.

        A coin compares 32 random bits with its probability.
        """
        rows.require(math.inf, "poisson-binomial")
        x = rows.value.detach().cpu().numpy().astype(np.float64)
        if not np.isfinite(x).all():
            raise SpecError("a row to encode is not finite; clip it first.")
        # the ends are whole numbers inside the interval that is priced, whatever the rounding of floats
        ends = (
            math.ceil((Fraction(1, 2) - Fraction(self.theta)) * 2**32),
            math.floor((Fraction(1, 2) + Fraction(self.theta)) * 2**32),
        )
        heads = np.clip(np.rint((0.5 + self.theta * x / rows.bound) * 2**32), *ends).astype(np.uint64)
        out = np.zeros(x.shape, dtype=np.int64)
        for j in range(0, self.levels, 2):
            words = rng.at("coins", j).words(x.shape[1])
            out += (words >> np.uint64(32)) < heads
            if j + 1 < self.levels:
                out += (words & np.uint64(2**32 - 1)) < heads
        return torch.from_numpy(out).to(rows.value.device)

    def mean(self, total: Tensor, clients: int, bound: float) -> Tensor:
        """Return the unbiased mean of the clients' rows from the sum of their messages."""
        check.count(clients=clients)
        check.positive(bound=bound)
        return (total.double() / clients - self.levels / 2) * (bound / (self.theta * self.levels))

    def variance(self, clients: int, bound: float, x: float = 0.0) -> float:
        """Return the variance of one coordinate of the mean if every client holds x; it is largest at 0."""
        return (bound**2 / (4 * self.theta**2) - x**2) / (self.levels * clients)

    def event(self, clients: int, dim: int) -> Event:
        """Return the event of the sum over this many clients; if fewer answer, price those who did."""
        return PoissonBinomialEvent(self.levels, self.theta, clients, dim)
