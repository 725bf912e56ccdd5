"""PFA: clients with large budgets say in which directions to believe the others.  Liu, Lou, Xiong, Liu, Meng (2021),
"Projected Federated Averaging with Heterogeneous Differential Privacy", PVLDB 15(4), Algorithms 2 and 3.

Protects a record from the server: DP-SGD inside every client (see dp_sgd.py), each with the noise that its own budget
asks for (`budgets`). Sound: all below is computed from the noisy messages and from the budgets, which are public.

Clients with the largest budgets are called public. Their messages, centred at their mean m, span a top-k subspace V
(right singular vectors, one subspace for each parameter of the model), and the mean p of the others' messages becomes
m + V V^T (p - m) before all are averaged by their numbers: noise outside V is gone, and so is what the others knew
there. With `weighting = budget` a message weighs 1/z in place of 1, z being its client's noise multiplier; with
`dims = 0` nothing is projected, and both together are the paper's WeiAvg.

Differs from the paper, whose public code was read and whose text was not at hand: it weighs by epsilon, we by 1/z, to
which the privacy level mu of Gaussian noise is proportional; it needs a public client in every round, we average
plainly where none came. PFA+ (private clients upload projections only) saves bytes, not privacy, and is left out."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from sordino.core import check
from sordino.core.errors import SpecError
from sordino.core.rng import RowStream, Stream
from sordino.core.types import Rows, State, Vector
from sordino.core.vector import Layout
from sordino.methods.base import Plan
from sordino.methods.dp_sgd import DpSgd

__all__ = ["Pfa"]

TINY = 1e-12  # of the largest squared singular value: below it a direction is rounding


@dataclass(frozen=True)
class Pfa(DpSgd):
    dims: int = 1  # k: directions that messages of clients with small budgets are projected on; 0: not projected
    top_share: float = 0.1  # of the clients, that count as public: those with the largest budgets, and their equals
    weighting: str = "count"  # or "budget": messages weigh by 1 / noise multiplier

    units: ClassVar[tuple[str, ...]] = ("record",)
    channels: ClassVar[tuple[str, ...]] = ("direct",)
    algorithms: ClassVar[tuple[str, ...]] = ("fedavg", "fedavgm", "fedopt", "fedprox")
    own_noise: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check.non_negative(dims=self.dims)
        if self.dims != 0:
            check.count(dims=self.dims)  # whole
        check.probability(top_share=self.top_share)
        check.one_of(("count", "budget"), weighting=self.weighting)

    def begin(self, state: State, layout: Layout, plan: Plan) -> State:
        if not plan.multipliers:
            raise SpecError(
                "pfa is for clients with budgets of their own: give budgets, such as 0.5:0.5,5:0.5, or use dp-sgd."
            )
        ends = torch.tensor([slot.stop for slot in layout.slots])
        state = plan.algorithm.begin(state, layout)
        return replace(state, extra=state.extra | {"ends": ends, "seen": torch.zeros(3, dtype=torch.float64)})

    def release(self, rows: Rows, sizes: tuple[int, ...], state: State, plan: Plan, rng: RowStream) -> Rows:
        """Two more columns, public: a one (whatever weighs the message weighs it too) and the noise multiplier."""
        z = plan.z_of(rng.ids, rows).reshape(-1, 1)
        return torch.cat([rows, torch.ones_like(z), z], dim=1)

    def merge(self, state: State, rows: Rows, plan: Plan, rng: Stream) -> State:
        body, count, noise = rows[:, :-2].double(), rows[:, -2].double(), rows[:, -1].double()
        answers = plan.expected_answers(state.round)
        kept = 1.0
        public = torch.ones(len(rows), dtype=torch.bool, device=rows.device)
        if not len(rows):
            mean = body.sum(dim=0)
        else:
            z = noise / count
            weight = 1 / z if self.weighting == "budget" else torch.ones_like(z)
            public = z <= self._threshold(plan)
            mean, kept = self._mean(body, count, weight, public, state)
            mean = mean * count.sum() / answers
        after = plan.algorithm.update(state, mean.to(rows.dtype), plan.server(answers / plan.population))
        seen = torch.tensor([float(public.sum()), float((~public).sum()), kept], dtype=torch.float64)
        return replace(after, extra=after.extra | {"seen": seen})

    def _threshold(self, plan: Plan) -> float:
        """The largest noise multiplier of a public client."""
        place = max(1, int(self.top_share * plan.population)) - 1
        return sorted(plan.multipliers)[place] * (1 + 1e-5)  # the column is float32

    def _mean(self, body: Rows, count: Tensor, weight: Tensor, public: Tensor, state: State) -> tuple[Vector, float]:
        """The mean message, and how much of the others' squared length is left; body[i] is message i times count[i]."""

        def mean(of: Tensor) -> Vector:
            return torch.mv(body[of].T, weight[of]) / (weight * count)[of].sum()

        if not self.dims or bool(public.all()) or not bool(public.any()):
            return mean(torch.ones_like(public)), 1.0
        share = float((weight * count)[public].sum() / (weight * count).sum())
        known, others = mean(public), mean(~public)
        messages = body[public] / count[public, None]
        centre = messages.mean(dim=0) if len(messages) > 1 else torch.zeros_like(known)
        projected, start = torch.empty_like(others), 0
        for end in state.extra["ends"].tolist():
            v = subspace((messages - centre)[:, start:end], self.dims)
            projected[start:end] = centre[start:end] + v @ (v.T @ (others - centre)[start:end])
            start = end
        left = float((projected - centre).square().sum() / (others - centre).square().sum().clamp_min(TINY))
        return share * known + (1 - share) * projected, left

    def decided(self, state: State, plan: Plan) -> dict[str, Any]:
        public, others, left = state.extra["seen"].tolist()
        return {"public": int(public), "others": int(others), "kept": left}

    def explain(self, rounds: list[dict[str, Any]]) -> list[str]:
        if not self.dims or not rounds:
            return ["Messages are averaged as they are: dims = 0."] * bool(rounds)
        span = "1 direction" if self.dims == 1 else f"{self.dims} directions"
        out = [
            f"The mean message of clients with smaller budgets was projected on {span} a layer that the messages of "
            "clients with the largest budgets span; what lies outside was taken for noise."
        ]
        for record in rounds:
            public, others, kept = (record["decided"][k] for k in ("public", "others", "kept"))
            left = f"{100 * kept:.0f} % of the others' squared distance from the first ones' mean was kept"
            if not public or not others:
                left = "averaged as they are"
            out.append(f"Round {record['round']}: {public} messages with the largest budgets, {others} others; {left}.")
        return out


def subspace(rows: Rows, dims: int) -> Tensor:
    """The top right singular vectors [dim, k <= dims] of a few long rows, by way of their inner products."""
    values, vectors = torch.linalg.eigh(rows @ rows.T)  # ascending
    keep = [i for i in range(len(values) - 1, -1, -1) if values[i] > TINY * values[-1]][:dims]
    found: Tensor = rows.T @ vectors[:, keep] / values[keep].sqrt()
    return found
