"""NbAFL, sound: noise before aggregation.  After Wei et al. (2020), arXiv:1911.00222, Algorithm 1.

Protects a client from the server (and so from everyone else): each client clips its update to C and adds N(0, (zC)^2)
itself, before anything leaves it. Whose turn it is to take part is public; "remove" means that the client's message is
noise around zero, which moves it by C, and with cohorts of a fixed size a client is replaced by another: 2C.

Differs from the paper (`nbafl-paper`): what is clipped is the update, not the weights; the sensitivity is that of the
clip, not 2C/m; rounds compose exactly (as Gaussians) instead of linearly. The server may add noise to the mean before
it shows it (`downlink`): post-processing, no protection is claimed for it against the server.

Whoever sees the models alone sees the mean of N messages and so the noise of all N; where every client answers in every
round that is what the public is charged (less the noise of one client, which may be the viewer's own)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from sordino.core import check
from sordino.core.rng import RowStream, Stream
from sordino.core.types import Batch, Model, Rows, State
from sordino.methods import local
from sordino.methods.base import Method, Plan
from sordino.privacy.clip import clip_rows
from sordino.privacy.events import Cost
from sordino.privacy.events import Gaussian as GaussianEvent
from sordino.privacy.mechanisms.gaussian import Gaussian

__all__ = ["NbAFL"]


@dataclass(frozen=True)
class NbAFL(Method):
    clip: float = 1.0  # C: bound on the L2 norm of a client's update
    downlink: float = 0.0  # noise that the server adds to the mean: its std over that of one client's noise

    units: ClassVar[tuple[str, ...]] = ("client",)
    algorithms: ClassVar[tuple[str, ...]] = ("fedavg", "fedsgd", "fedavgm", "fedopt", "fedprox")

    def __post_init__(self) -> None:
        check.positive(clip=self.clip)
        check.non_negative(downlink=self.downlink)

    def costs(self, plan: Plan, round: int = 0) -> tuple[Cost, ...]:
        relation = plan.sampler.relation
        moves = 1 if relation == "add/remove" else 2
        # "inside": a client that is not drawn sends no noise either, so its absence shows and does not amplify
        seen = Cost("client", relation, "server", GaussianEvent(plan.z / moves), draw="inside")
        shown = seen_in_the_mean(plan, plan.z, self.downlink * plan.z, 1.0) / moves
        if shown <= plan.z / moves:
            return (seen,)
        return seen, Cost("client", relation, "public", GaussianEvent(shown), draw="inside")

    def train(
        self, state: State, data: Batch, own: Rows, model: Model, plan: Plan, rng: RowStream
    ) -> tuple[Rows, Rows]:
        return local.sgd(state, data, own, model, plan, rng)

    def release(self, rows: Rows, sizes: tuple[int, ...], state: State, plan: Plan, rng: RowStream) -> Rows:
        return Gaussian(plan.z).add(clip_rows(rows, self.clip), rng.at("uplink"))

    def merge(self, state: State, rows: Rows, plan: Plan, rng: Stream) -> State:
        answers = plan.expected_answers(state.round)
        mean = with_noise(rows.sum(dim=0, keepdim=True) / answers, self.downlink * plan.z * self.clip, rng)
        return plan.algorithm.update(state, mean[0], plan.server(answers / plan.population))

    def noise(self, state: State, plan: Plan) -> float | None:
        return plan.z * self.clip


def seen_in_the_mean(plan: Plan, up: float, down: float, largest: float) -> float:
    """Noise over sensitivity of the mean message, in units of one client's bound; 0 where nothing is known.

    `up` is the noise of one message, `down` that of the mean, `largest` the most that a client weighs (the mean weight
    is 1, so the sum of the squares is at least N). One client's noise is taken off: it may be the viewer's own."""
    if not plan.everyone:
        return 0.0
    others = max(0.0, plan.population - largest**2)
    return math.sqrt(others * up**2 + (plan.population * down) ** 2) / largest


def with_noise(row: Rows, std: float, rng: Stream) -> Rows:
    """What the server adds to the mean [1, dim]."""
    return row if std == 0 else row + std * rng.at("downlink").rows([0]).normal(row.shape[1], like=row)
