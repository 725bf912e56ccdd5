"""One-bit reports: in a round every client reports one coordinate of its update, drawn in secret, as one noisy bit.

Ding, Kulkarni, Yekhanin (2017), arXiv:1712.01524, for the bit; the choice of a coordinate is that of Nguyen et al.
(2016), "Collecting and analyzing data from smart device users with local differential privacy", arXiv:1606.05053.

Protects a client from the server: the bit is 1 with probability 1/2 + (x / 2b) tanh(epsilon_0 / 2), so a report is
pure epsilon_0-DP whatever the client's data, and epsilon_0 = 1/z is what is calibrated. The coordinate is let out by an
outlet of its own, which looks at nothing and costs nothing: behind a shuffler a message may hold nothing else. The
server adds up the signs at their coordinates and takes the bias off; with many clients that is the mean update.

    SORDINO_PLUGINS=examples/plugins sordino run --method sign-bits --channel shuffler ...
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from sordino.contract import local_sgd
from sordino.contract.method import Method, Own, Plan, Release, Site
from sordino.core import check
from sordino.core.message import Message
from sordino.core.rng import RowStream
from sordino.core.types import State
from sordino.privacy.clip import Bounded
from sordino.privacy.events import Composed, Event
from sordino.privacy.mechanisms.one_bit_mean import OneBitMean
from sordino.privacy.release import Use

__all__ = ["SignBits"]


@dataclass(frozen=True)
class Place:
    """Draw a whole number below `size`, whatever the value is."""

    size: int

    def apply(self, x: Bounded, rng: RowStream, use: Use) -> Tensor:
        drawn = rng.words(1)[:, 0] % np.uint64(self.size)
        return torch.from_numpy(drawn.astype(np.int32)).to(x.value.device)

    def event(self, split: int = 1) -> Event:
        return Composed(())  # nothing is told, so nothing is paid


@dataclass(frozen=True)
class Bit:
    """Report a number in [-bound, bound] as one bit, likelier to be 1 for larger numbers."""

    epsilon: float  # pure level of one report

    def apply(self, x: Bounded, rng: RowStream, use: Use) -> Tensor:
        values = x.value[:, 0].double().cpu().numpy() + x.bound
        return torch.from_numpy(OneBitMean(self.epsilon, 2 * x.bound).randomize(values, rng) > 0).to(x.value.device)

    def event(self, split: int = 1) -> Event:
        return OneBitMean(self.epsilon).event()


@dataclass(frozen=True)
class SignBits(Method):
    box: float = 0.1  # b: bound on every coordinate of an update

    units: ClassVar[tuple[str, ...]] = ("client",)
    algorithms: ClassVar[tuple[str, ...]] = ("fedavg", "fedsgd", "fedavgm", "fedopt", "fedprox")
    channels: ClassVar[tuple[str, ...]] = ("direct", "shuffler")
    reads: ClassVar[str] = "rows"

    def __post_init__(self) -> None:
        check.positive(box=self.box)

    def releases(self, plan: Plan, round: int = 0, state: State | None = None) -> tuple[Release, ...]:
        place = Release("place", Place(plan.dim), "client", 1.0)
        return place, Release("bit", Bit(1 / plan.z), "client", self.box)

    def train(self, state: State, site: Site) -> tuple[Message, Own]:
        update, mine = local_sgd.sgd(state, site)
        place = site.out["place"](torch.zeros_like(update[:, :1]))
        bit = site.out["bit"](update.gather(1, place.long()[:, None]))
        return Message({"place": place, "bit": bit}), site.kept(mine)

    def merge(self, state: State, seen: Message, plan: Plan) -> State:
        answers = plan.expected_answers(state.round)
        signs = torch.where(seen["bit"], 1.0, -1.0).to(state.params)
        counts = signs if seen.weight is None else signs * seen.weight
        total = torch.zeros_like(state.params).index_add(0, seen["place"].long(), counts)
        mean = total * plan.dim * self.box / math.tanh(1 / plan.z / 2) / answers
        return plan.algorithm.update(state, mean, plan.server(answers / plan.population))
