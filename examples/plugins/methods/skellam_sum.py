"""Distributed noise in whole numbers: clients send integers modulo 2^32, and their shares of noise add up.

Agarwal, Kairouz, Liu (2021), "The Skellam mechanism for differentially private federated learning", arXiv:2110.04995.

Protects a client from a server that sees the sum of all messages alone: updates are clipped, rounded to a lattice, and
every client adds Skellam noise of the n-th part of the variance. Skellam noise is closed under sums and sampled
exactly, so the sum has the noise that is priced, without the rounding errors of floating point. "Remove" means that the
client's row is zero and its share of the noise is still there. Differs from the paper: no rotation before the rounding.

    SORDINO_PLUGINS=examples/plugins sordino run --method skellam-sum --channel secure-sum ...
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from sordino.contract import local_sgd
from sordino.contract.method import Method, Own, Plan, Release, Site
from sordino.core import check
from sordino.core.errors import SpecError
from sordino.core.message import Message
from sordino.core.rng import RowStream
from sordino.core.types import State
from sordino.privacy.clip import Bounded
from sordino.privacy.events import Event
from sordino.privacy.mechanisms.skellam import Skellam
from sordino.privacy.quantise import Bounds, bounds, quantise
from sordino.privacy.release import Use

__all__ = ["SkellamSum"]


@dataclass(frozen=True)
class Rounded:
    """Round rows to multiples of the granularity and add each client's share of Skellam noise, as whole numbers."""

    noise_multiplier: float  # standard deviation / L2 bound of the integer rows
    granularity: float
    limits: Bounds  # of the integer rows

    def apply(self, x: Bounded, rng: RowStream, use: Use) -> Tensor:
        rows = quantise(x, self.granularity, rng.at("lattice"))
        return Skellam(self.noise_multiplier).add(rows, rng.at("noise"), use.split).to(torch.int32)  # modulo 2^32

    def event(self, split: int = 1) -> Event:
        return Skellam(self.noise_multiplier).event(self.limits, split)

    def std(self, bound: float) -> float:
        return self.granularity * math.sqrt(Skellam(self.noise_multiplier).variance(self.limits))


@dataclass(frozen=True)
class SkellamSum(Method):
    clip: float = 1.0  # C: bound on the L2 norm of a client's update
    granularity: float = 0.02  # distance of two points of the lattice

    units: ClassVar[tuple[str, ...]] = ("client",)
    algorithms: ClassVar[tuple[str, ...]] = ("fedavg", "fedsgd", "fedavgm", "fedopt", "fedprox")
    channels: ClassVar[tuple[str, ...]] = ("secure-sum",)

    def __post_init__(self) -> None:
        check.positive(clip=self.clip, granularity=self.granularity)

    def limits(self, plan: Plan) -> Bounds:
        return bounds(self.clip, 2, plan.dim, self.granularity)

    def require(self, plan: Plan) -> None:
        if not plan.everyone:
            raise SpecError("skellam-sum needs every client in every sum: use client_rate = 1 and no stragglers.")
        self.limits(plan).modulus(plan.population, 0.0)  # refuses sums that need more than the 32 bits of the channel

    def releases(self, plan: Plan, round: int = 0, state: State | None = None) -> tuple[Release, ...]:
        noise = Rounded(plan.z, self.granularity, self.limits(plan))
        return (Release("update", noise, "client", self.clip),)

    def linear(self, plan: Plan) -> bool:
        return True

    def train(self, state: State, site: Site) -> tuple[Message, Own]:
        update, mine = local_sgd.sgd(state, site)
        return Message({"update": site.out["update"](update)}), site.kept(mine)

    def merge(self, state: State, seen: Message, plan: Plan) -> State:
        answers = plan.expected_answers(state.round)
        total = seen.total("update")["update"][0].to(state.params) * self.granularity
        return plan.algorithm.update(state, total / answers, plan.server(answers / plan.population))
