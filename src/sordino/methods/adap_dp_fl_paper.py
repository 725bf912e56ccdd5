"""Adap DP-FL as printed: every client its own clip, noise that falls with the loss.  Fu, Chen, Han (2022),
arXiv:2211.15893.

Claims to protect a record from the server: DP-SGD inside every client, where client k clips with C_k^t, `clip_factor`
times the mean norm of its gradients in its last round, and adds noise of deviation sigma_t C_k^t; sigma becomes
`noise_step` sigma when the loss on validation data has fallen `patience` times in a row; a Renyi accountant adds up
the rounds by their sigma_t, and training ends when the budget does.

It does not hold. The clip, and with it the deviation of the noise, is a function of the client's records: one record
with a long gradient makes the next round's noise longer, for all to see. And the loss, on the clients' own records
here, is looked at for free. So nothing is accounted: epsilon is infinite. adap_dp_fl.py is the sound form.

The abstract was at hand, not the text. That the norms are those of gradients (`reading = exact`) or of noisy ones
(`noisy`: post-processing, with clips that grow with the noise), and that the loss falls three times in a row, is from
others' accounts of it. sigma_1 is ours: rounds of that noise would use the share `start` of the claim."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from sordino.core import check
from sordino.core.errors import BudgetError
from sordino.core.rng import RowStream, Stream
from sordino.core.types import Batch, Model, Rows, State
from sordino.core.vector import Layout
from sordino.methods import local as training
from sordino.methods.base import Claim, Plan
from sordino.methods.dp_sgd import DpSgd, Groups
from sordino.privacy.accountants import rdp
from sordino.privacy.clip import Bounded
from sordino.privacy.events import Cost, Event, NonPrivate, Repeated, Sampled
from sordino.privacy.events import Gaussian as GaussianEvent

__all__ = ["AdapDpFlPaper"]

LEAST = 1e-6  # of a clip: a client whose gradients are zero would otherwise clip with nothing
RECORDS = 500  # whose gradients are looked at together


@dataclass(frozen=True)
class AdapDpFlPaper(DpSgd):
    reading: str = "exact"  # which norms set a client's next clip: exact (of its records' gradients), or noisy
    clip_factor: float = 1.0  # alpha: the next clip is this many times the norm of the gradients
    noise_step: float = 0.98  # beta: what the noise multiplier is multiplied by when it is lowered
    patience: int = 3  # how often in a row the loss must have fallen before that
    start: float = 0.85  # share of the budget that the run would use if the noise were never lowered

    private: ClassVar[bool] = False
    units: ClassVar[tuple[str, ...]] = ("record",)
    channels: ClassVar[tuple[str, ...]] = ("direct",)
    algorithms: ClassVar[tuple[str, ...]] = ("fedavg", "fedavgm", "fedopt", "fedprox")

    def __post_init__(self) -> None:
        super().__post_init__()
        check.one_of(("exact", "noisy"), reading=self.reading)
        check.positive(clip_factor=self.clip_factor)
        check.below_one(noise_step=self.noise_step)
        check.count(patience=self.patience)
        check.probability(start=self.start)

    def _why_not(self) -> str:
        loss = "the loss that lowers the noise is read off the clients' records for free"
        if self.reading == "noisy":
            return loss
        return f"a client's clip, and with it its noise, follows the exact norms of its gradients; and {loss}"

    def claim(self, plan: Plan) -> Claim:
        return Claim(plan.epsilon, plan.delta, "Fu, Chen, Han (2022), arXiv:2211.15893", self._why_not())

    def costs(self, plan: Plan, round: int = 0) -> tuple[Cost, ...]:
        return (Cost("record", "add/remove", "server", NonPrivate(self._why_not())),)

    # --- what the paper counts

    def _round(self, plan: Plan, sigma: float) -> Event:
        rate = max(plan.local.rate(n) for n in plan.sizes)
        step = GaussianEvent(sigma) if rate >= 1 else Sampled(GaussianEvent(sigma), rate)
        return Repeated(step, plan.local.count(plan.smallest_client))

    def _first(self, plan: Plan) -> float:
        """sigma with which all rounds alike would claim epsilon, over sqrt(start)."""

        def within(sigma: float) -> bool:
            return rdp.epsilon(Repeated(self._round(plan, sigma), plan.rounds), plan.delta) <= plan.epsilon

        low = high = 1.0
        while not within(high):
            if high > 1e9:
                raise BudgetError(
                    f"the paper's accountant claims epsilon = {plan.epsilon:g} for no noise: ask for more."
                )
            high *= 2
        while within(low) and low > 1e-9:
            low /= 2
        for _ in range(40):
            middle = math.sqrt(low * high)
            low, high = (low, middle) if within(middle) else (middle, high)
        return high / math.sqrt(self.start)

    def over(self, state: State, plan: Plan) -> bool:
        """Whether one more round would exceed the claim."""
        curve = state.extra["curve"].cpu().numpy() + rdp.rdp(self._round(plan, float(state.extra["noise"])))
        return rdp.epsilon_of_curve(rdp.ORDERS, np.asarray(curve), plan.delta) > plan.epsilon

    # --- the round

    def begin(self, state: State, layout: Layout, plan: Plan) -> State:
        first = torch.tensor(self._first(plan), dtype=torch.float64)
        mine = {
            "noise": first,  # sigma_t
            "used": first.clone(),  # of the last round
            "loss": torch.tensor(math.inf, dtype=torch.float64),
            "falls": torch.tensor(0.0, dtype=torch.float64),
            "curve": torch.zeros(len(rdp.ORDERS), dtype=torch.float64),  # Renyi divergences claimed so far
        }
        return replace(state, extra=plan.algorithm.begin(state, layout).extra | mine)

    def fresh(self, state: State, clients: int, plan: Plan) -> Rows:
        """The last column is the client's own clip."""
        theirs = plan.algorithm.fresh(state, clients)
        return torch.cat([theirs, theirs.new_full((clients, 1), self.clip)], dim=1)

    def _noise_of(self, state: State, plan: Plan, rng: RowStream) -> float:
        return float(state.extra["noise"])

    def noise(self, state: State, plan: Plan) -> float | None:
        return None  # every client has its own, and keeps it to itself

    def train(
        self, state: State, data: Batch, own: Rows, model: Model, plan: Plan, rng: RowStream
    ) -> tuple[Rows, Rows]:
        """Two more columns: the exact loss times a weight, and the weight."""
        once = _Once(**vars(self), clips=own[:, -1:])
        rows, theirs = DpSgd.train(once, state, data, own[:, :-1], model, plan, rng)
        sizes = torch.tensor(data.sizes, device=rows.device, dtype=rows.dtype)[:, None]
        if self.reading == "exact":
            norms = training.sums(record_norms(state.params, data, model), data.sizes) / sizes.clamp_min(1)
        else:
            expected = [plan.local.expected_batch(n) for n in data.sizes]
            norms = torch.stack(once.heard).mean(dim=0)[:, None] / sizes.new_tensor(expected)[:, None]
        clips = torch.nan_to_num(self.clip_factor * norms, nan=LEAST, posinf=1e6).clamp(LEAST, 1e6)
        weight = sizes / plan.mean_client
        loss = torch.nan_to_num(training.mean_losses(state, data, model), posinf=1e6)
        return torch.cat([rows, weight * loss, weight], dim=1), torch.cat([theirs, clips.to(rows.dtype)], dim=1)

    def merge(self, state: State, rows: Rows, plan: Plan, rng: Stream) -> State:
        loss, weight = rows[:, -2:].double().sum(dim=0).tolist()
        before, sigma = state.extra, float(state.extra["noise"])
        curve = before["curve"] + torch.from_numpy(rdp.rdp(self._round(plan, sigma))).to(before["curve"].device)
        mine = {"curve": curve, "used": torch.tensor(sigma, dtype=torch.float64)}
        if weight > 0:
            falls = float(before["falls"]) + 1 if loss / weight < float(before["loss"]) < math.inf else 0.0
            factor = self.noise_step if falls >= self.patience else 1.0
            found = {"noise": factor * sigma, "loss": loss / weight, "falls": falls}
            mine |= {k: torch.tensor(v, dtype=torch.float64) for k, v in found.items()}
        after = super().merge(state, rows[:, :-2], plan, rng)
        return replace(after, extra=after.extra | mine)

    def decided(self, state: State, plan: Plan) -> dict[str, Any] | None:
        found = {"noise": "used", "next_noise": "noise", "loss": "loss", "falls": "falls"}
        return {name: float(state.extra[key]) for name, key in found.items()}

    def explain(self, rounds: list[dict[str, Any]]) -> list[str]:
        if not rounds:
            return []
        first, last, told = rounds[0]["round"], rounds[-1]["round"], [r["decided"] for r in rounds]
        lowered = sum(a["noise"] > b["noise"] for a, b in pairwise(told))
        times = {0: "not lowered", 1: "lowered once"}.get(lowered, f"lowered {lowered} times")
        return [
            f"The noise multiplier was {told[0]['noise']:.4g} in round {first}, {told[-1]['noise']:.4g} in round "
            f"{last}: it is lowered when the clients' exact loss has fallen {self.patience} times in a row or more, "
            f"and was {times} in between.",
            f"Every client clips with {self.clip_factor:g} times the "
            + ("mean norm of its records' gradients" if self.reading == "exact" else "norm of its noisy gradients")
            + " in its last round, and keeps that to itself.",
        ]


@dataclass(frozen=True)
class _Once(AdapDpFlPaper):
    """The same for one round of training, with the clients' own clips."""

    clips: Tensor = field(default_factory=lambda: torch.ones(1, 1))  # [clients, 1]
    heard: list[Tensor] = field(default_factory=list)  # by step: norms of the noisy sums [clients]

    def clipped(
        self, weights: Tensor, batch: Batch, model: Model, state: State, plan: Plan, seeds: list[int], groups: Groups
    ) -> Bounded:
        scale = self.clips.expand(-1, model.layout.dim).contiguous()
        return Bounded(model.gradients.sums(weights, batch, 1.0, seeds=seeds, groups=groups, scale=scale), 1.0)

    def add(self, sums: Bounded, z: float | Tensor, state: State, plan: Plan, rng: RowStream) -> Rows:
        noisy = sums.value + z * self.clips * rng.normal(sums.value.shape[1], like=sums.value)
        self.heard.append(noisy.norm(dim=1))
        return noisy


def record_norms(weights: Tensor, data: Batch, model: Model) -> Tensor:
    """The norm of every record's gradient [records]."""
    parts = [weights.new_zeros(0)]
    for x, y in zip(data.x.split(RECORDS), data.y.split(RECORDS), strict=True):
        each = model.gradients.sums(weights, Batch(x, y, (1,) * len(y)), None, seeds=[0] * len(y))
        parts.append(each.norm(dim=1))
    return torch.cat(parts)
