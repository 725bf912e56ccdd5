"""A method as it might stand in a paper, whose claim does not hold: noise in proportion to a client's own update.

Each client adds N(0, (s |u|)^2) to its update u, with the s of the classic formula sqrt(2 ln(1.25/delta)) / epsilon
(Dwork and Roth 2014, Theorem A.1), as if |u| were a bound on all updates. It is not: whoever sees the message reads the
scale of the noise, and with it the norm of this client's update, which no noise hides. So the epsilon is a claim, shown
beside an infinite price; and even with a true bound it would be for one round, since rounds are not composed.

Write a printed method so: `private = False`, an `Unproven` mechanism that acts as printed, and the `Claim`. The sound
one, with a clip, is `nbafl`.

    SORDINO_PLUGINS=examples/plugins sordino run --method printed-form ...
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from sordino.contract import local_sgd
from sordino.contract.method import Claim, Method, Own, Plan, Release, Site
from sordino.core.message import Message
from sordino.core.types import State
from sordino.privacy.mechanisms.gaussian import Gaussian
from sordino.privacy.release import Unproven

__all__ = ["PrintedForm"]

WHY_NOT = "the scale of the noise is the norm of the client's own update, which the noise itself gives away"


@dataclass(frozen=True)
class PrintedForm(Method):
    private: ClassVar[bool] = False
    units: ClassVar[tuple[str, ...]] = ("client",)
    algorithms: ClassVar[tuple[str, ...]] = ("fedavg", "fedsgd", "fedavgm", "fedopt", "fedprox")

    def ratio(self, plan: Plan) -> float:
        """Return the noise in a coordinate over the norm of the update."""
        return math.sqrt(2 * math.log(1.25 / plan.delta)) / plan.epsilon

    def releases(self, plan: Plan, round: int = 0, state: State | None = None) -> tuple[Release, ...]:
        return (Release("update", Unproven(WHY_NOT, Gaussian(self.ratio(plan))), "client", 1.0),)

    def train(self, state: State, site: Site) -> tuple[Message, Own]:
        update, mine = local_sgd.sgd(state, site)
        scale = self.ratio(site.plan) * update.norm(dim=1, keepdim=True)
        return Message({"update": site.out["update"](update, multiplier=scale)}), site.kept(mine)

    def claim(self, plan: Plan) -> Claim:
        source = "the Gaussian mechanism with |u| as sensitivity"
        return Claim(plan.epsilon, plan.delta, source, WHY_NOT, scope="round", unit="client")
