"""Binary tree noise for running sums.  Dwork et al. (2010), "DP under continual observation"; Chan, Shi, Song (2011).

In federated learning: DP-FTRL, Kairouz et al. (2021), arXiv:2103.00039, Algorithm 1. The sum of rounds 1..t gets the
noise of the nodes that make it up, one for each 1 in the binary digits of t. All released sums are functions of the
noisy nodes, which are one Gaussian release. A round lies in at most `levels` = floor(log2 T) + 1 of them (the first
round in all), so one participation changes the nodes by sqrt(levels) in L2; rounds may depend on earlier sums (Jain et
al. 2021, arXiv:2112.00828). The bound on the rows must be the same in every round, and so must the key: a run that
continues under another key is a second run, and its event must be paid again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from sordino.core import check
from sordino.core.errors import SpecError
from sordino.core.rng import RowStream
from sordino.core.types import Rows
from sordino.privacy.clip import Bounded
from sordino.privacy.events import Event, GaussianEvent
from sordino.privacy.release import Use

__all__ = ["Tree"]


@dataclass(frozen=True)
class Tree:
    """Add node noise N(0, (noise_multiplier * bound)^2) to running sums; the event covers all rounds together."""

    noise_multiplier: float  # standard deviation of one node's noise over the clip bound
    rounds: int  # T: number of rounds
    participations: int = 1  # k: maximum number of rounds in which one unit participates
    separation: int = 1  # b: participations of one unit are at least this many rounds apart

    correlated: ClassVar[bool] = True  # noise comes from the stream of the run and depends on the round
    geometry: ClassVar[str] = "L2"
    exact: ClassVar[bool] = False
    calibrated: ClassVar[str] = "noise_multiplier"

    def __post_init__(self) -> None:
        check.positive(noise_multiplier=self.noise_multiplier)
        check.count(rounds=self.rounds, participations=self.participations, separation=self.separation)

    @property
    def levels(self) -> int:
        """The number of levels of the tree, floor(log2 T) + 1."""
        return self.rounds.bit_length()

    def sensitivity(self) -> float:
        """Return a bound on the L2 sensitivity of all nodes, in units of the bound on a row.

        The nodes of level l are disjoint and 2^l long: the counts of a unit in them add up to at most k, and none
        exceeds min(k, ceil(2^l / b)). A sum of squares under these two constraints is largest when as many counts as
        possible are at their maximum. The result is never above k sqrt(levels), and exactly sqrt(levels) for k = 1.
        """
        k = min(self.participations, -(-self.rounds // self.separation))
        total = 0
        for level in range(self.levels):
            most = min(k, -(-(2**level) // self.separation))
            full, left = divmod(k, most)
            total += full * most * most + left * left
        return math.sqrt(total)

    def event(self, split: int = 1) -> Event:
        """Return the event of the whole run: one Gaussian release with mu = sensitivity / noise_multiplier."""
        return GaussianEvent(self.noise_multiplier / self.sensitivity())

    def add(self, rows: Bounded, step: int, rng: RowStream) -> Rows:
        """Return the sum of round `step` (counted from 0) with its noise.

        Sums of these results have the noise of `prefix`.
        """
        rows.require(2, "tree")
        return rows.value + rows.bound * self.noise(step, rows.value.shape[1], rng, rows.value)

    def apply(self, x: Bounded, rng: RowStream, use: Use) -> Rows:
        """Return the sum of the round with its noise; `rng` is the stream of the run."""
        return self.add(x, use.round, rng)

    def noise(self, step: int, dim: int, rng: RowStream, like: Tensor) -> Tensor:
        """Return the noise that round `step` adds, in units of the bound: prefix(step + 1) - prefix(step).

        `rng` is the stream of the run, the same in every round.
        """
        check_step(step, self.rounds)
        new, old = nodes(step + 1), nodes(step)
        out = torch.zeros(len(rng.ids), dim, dtype=like.dtype, device=like.device)
        for node in new:
            if node not in old:
                out += self._node(node, dim, rng, like)
        for node in old:
            if node not in new:
                out -= self._node(node, dim, rng, like)
        return out

    def prefix(self, count: int, dim: int, rng: RowStream, like: Tensor) -> Tensor:
        """Return the noise of the sum of the first `count` rounds, in units of the bound."""
        out = torch.zeros(len(rng.ids), dim, dtype=like.dtype, device=like.device)
        if count:
            check_step(count - 1, self.rounds)
        for node in nodes(count):
            out += self._node(node, dim, rng, like)
        return out

    def variance(self, count: int) -> float:
        """Return the variance of one coordinate of prefix(count), in units of the squared bound.

        There is one node for every 1 in the binary digits of `count`.
        """
        return self.noise_multiplier**2 * count.bit_count()

    def mean_squared_error(self) -> float:
        """Return the mean squared error of one coordinate of a running sum, averaged over the rounds.

        It is in units of the squared bound.
        """
        return sum(self.variance(t) for t in range(1, self.rounds + 1)) / self.rounds

    def _node(self, node: tuple[int, int], dim: int, rng: RowStream, like: Tensor) -> Tensor:
        return self.noise_multiplier * rng.at("node", *node).normal(dim, like=like)


def nodes(count: int) -> list[tuple[int, int]]:
    """Return the nodes (level, index) that make up rounds 0..count-1.

    Node (l, i) holds rounds i 2^l .. (i + 1) 2^l - 1.
    """
    cover, start = [], 0
    for level in reversed(range(count.bit_length())):
        if count >> level & 1:
            cover.append((level, start >> level))
            start += 1 << level
    return cover


def check_step(step: int, rounds: int) -> None:
    """Check that a round is one of those that the noise was planned for."""
    if isinstance(step, bool) or not isinstance(step, int) or not 0 <= step < rounds:
        raise SpecError(
            f"step must be a whole number from 0 to {rounds - 1}, not {step!r}: noise was planned for {rounds}."
        )
