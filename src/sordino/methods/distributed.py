"""Distributed noise: integers with shares of noise, of which the server sees the sum alone.

Agarwal, Kairouz, Liu (2021), arXiv:2110.04995, Algorithm 1 (`skellam`); Kairouz, Liu, Steinke (2021), arXiv:2102.06387,
Algorithms 1 and 2 (`discrete-gaussian`); Chen, Ozgur, Kairouz (2022), arXiv:2207.09916, Algorithm 1
(`poisson-binomial`).

Protects a client from the server, at the noise that dp-fedavg adds where the server is trusted. A client clips its
update in L2, rotates it by a public random Hadamard matrix, rounds it at random to a lattice and adds its share of
integer noise; what it sends are integers modulo 2^bits. The server of a secure sum sees the sum, whose noise is that of
all honest clients that are certain to be in it, and undoes lattice and rotation.

Which clients take part is public, and a missing client misses with its share of the noise, which would be seen (the
noise of 99 shares is not that of 100). So a client is not removed: its row becomes zero and its share remains, which
moves the sum by C; with cohorts of a fixed size, and with poisson-binomial, its data are replaced. Nothing is amplified
by sampling against the server; against the public a drawn client pays with the probability of its draw (`Visible`).

Differs from the papers: the step of the lattice follows from `bits` and the noise; bounds are checked on integers, and
a row that keeps them after none of 40 roundings is rounded towards zero; noise and coins are sampled exactly; shares
are sized for the honest clients in any sum of a server that lies about survivors; the price of poisson-binomial is
exact, for the worst coins of the others.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch

from sordino.contract import local_sgd
from sordino.contract.method import Method, Own, Plan, Release, Site
from sordino.core import check
from sordino.core.errors import SpecError
from sordino.core.message import Message
from sordino.core.types import State, Vector
from sordino.privacy.rotation import padded
from sordino.privacy.samplers import FixedSizeSampler
from sordino.privacy.shared_integers import NOISES, Coins, LatticeNoise, lattice_noise, wrapping

__all__ = ["Distributed"]

MECHANISMS = (*NOISES, "poisson-binomial")


@dataclass(frozen=True)
class Distributed(Method):
    """Integers with shares of noise behind a secure sum; see the module docstring."""

    clip: float = 1.0  # C: bound on the L2 norm of a client's update
    mechanism: str = "skellam"  # skellam, discrete-gaussian or poisson-binomial
    bits: int = 20  # integers are added modulo 2^bits; fewer bits mean a coarser lattice and so more noise
    levels: int = 16  # poisson-binomial: coins per coordinate, m
    peak: float = 1.0  # poisson-binomial: bound on a rotated coordinate, over C / sqrt(d)

    units: ClassVar[tuple[str, ...]] = ("client",)
    algorithms: ClassVar[tuple[str, ...]] = ("fedavg", "fedsgd", "fedavgm", "fedopt", "fedprox")
    channels: ClassVar[tuple[str, ...]] = ("secure-sum",)
    channel_reason: ClassVar[str] = "a share of the noise protects nobody unless the server sees the sum alone"

    def __post_init__(self) -> None:
        check.positive(clip=self.clip, peak=self.peak)
        check.one_of(MECHANISMS, mechanism=self.mechanism)
        check.count(bits=self.bits, levels=self.levels)
        if not 4 <= self.bits <= 32:
            raise SpecError(f"bits must lie between 4 and 32, not {self.bits}.")

    def modulus_bits(self) -> int:
        return self.bits

    def require(self, plan: Plan) -> None:
        """Refuse answers with weights, and sums of coins that exceed the modulus."""
        law = plan.stragglers
        if law.late or law.dropout[0] != law.dropout[1]:
            raise SpecError(
                "distributed sends whole numbers, which have no weights: use late = 0, one dropout for all."
            )
        most = 2 * _largest_cohort(plan) * self.levels + 1
        if self.mechanism == "poisson-binomial" and most > 2**self.bits:
            raise SpecError(
                f"sums of {self.levels} coins of {_largest_cohort(plan)} clients do not fit into {self.bits} bits: use "
                f"bits = {most.bit_length()}, or fewer levels."
            )

    def releases(self, plan: Plan, round: int = 0, state: State | None = None) -> tuple[Release, ...]:
        """Declare the sum of the integer rows."""
        if self.mechanism == "poisson-binomial":
            return (Release("update", self._coins(plan), "client", self.clip, relation="replace"),)
        return (Release("update", self._lattice(plan), "client", self.clip),)

    def linear(self, plan: Plan) -> bool:
        return True

    def train(self, state: State, site: Site) -> tuple[Message, Own]:
        """Send the clipped, rotated, rounded and noisy updates."""
        update, mine = local_sgd.sgd(state, site)
        return Message({"update": site.out["update"](update)}), site.kept(mine)

    def merge(self, state: State, seen: Message, plan: Plan) -> State:
        """Undo lattice and rotation, and pass the mean update to the algorithm."""
        answers = plan.expected_answers(state.round)
        mean = self._sum(seen.total("update")["update"], state, plan) / answers
        return plan.algorithm.update(state, mean.to(state.params), plan.server(answers / plan.population))

    def noise(self, state: State, plan: Plan) -> float | None:
        if self.mechanism == "poisson-binomial":
            coins = self._coins(plan)
            return math.sqrt(coins.mechanism(plan.split).variance(1, coins.peak))
        return self._lattice(plan).std(self.clip) / math.sqrt(plan.split)

    def remarks(self, plan: Plan) -> tuple[str, ...]:
        alone = ("clients do not share the noise, since no cohort size is certain: give min_cohort",)
        said = alone if plan.split == 1 and plan.population > 1 else ()
        if self.mechanism == "poisson-binomial":
            return (*said, f"no sum of coins wraps around: all of them fit into {self.bits} bits")
        made, numbers = self._lattice(plan), padded(plan.dim) * plan.rounds
        often = wrapping(made, self.clip, self.bits, plan.split, _largest_cohort(plan))
        return (
            *said,
            f"updates are sent in steps of {made.granularity:.3g} modulo 2^{self.bits}; the probability that a number "
            "of a sum in this run wraps around, which costs accuracy and no privacy, is about "
            f"{min(1.0, numbers * often):.1g}",
        )

    def _sum(self, total: torch.Tensor, state: State, plan: Plan) -> Vector:
        if self.mechanism == "poisson-binomial":
            return self._coins(plan).floats(total, state.round, plan.dim, plan.split)[0]
        return self._lattice(plan).floats(total, state.round, plan.dim)[0]

    def _lattice(self, plan: Plan) -> LatticeNoise:
        cohort = _largest_cohort(plan)
        return lattice_noise(self.mechanism, plan.z, self.clip, plan.dim, self.bits, plan.split, cohort)

    def _coins(self, plan: Plan) -> Coins:
        wide = padded(plan.dim)
        return Coins(plan.z, self.levels, self.peak * self.clip / math.sqrt(wide), wide)


def _largest_cohort(plan: Plan) -> int:
    """Return the largest number of clients in a sum; with Poisson draws, one that is hardly ever exceeded."""
    if isinstance(plan.sampler, FixedSizeSampler):
        return min(plan.sampler.size, plan.population)
    mean = plan.expected_cohort
    return plan.population if plan.share >= 1 else min(plan.population, math.ceil(mean + 8 * math.sqrt(mean) + 8))
