"""PFA: noisier updates are projected on directions given by clients with large budgets.

Liu, Lou, Xiong, Liu, Meng (2021), "Projected Federated Averaging with Heterogeneous Differential Privacy", PVLDB 15(4),
Algorithms 2 and 3.

Protects a record from the server: DP-SGD inside every client (see dp_sgd.py), each with the noise required by its own
budget (`budgets`). Sound: everything below is computed from the noisy messages and from the budgets, which are public.

Clients with the largest budgets are called public. Their messages, centred at their mean m, span a top-k subspace V
(right singular vectors, one subspace for each parameter tensor of the model), and the mean p of the others' messages
becomes m + V V^T (p - m) before all are averaged by their numbers: this removes noise outside V, and also the
information of the others there. With `weighting = budget` a message has weight 1/z instead of 1, where z is its
client's noise multiplier; with `dims = 0` nothing is projected, and both together are the paper's WeiAvg.

Differs from the paper, of which we had the public code but not the text: the paper weights by epsilon, we weight by
1/z, to which the privacy level mu of Gaussian noise is proportional; the paper needs a public client in every round, we
use a plain average if there is none. PFA+ (private clients upload only projections) saves bytes, not privacy, and is
left out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from sordino.contract import clipped_steps
from sordino.contract.method import Method, Own, Plan, Release, Site
from sordino.core import check
from sordino.core.errors import RunError, SpecError
from sordino.core.message import Message
from sordino.core.types import Batch, Rows, State, Vector
from sordino.core.vector import Layout
from sordino.privacy.clip import Bounded
from sordino.privacy.mechanisms.gaussian import Gaussian

__all__ = ["Pfa"]

TINY = 1e-12  # relative to the largest squared singular value: smaller ones are rounding errors


@dataclass(frozen=True)
class Projection:
    """The server's state beside the model, and what it did in the last round."""

    ends: Tensor  # end offset of each parameter tensor of the model [parameters]
    public: int  # number of messages of public clients
    others: int  # number of messages of other clients
    kept: float  # fraction of the others' squared distance from the public mean that was kept


@dataclass(frozen=True)
class Pfa(Method):
    """DP-SGD with projection of noisier messages; see the module docstring."""

    clip: float = 1.0  # C: bound on the L2 norm of one record's gradient
    batch_sampling: str = "poisson"  # poisson, or fixed: batches of a fixed size, accounted under replace
    dims: int = 1  # k: number of directions on which messages with small budgets are projected; 0: no projection
    top_share: float = 0.1  # fraction of clients that count as public: those with the largest budgets, including ties
    weighting: str = "count"  # count, or budget: messages are weighted by 1 / noise multiplier

    algorithms: ClassVar[tuple[str, ...]] = ("fedavg", "fedavgm", "fedopt", "fedprox")
    own_noise: ClassVar[bool] = True
    noisy_steps: ClassVar[bool] = True
    by_records: ClassVar[bool] = True
    reads: ClassVar[str] = "rows"

    def __post_init__(self) -> None:
        check.positive(clip=self.clip)
        check.one_of(clipped_steps.SAMPLINGS, batch_sampling=self.batch_sampling)
        check.non_negative(dims=self.dims)
        if self.dims != 0:
            check.count(dims=self.dims)  # an integer
        check.probability(top_share=self.top_share)
        check.one_of(("count", "budget"), weighting=self.weighting)

    def releases(self, plan: Plan, round: int = 0, state: State | None = None) -> tuple[Release, ...]:
        return clipped_steps.releases(plan, Gaussian(plan.z), self.clip, self.batch_sampling)

    def variables(self, state: State, layout: Layout, plan: Plan) -> Projection:
        if not plan.multipliers:
            raise SpecError(
                "pfa is for clients with budgets of their own: give budgets, such as 0.5:0.5,5:0.5, or use dp-sgd."
            )
        return Projection(torch.tensor([slot.stop for slot in layout.slots]), 0, 0, 0.0)

    def train(self, state: State, site: Site) -> tuple[Message, Own]:
        """Send updates multiplied by the clients' relative numbers of records: the server projects these products."""
        gradients = site.model.gradients

        def clipped(weights: Tensor, batch: Batch, seeds: list[int], groups: clipped_steps.Groups) -> Bounded:
            return Bounded(gradients.sums(weights, batch, self.clip, seeds=seeds, groups=groups), self.clip)

        rows, mine = clipped_steps.steps(state, site, clipped, site.out["gradient"], self.batch_sampling)
        return Message({"update": rows * clipped_steps.weights(site, rows)[:, None]}), site.kept(mine)

    def merge(self, state: State, seen: Message, plan: Plan) -> State:
        """Project the mean of the other clients' messages, average it with that of the public ones, and apply it."""
        body = seen.weighed()["update"].double()
        count = body.new_ones(len(seen)) if seen.weight is None else seen.weight.double()
        answers = plan.expected_answers(state.round)
        fraction_kept = 1.0
        public = torch.ones(len(seen), dtype=torch.bool, device=body.device)
        if not len(seen):
            mean = body.sum(dim=0)
        else:
            if seen.ids is None:
                raise RunError("pfa weighs messages by their senders' budgets: use channel = direct.")
            z = plan.z_of(seen.ids, state.params)[:, 0].double()
            weight = 1 / z if self.weighting == "budget" else torch.ones_like(z)
            public = z <= self._threshold(plan)
            mean, fraction_kept = self._mean(body, count, weight, public, state)
            mean = mean * count.sum() / answers
        after = plan.algorithm.update(state, mean.to(state.params.dtype), plan.server(answers / plan.population))
        done = replace(state.method, public=int(public.sum()), others=int((~public).sum()), kept=fraction_kept)
        return replace(after, method=done)

    def noise(self, state: State, plan: Plan) -> float | None:
        """Return the noise deviation of one message at the clients' mean noise multiplier, for plain SGD steps."""
        local, multipliers = plan.now(state), plan.multipliers or (plan.z,)
        steps, batch = local.count(plan.smallest_client), local.expected_batch(plan.mean_client)
        return local.learning_rate * math.sqrt(steps) * (sum(multipliers) / len(multipliers)) * self.clip / batch

    def _threshold(self, plan: Plan) -> float:
        """Return the largest noise multiplier of a public client."""
        place = max(1, int(self.top_share * plan.population)) - 1
        return sorted(plan.multipliers)[place] * (1 + 1e-5)  # Plan.z_of rounds to float32

    def _mean(self, body: Rows, count: Tensor, weight: Tensor, public: Tensor, state: State) -> tuple[Vector, float]:
        """Return the mean message, and the fraction of the others' squared length that is kept.

        body[i] is message i times count[i].
        """

        def mean(of: Tensor) -> Vector:
            return torch.mv(body[of].T, weight[of]) / (weight * count)[of].sum()

        if not self.dims or bool(public.all()) or not bool(public.any()):
            return mean(torch.ones_like(public)), 1.0
        share = float((weight * count)[public].sum() / (weight * count).sum())
        known, others = mean(public), mean(~public)
        messages = body[public] / count[public, None]
        centre = messages.mean(dim=0) if len(messages) > 1 else torch.zeros_like(known)
        projected, start = torch.empty_like(others), 0
        for end in state.method.ends.tolist():
            v = subspace((messages - centre)[:, start:end], self.dims)
            projected[start:end] = centre[start:end] + v @ (v.T @ (others - centre)[start:end])
            start = end
        left = float((projected - centre).square().sum() / (others - centre).square().sum().clamp_min(TINY))
        return share * known + (1 - share) * projected, left

    def decided(self, state: State, plan: Plan) -> dict[str, Any]:
        done = state.method
        return {"public": done.public, "others": done.others, "kept": done.kept}

    def explain(self, rounds: list[dict[str, Any]]) -> list[str]:
        if not self.dims or not rounds:
            return ["Messages are averaged as they are: dims = 0."] * bool(rounds)
        span = "1 direction" if self.dims == 1 else f"{self.dims} directions"
        out = [
            f"The mean message of clients with smaller budgets was projected on {span} a layer that the messages of "
            "clients with the largest budgets span; what lies outside was taken for noise."
        ]
        for record in rounds:
            public, others, fraction_kept = (record["decided"][k] for k in ("public", "others", "kept"))
            left = f"{100 * fraction_kept:.0f} % of the others' squared distance from the first ones' mean was kept"
            if not public or not others:
                left = "averaged as they are"
            out.append(f"Round {record['round']}: {public} messages with the largest budgets, {others} others; {left}.")
        return out


def subspace(rows: Rows, dims: int) -> Tensor:
    """Return the top right singular vectors [dim, k <= dims] of a few long rows, computed from their Gram matrix."""
    values, vectors = torch.linalg.eigh(rows @ rows.T)  # ascending
    keep = [i for i in range(len(values) - 1, -1, -1) if values[i] > TINY * values[-1]][:dims]
    basis: Tensor = rows.T @ vectors[:, keep] / values[keep].sqrt()
    return basis
