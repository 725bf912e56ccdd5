"""A round of two phases: the clients' mean norm is released first, and updates are clipped to it in the same round.

Protects a client from whoever sees the models; the server is trusted with clipped values and adds the noise, as in
DP-FedAvg (McMahan et al. 2018, arXiv:1710.06963). In the phase `measure` clients send the norm of their update, at most
`largest`; the noisy mean, times `factor`, is the bound of the phase `train`. Both sums are of one cohort, so their
noise is priced as one Gaussian: z^-2 = z_measure^-2 + z_train^-2. Norms have one sign: replacing a client moves their
sum by one bound, not by two.

    SORDINO_PLUGINS=examples/plugins sordino run --method two-phases ...
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from sordino.contract import local_sgd
from sordino.contract.method import Method, Own, Plan, Release, Site
from sordino.core import check
from sordino.core.message import Message
from sordino.core.types import State
from sordino.core.vector import Layout
from sordino.privacy.mechanisms.gaussian import Gaussian

__all__ = ["TwoPhases"]

LEAST = 1e-3  # of the largest norm: what the clip never goes below, whatever the noise makes of the mean


@dataclass(frozen=True)
class Clipped:
    clip: float


@dataclass(frozen=True)
class TwoPhases(Method):
    largest: float = 10.0  # bound on a norm that is measured, and so on the clip
    factor: float = 1.0  # the clip over the mean norm
    measuring: float = 0.1  # share of the privacy, in squares of 1/z, that measuring takes

    viewer: ClassVar[str] = "public"
    units: ClassVar[tuple[str, ...]] = ("client",)
    algorithms: ClassVar[tuple[str, ...]] = ("fedavg", "fedsgd", "fedavgm", "fedopt", "fedprox")
    phases: ClassVar[tuple[str, ...]] = ("measure", "train")

    def __post_init__(self) -> None:
        check.positive(largest=self.largest, factor=self.factor, measuring=self.measuring)
        check.below_one(measuring=self.measuring)

    def variables(self, state: State, layout: Layout, plan: Plan) -> Clipped:
        return Clipped(self.largest)

    def releases(self, plan: Plan, round: int = 0, state: State | None = None) -> tuple[Release, ...]:
        clip = self.largest if state is None or state.method is None else state.method.clip
        norm, update = Gaussian(plan.z * self.measuring**-0.5), Gaussian(plan.z * (1 - self.measuring) ** -0.5)
        return (
            Release("norm", norm, "client", self.largest, where="server", swing=1, phase="measure"),
            Release("update", update, "client", clip, where="server", phase="train"),
        )

    def train(self, state: State, site: Site) -> tuple[Message, Own]:
        update, mine = local_sgd.sgd(state, site)  # the same in both phases: the model and the batches are
        if site.phase == "measure":
            return Message({"norm": site.out["norm"](update.norm(dim=1, keepdim=True))}), site.own
        return Message({"update": site.out["update"](update)}), site.kept(mine)

    def between(self, phase: str, state: State, seen: Message, plan: Plan) -> State:
        mean = float(seen.total("norm")["norm"][0, 0]) / plan.expected_answers(state.round)
        return replace(state, method=Clipped(min(max(self.factor * mean, LEAST * self.largest), self.largest)))
