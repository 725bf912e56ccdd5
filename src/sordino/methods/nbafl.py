"""NbAFL, sound: noise before aggregation.

Based on Wei et al. (2020), arXiv:1911.00222, Algorithm 1.

Protects a client from the server (and so from everyone else): each client clips its update to C and adds N(0, (zC)^2)
itself, before anything leaves it. Which clients take part is public; "remove" means that the client's message is noise
around zero, which moves it by C; with cohorts of a fixed size a client is replaced by another: 2C.

Differs from the paper (`nbafl-paper`): the update is clipped, not the weights; the sensitivity is that of the clip, not
2C/m; rounds compose exactly (as Gaussians) instead of linearly. The server may add noise to the mean before it
publishes it (`downlink`): this is post-processing, for which no protection against the server is claimed.

A viewer who sees only the models sees the mean of N messages and so the noise of all N; if every client answers in
every round, this is what is charged against the public (minus the noise of one client, which may be the viewer itself).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sordino.contract import local_sgd
from sordino.contract.method import Method, Own, Plan, Release, Site
from sordino.core import check
from sordino.core.message import Message
from sordino.core.types import State
from sordino.privacy.mechanisms.gaussian import Gaussian

__all__ = ["NbAFL"]


@dataclass(frozen=True)
class NbAFL(Method):
    """Clipped updates with noise added by each client; see the module docstring."""

    clip: float = 1.0  # C: bound on the L2 norm of a client's update
    downlink: float = 0.0  # std of the noise that the server adds to the mean, over that of one client's noise

    units: ClassVar[tuple[str, ...]] = ("client",)
    algorithms: ClassVar[tuple[str, ...]] = ("fedavg", "fedsgd", "fedavgm", "fedopt", "fedprox")
    channels: ClassVar[tuple[str, ...]] = ("direct", "secure-sum")

    def __post_init__(self) -> None:
        check.positive(clip=self.clip)
        check.non_negative(downlink=self.downlink)

    def releases(self, plan: Plan, round: int = 0, state: State | None = None) -> tuple[Release, ...]:
        """Declare the noisy updates and, with `downlink`, the noise that the server adds to their mean."""
        up = Release("update", Gaussian(plan.z), "client", self.clip, terms=1, additive=True, key="release/uplink")
        if not self.downlink:
            return (up,)
        return up, on_the_mean(self.downlink * plan.z, self.clip, plan, round)

    def linear(self, plan: Plan) -> bool:
        return True

    def train(self, state: State, site: Site) -> tuple[Message, Own]:
        """Send the clipped, noisy updates."""
        update, mine = local_sgd.sgd(state, site)
        return Message({"update": site.out["update"](update)}), site.kept(mine)

    def noise(self, state: State, plan: Plan) -> float | None:
        return plan.z * self.clip * float(plan.split**-0.5)


def on_the_mean(multiplier: float, bound: float, plan: Plan, round: int) -> Release:
    """Return the release by which the server adds noise of std multiplier * bound to the mean of the updates."""
    noise = Gaussian(plan.expected_answers(round) * multiplier)
    return Release("downlink", noise, "client", bound, where="server", onto="update", terms=1, key="merge/downlink")
