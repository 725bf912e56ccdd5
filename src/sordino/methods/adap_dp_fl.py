"""Adap DP-FL, sound: clip bound and noise adapt to what was released.

Based on Fu, Chen, Han (2022), arXiv:2211.15893.

Protects a record from the server: DP-SGD inside every client (see dp_sgd.py) with full batches. Two quantities adapt:

- The clip bound. In the next round it is `clip_factor` times the norm of this round's noisy mean gradients, with the
  contribution of the noise subtracted: |g~|^2 - dim (z C / n)^2, averaged over clients and steps. It stays within a
  factor of `clip_reach` of the initial bound.
- The noise. When the training loss has decreased `patience` times in a row, the noise multiplier of the next round is
  the last one times `noise_step`. The loss of the received model on a client's records, capped at `loss_bound` for each
  record, is released with `loss_noise` times the noise multiplier of a gradient and charged; or, if the server has
  public records (`server_data`), it is computed on these at no cost.

Both are functions of the transcript, so the Gaussian releases of a run are an adaptive composition under a filter: the
squares of their levels, steps / z_t^2 + 1 / (loss_noise z_t)^2 per round, add up to at most 1 / z^2, where z is the
calibrated multiplier of the whole run (Smith and Thakurta 2022; privacy/filters.py). z_1 is chosen such that equal
rounds would use the fraction `start` of it. If the noise has been lowered often, the budget is used up before the last
round: then one more round gets what is left, with as much noise as that requires, and the run ends. Clients that did
not take part in all rounds have spent less. Rounds lost in a crash in secure mode count as if the noise had been
lowered in each of them.

Differs from the paper, of which we had only the abstract; the rest is known from accounts by others: it sets a clip for
each client from that client's gradients and uses a validation loss at no cost; see adap_dp_fl_paper.py.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, ClassVar

import torch
from torch import Tensor

from sordino.contract import clipped_steps
from sordino.contract import local_sgd as training
from sordino.contract.method import Method, Own, Plan, Release, Site
from sordino.core import check
from sordino.core.errors import SpecError
from sordino.core.message import Message
from sordino.core.types import Batch, Rows, State
from sordino.core.vector import Layout
from sordino.privacy.clip import Bounded
from sordino.privacy.mechanisms.gaussian import Gaussian
from sordino.privacy.release import GRADIENTS

__all__ = ["AdapDpFl"]

LEAST_ROUND = 0.5  # fraction of a normal round's cost: with less left, another round would be mostly noise


@dataclass(frozen=True)
class AdaptationState:
    """The server's state beside the model; all of it follows from what was released."""

    clip: float  # clip bound of the coming round
    noise: float  # z_t of the coming round, unless the remaining budget requires more
    loss: float  # last released loss
    falls: float  # number of consecutive decreases of the loss so far
    paid: Tensor  # cost of each round, in squared GDP levels
    clip_used: float  # clip bound of the last round
    noise_used: float  # noise multiplier of the last round


@dataclass(frozen=True)
class AdapDpFl(Method):
    """DP-SGD inside every client with adaptive clip bound and noise; see the module docstring."""

    clip: float = 1.0  # C: bound on the L2 norm of one record's gradient in the first round; adapts later
    clip_factor: float = 2.0  # alpha: the next clip over the norm of the noisy mean gradients
    clip_reach: float = 2.0  # the clip stays within this factor of the initial one
    noise_step: float = 0.98  # beta: factor by which the noise multiplier is lowered
    patience: int = 3  # consecutive decreases of the loss before the noise is lowered
    start: float = 0.85  # fraction of the budget that the run would use if the noise were never lowered
    loss_bound: float = 5.0  # cap on the loss of one record, if losses are released with noise
    loss_noise: float = 3.0  # noise multiplier of the loss over that of a gradient

    algorithms: ClassVar[tuple[str, ...]] = ("fedavg", "fedavgm", "fedopt", "fedprox")
    noisy_steps: ClassVar[bool] = True
    by_records: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check.positive(clip=self.clip)
        check.positive(clip_factor=self.clip_factor, loss_bound=self.loss_bound, loss_noise=self.loss_noise)
        check.below_one(noise_step=self.noise_step)
        check.count(patience=self.patience)
        check.probability(start=self.start)
        check.positive(clip_reach=self.clip_reach)
        if self.clip_reach < 1:
            raise SpecError(f"clip_reach must be at least 1, not {self.clip_reach!r}.")

    def require(self, plan: Plan) -> None:
        """Refuse batches that are not full."""
        if any(plan.local.rate(n) < 1 for n in plan.sizes):
            raise SpecError(
                "adap-dp-fl chooses its noise during the run, and the cost of that is known for whole batches only: "
                "use batch_rate = 1."
            )

    def uses_public(self) -> bool:
        return True

    # --- budget filter

    def releases(self, plan: Plan, round: int = 0, state: State | None = None) -> tuple[Release, ...]:
        """Declare the noisy gradients of the local steps and, unless the server has public records, the noisy loss."""
        z = self._first(plan) if state is None else self.z_now(state, plan)
        bound = float(self.clip) if state is None else state.method.clip
        steps, total = plan.local.count(plan.smallest_client), Gaussian(plan.z)
        gradient = Release(
            "gradient", Gaussian(z), "record", bound, times=steps, total=total, terms=GRADIENTS, key="train/noise #"
        )
        if plan.server_data:
            return (gradient,)
        noise = Gaussian(self.loss_noise * z)
        most, cap = plan.sizes[-1], self.loss_bound
        return gradient, Release("loss", noise, "record", cap, total=total, swing=1, terms=most, key="train/loss noise")

    def worth(self, plan: Plan) -> float:
        """Return the cost of a round, as a number of Gaussian releases with the round's noise multiplier."""
        return plan.local.count(plan.smallest_client) + (0.0 if plan.server_data else self.loss_noise**-2)

    def paid(self, state: State, plan: Plan) -> Tensor:
        """Return the cost of each round, in squared GDP levels; an upper bound for rounds unknown to the state."""
        now: AdaptationState = state.method
        costs, z = now.paid.clone(), now.noise
        for lost in (costs[: state.round] == 0).nonzero()[:, 0].tolist():
            costs[lost] = self.worth(plan) / z**2
            z *= self.noise_step
        return costs

    def left(self, state: State, plan: Plan) -> float:
        """Return what the next round may cost for a client that was in the most expensive rounds before."""
        return plan.z**-2 - float(self.paid(state, plan).topk(plan.participations - 1).values.sum())

    def z_now(self, state: State, plan: Plan) -> float:
        """Return the noise multiplier of the round that begins with this state, covered by the remaining budget."""
        left = max(self.left(state, plan), 1e-12 * plan.z**-2) * (1 - 1e-9)
        now: AdaptationState = state.method
        return max(now.noise, math.sqrt(self.worth(plan) / left))

    def over(self, state: State, plan: Plan) -> bool:
        """Return whether too little of the budget is left for another round."""
        now: AdaptationState = state.method
        return self.left(state, plan) < LEAST_ROUND * self.worth(plan) / now.noise**2

    def _first(self, plan: Plan) -> float:
        """Return z_1."""
        return plan.z * math.sqrt(self.worth(plan) * plan.participations / self.start)

    def variables(self, state: State, layout: Layout, plan: Plan) -> AdaptationState:
        first, paid = self._first(plan), torch.zeros(plan.rounds, dtype=torch.float64)
        return AdaptationState(float(self.clip), first, math.inf, 0.0, paid, float(self.clip), first)

    # --- the round

    def noise(self, state: State, plan: Plan) -> float | None:
        """Return the noise deviation of one message, for plain SGD steps of the mean client."""
        local, bound = plan.now(state), float(state.method.clip)
        steps, batch = local.count(plan.smallest_client), local.expected_batch(plan.mean_client)
        return local.learning_rate * math.sqrt(steps) * self.z_now(state, plan) * bound / batch

    def train(self, state: State, site: Site) -> tuple[Message, Own]:
        """Return the message of each client and its state.

        Clients send the update, the squared norm of the mean gradients and, unless the server has public records, the
        loss, all weighted by the client's number of records.
        """
        gradients, outlet, bound = site.model.gradients, site.out["gradient"], state.method.clip
        std, squares = self.z_now(state, site.plan) * bound, list[Tensor]()

        def clipped(weights: Tensor, batch: Batch, seeds: list[int], groups: clipped_steps.Groups) -> Bounded:
            return Bounded(gradients.sums(weights, batch, bound, seeds=seeds, groups=groups), bound)

        def let_out(sums: Bounded) -> Rows:
            noisy = outlet(sums)
            # subtract the expected contribution of the noise
            squares.append(noisy.double().square().sum(dim=1) - noisy.shape[1] * std**2)
            return noisy

        rows, mine = clipped_steps.steps(state, site, clipped, let_out)
        sizes = torch.tensor(site.data.sizes, device=rows.device, dtype=torch.float64)
        square = torch.stack(squares).mean(dim=0) / sizes.clamp_min(1) ** 2
        fields = {"update": rows, "square": square[:, None].to(rows.dtype)}
        if not site.plan.server_data:
            fields["loss"] = clipped_steps.noisy_losses(state, site, site.out["loss"], self.loss_bound)
        return Message(fields, clipped_steps.weights(site, rows)), site.kept(mine)

    def merge(self, state: State, seen: Message, plan: Plan) -> State:
        """Merge the updates, record the cost of the round and adapt clip and noise."""
        paid, z = self.paid(state, plan), self.z_now(state, plan)
        paid[state.round % plan.rounds] = self.worth(plan) / z**2
        adapted = replace(state.method, paid=paid, clip_used=state.method.clip, noise_used=z)
        weight = float(len(seen)) if seen.weight is None else float(seen.weight.double().sum())
        if weight > 0:
            if plan.public is None:
                loss = _sum(seen, "loss") / weight
            else:
                loss = float(training.mean_losses(state, plan.public.batch, plan.public.model))
            adapted = self._next(adapted, _sum(seen, "square") / weight, loss)
        return replace(super().merge(state, seen, plan), method=adapted)

    def _next(self, now: AdaptationState, square: float, loss: float) -> AdaptationState:
        """Return clip and noise of the next round, based on what was released in this one."""
        falls = now.falls + 1 if loss < now.loss < math.inf else 0.0
        factor = self.noise_step if falls >= self.patience else 1.0
        clip = now.clip
        if square > 0:  # otherwise the gradients are lost in noise, and the clip stays
            least, most = self.clip / self.clip_reach, self.clip * self.clip_reach
            clip = min(max(self.clip_factor * math.sqrt(square), least), most)
        return replace(now, clip=clip, noise=factor * now.noise, loss=loss, falls=falls)

    def decided(self, state: State, plan: Plan) -> dict[str, Any] | None:
        now = state.method
        return {
            "clip": now.clip_used,
            "noise": now.noise_used,
            "next_clip": now.clip,
            "loss": now.loss,
            "falls": now.falls,
            "budget_used": float(now.paid.topk(plan.participations).values.sum()) * plan.z**2,
        }

    def explain(self, rounds: list[dict[str, Any]]) -> list[str]:
        decisions = [r["decided"] for r in rounds if r.get("decided")]
        if not decisions:
            return []
        first, last, initial, final = rounds[0]["round"], rounds[-1]["round"], decisions[0], decisions[-1]
        lowered = sum(a["noise"] > b["noise"] for a, b in pairwise(decisions))
        times = {0: "not lowered", 1: "lowered once"}.get(lowered, f"lowered {lowered} times")
        return [
            f"The noise multiplier was {initial['noise']:.4g} in round {first}, {final['noise']:.4g} in round {last}: "
            f"it is lowered when the loss has fallen {self.patience} or more times in a row, and was {times} in "
            "between.",
            f"Gradients were clipped at {initial['clip']:.3g} in round {first} and at {final['clip']:.3g} in round "
            f"{last}: the clip follows the norm of the noisy gradients, within a factor of {self.clip_reach:g} of "
            f"the first, {self.clip:g}.",
            f"After round {last}, {100 * final['budget_used']:.1f} % of the budget was used.",
        ]


def _sum(seen: Message, name: str) -> float:
    """Return the weighted sum of a field with one number per row, in double precision."""
    return float(seen.weighed()[name].double().sum())
