"""Adap DP-FL, sound: clip and noise follow what was released.  After Fu, Chen, Han (2022), arXiv:2211.15893.

Protects a record from the server: DP-SGD inside every client (see dp_sgd.py), full batches. Two things adapt:

- The clip. The next round's is `clip_factor` times the norm of this round's noisy mean gradients, the noise's own part
  taken off: |g~|^2 - dim (z C / n)^2, averaged over clients and steps. It may move by a factor of `clip_reach` in all.
- The noise. When the training loss has fallen `patience` times in a row, the next round's noise multiplier is the last
  one times `noise_step`. The loss of the received model on a client's records, each held below `loss_bound`, is
  released with `loss_noise` times the noise multiplier of a gradient and charged; or, where the server has public
  records (`server_data`), computed on these for nothing.

Both are functions of the transcript, so the Gaussian releases of a run are an adaptive composition under a filter: the
squares of their levels, steps / z_t^2 + 1 / (loss_noise z_t)^2 a round, add up to 1 / z^2 at most, z being the
calibrated multiplier of the whole run (Smith and Thakurta 2022; privacy/filters.py). z_1 is such that equal rounds
would use the share `start` of it. Noise that has been lowered often uses it up before the rounds are over: then the
last round gets what is left, with as much noise as that asks for, and the run ends. Who was not in all rounds has spent
less. Rounds that a crash in secure mode swallowed count as if the noise had been lowered in each of them.

Differs from the paper, of whose text the abstract was at hand and the rest was learnt from others' accounts of it: it
sets a clip for each client from that client's gradients and looks at a validation loss for free; see
adap_dp_fl_paper.py."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, ClassVar

import torch
from torch import Tensor

from sordino.core import check
from sordino.core.errors import SpecError
from sordino.core.rng import RowStream, Stream
from sordino.core.types import Batch, Model, Rows, State
from sordino.core.vector import Layout
from sordino.methods import local as training
from sordino.methods.base import Plan
from sordino.methods.dp_sgd import DpSgd
from sordino.privacy.clip import Bounded
from sordino.privacy.events import Cost
from sordino.privacy.events import Gaussian as GaussianEvent
from sordino.privacy.mechanisms.gaussian import Gaussian

__all__ = ["AdapDpFl"]

LEAST_ROUND = 0.5  # of a usual round's price: with less than that left, another round would be noise


@dataclass(frozen=True)
class AdapDpFl(DpSgd):
    clip: float = 1.0  # C: bound on the L2 norm of one record's gradient in the first round; then it adapts
    clip_factor: float = 2.0  # alpha: the next clip is this many times the norm of the noisy mean gradients
    clip_reach: float = 2.0  # the clip stays within this factor of the first one
    noise_step: float = 0.98  # beta: what the noise multiplier is multiplied by when it is lowered
    patience: int = 3  # how often in a row the loss must have fallen before that
    start: float = 0.85  # share of the budget that the run would use if the noise were never lowered
    loss_bound: float = 5.0  # where losses are released with noise: a record's counts up to this much
    loss_noise: float = 3.0  # noise multiplier of the loss, in units of a gradient's

    units: ClassVar[tuple[str, ...]] = ("record",)
    channels: ClassVar[tuple[str, ...]] = ("direct",)
    algorithms: ClassVar[tuple[str, ...]] = ("fedavg", "fedavgm", "fedopt", "fedprox")

    def __post_init__(self) -> None:
        super().__post_init__()
        check.positive(clip_factor=self.clip_factor, loss_bound=self.loss_bound, loss_noise=self.loss_noise)
        check.below_one(noise_step=self.noise_step)
        check.count(patience=self.patience)
        check.probability(start=self.start)
        check.positive(clip_reach=self.clip_reach)
        if self.clip_reach < 1:
            raise SpecError(f"clip_reach must be at least 1, not {self.clip_reach!r}.")

    def require(self, plan: Plan) -> None:
        if any(plan.local.rate(n) < 1 for n in plan.sizes):
            raise SpecError(
                "adap-dp-fl chooses its noise on the way, and what that costs is known for whole batches alone: use "
                "batch_rate = 1."
            )

    def uses_public(self) -> bool:
        return True

    # --- the filter

    def releases(self, plan: Plan) -> float:
        """How many Gaussian releases of the round's noise multiplier a round is worth."""
        return plan.local.count(plan.smallest_client) + (self.loss_noise**-2 if plan.public is None else 0.0)

    def whole(self, plan: Plan) -> tuple[Cost, ...]:
        return (Cost("record", "add/remove", "server", GaussianEvent(plan.z)),)

    def costs(self, plan: Plan, round: int = 0) -> tuple[Cost, ...]:
        return self.whole(plan)

    def now_costs(self, state: State, plan: Plan) -> tuple[Cost, ...]:
        level = GaussianEvent(self.z_now(state, plan) / math.sqrt(self.releases(plan)))
        return (replace(self.whole(plan)[0], event=level),)

    def paid(self, state: State, plan: Plan) -> Tensor:
        """What each round has cost, in squared GDP levels; at most, for those of which the state knows nothing."""
        found, z = state.extra["paid"].clone(), float(state.extra["noise"])
        for lost in (found[: state.round] == 0).nonzero()[:, 0].tolist():
            found[lost] = self.releases(plan) / z**2
            z *= self.noise_step
        return found

    def left(self, state: State, plan: Plan) -> float:
        """What the next round may cost, for a client that is in it and was in the dearest ones before."""
        return plan.z**-2 - float(self.paid(state, plan).topk(plan.participations - 1).values.sum())

    def z_now(self, state: State, plan: Plan) -> float:
        """The noise multiplier of the round that begins with this state: never less than what is left pays for."""
        left = max(self.left(state, plan), 1e-12 * plan.z**-2) * (1 - 1e-9)
        return max(float(state.extra["noise"]), math.sqrt(self.releases(plan) / left))

    def over(self, state: State, plan: Plan) -> bool:
        usual = self.releases(plan) / float(state.extra["noise"]) ** 2
        return self.left(state, plan) < LEAST_ROUND * usual

    def begin(self, state: State, layout: Layout, plan: Plan) -> State:
        first = plan.z * math.sqrt(self.releases(plan) * plan.participations / self.start)
        mine = {
            "clip": torch.tensor(float(self.clip), dtype=torch.float64),
            "noise": torch.tensor(first, dtype=torch.float64),  # z_t
            "loss": torch.tensor(math.inf, dtype=torch.float64),  # the last one heard of
            "falls": torch.tensor(0.0, dtype=torch.float64),  # in a row, up to now
            "paid": torch.zeros(plan.rounds, dtype=torch.float64),  # by round
            "used": torch.tensor([self.clip, first], dtype=torch.float64),  # clip and noise of the last round
        }
        return replace(state, extra=plan.algorithm.begin(state, layout).extra | mine)

    # --- the round

    def bound(self, state: State, plan: Plan) -> float:
        return float(state.extra["clip"])

    def multiplier(self, plan: Plan, round: int) -> float:
        raise TypeError("the noise multiplier follows the state: see z_now")

    def _noise_of(self, state: State, plan: Plan, rng: RowStream) -> float:
        return self.z_now(state, plan)

    def noise(self, state: State, plan: Plan) -> float | None:
        local = plan.now(state)
        steps, batch = local.count(plan.smallest_client), local.expected_batch(plan.mean_client)
        return local.learning_rate * math.sqrt(steps) * self.z_now(state, plan) * self.bound(state, plan) / batch

    def train(
        self, state: State, data: Batch, own: Rows, model: Model, plan: Plan, rng: RowStream
    ) -> tuple[Rows, Rows]:
        """Three more columns: squared norm of the gradients and loss, both times a weight, and the weight."""
        ear = _Ear(**vars(self))
        rows, own = DpSgd.train(ear, state, data, own, model, plan, rng)
        sizes = torch.tensor(data.sizes, device=rows.device, dtype=torch.float64)
        weight = sizes / plan.mean_client
        square = torch.stack(ear.heard).mean(dim=0) / sizes.clamp_min(1) ** 2
        loss = self._loss(state, data, model, plan, rng) if plan.public is None else 0 * weight
        told = torch.stack([weight * square, weight * loss, weight], dim=1)
        return torch.cat([rows, told.to(rows.dtype)], dim=1), own

    def _loss(self, state: State, data: Batch, model: Model, plan: Plan, rng: RowStream) -> Tensor:
        """Each client's mean loss [clients] with noise: a record moves the sum by `loss_bound` at most."""
        cap = self.loss_bound
        losses = torch.nan_to_num(training.record_losses(state, data, model), nan=cap).clamp(0, cap)
        sums = Bounded(training.sums(losses, data.sizes), cap)
        noisy = Gaussian(self.loss_noise * self.z_now(state, plan)).add(sums, rng.at("loss noise"))[:, 0]
        return noisy.double() / torch.tensor(data.sizes, device=noisy.device).clamp_min(1)

    def merge(self, state: State, rows: Rows, plan: Plan, rng: Stream) -> State:
        told, before = rows[:, -3:].double().sum(dim=0).tolist(), state.extra
        paid = self.paid(state, plan)
        paid[state.round % plan.rounds] = self.releases(plan) / self.z_now(state, plan) ** 2
        mine = {"paid": paid, "used": paid.new_tensor([self.bound(state, plan), self.z_now(state, plan)])}
        if told[2] > 0:
            square, loss = told[0] / told[2], told[1] / told[2]
            if plan.public is not None:
                loss = float(training.mean_losses(state, plan.public.batch, plan.public.model))
            mine |= self._next(before, square, loss)
        after = super().merge(state, rows[:, :-3], plan, rng)
        return replace(after, extra=after.extra | mine)

    def _next(self, before: dict[str, Tensor], square: float, loss: float) -> dict[str, Tensor]:
        """Clip and noise of the next round, by what was heard in this one."""
        falls = float(before["falls"]) + 1 if loss < float(before["loss"]) < math.inf else 0.0
        factor = self.noise_step if falls >= self.patience else 1.0
        clip = float(before["clip"])
        if square > 0:  # else the noise is all there is, and the clip stays
            least, most = self.clip / self.clip_reach, self.clip * self.clip_reach
            clip = min(max(self.clip_factor * math.sqrt(square), least), most)
        found = {"clip": clip, "noise": factor * float(before["noise"]), "loss": loss, "falls": falls}
        return {k: torch.tensor(v, dtype=torch.float64) for k, v in found.items()}

    def decided(self, state: State, plan: Plan) -> dict[str, Any] | None:
        used = float(state.extra["paid"].topk(plan.participations).values.sum()) * plan.z**2
        clip, noise = state.extra["used"].tolist()
        heard = {k: float(state.extra[k]) for k in ("loss", "falls")}
        return {"clip": clip, "noise": noise, "next_clip": float(state.extra["clip"])} | heard | {"budget_used": used}

    def explain(self, rounds: list[dict[str, Any]]) -> list[str]:
        told = [r["decided"] for r in rounds if r.get("decided")]
        if not told:
            return []
        first, last, one, other = rounds[0]["round"], rounds[-1]["round"], told[0], told[-1]
        lowered = sum(a["noise"] > b["noise"] for a, b in pairwise(told))
        times = {0: "not lowered", 1: "lowered once"}.get(lowered, f"lowered {lowered} times")
        return [
            f"The noise multiplier was {one['noise']:.4g} in round {first}, {other['noise']:.4g} in round {last}: it "
            f"is lowered when the loss has fallen {self.patience} times in a row or more, and was {times} in between.",
            f"Gradients were clipped at {one['clip']:.3g} in round {first} and at {other['clip']:.3g} in round {last}: "
            f"the clip follows the norm of the noisy gradients, within a factor {self.clip_reach:g} of the first one, "
            f"{self.clip:g}.",
            f"After round {last} {100 * other['budget_used']:.1f} % of the budget was used.",
        ]


@dataclass(frozen=True)
class _Ear(AdapDpFl):
    """The same for one round of training: hears the noisy sums of gradients as they are released."""

    heard: list[Tensor] = field(default_factory=list)  # by step: squared norms [clients], less what noise adds to them

    def add(self, sums: Bounded, z: float | Tensor, state: State, plan: Plan, rng: RowStream) -> Rows:
        noisy = super().add(sums, z, state, plan, rng)
        std = float(z) * sums.bound
        self.heard.append(noisy.double().square().sum(dim=1) - noisy.shape[1] * std**2)
        return noisy
