"""Adap DP-FL as printed: every client has its own clip bound, and noise falls with the loss.  Fu, Chen, Han (2022),
arXiv:2211.15893.

Claims to protect a record from the server. Every client runs DP-SGD: client k clips to C_k^t, `clip_factor` times the
mean norm of its gradients in its last round, and adds noise of standard deviation sigma_t C_k^t. sigma is multiplied by
`noise_step` when the loss on validation data has fallen `patience` times in a row. A Renyi accountant composes the
rounds with their sigma_t, and training ends when the budget is spent.

The claim does not hold. The clip bound, and with it the standard deviation of the noise, is a function of the client's
records: one record with a long gradient visibly increases the noise of the next round. Also, the loss, computed here on
the clients' own records, is used without being charged. So no finite epsilon is accounted: epsilon is infinite.
adap_dp_fl.py is the sound form.

We had the abstract, not the text. It confirms a clip bound for each client and round, and noise that falls. That the
norms are those of the gradients (`reading = exact`) is how Xue et al. describe it (Section I: "the norm of previous
gradients"); a public design document of other authors that cites Eq. (6) to (8) takes the mean norm of noisy gradients
(`noisy`: post-processing, with clip bounds that grow with the noise). By the same document the loss is that of the new
global model on validation records at the server and must have fallen three times in a row, a Renyi accountant composes
the sigma_t (Theorem 1), and alpha = 1 and beta = 0.999 are examples. None of this could be checked against the text,
nor whether the noise sigma_t C_k^t is meant for the sum of a batch's gradients, as here, or for their mean. sigma_1 is
our choice: if all rounds had that noise, the run would use the share `start` of the claimed budget.

`noised` says whether every local step is noisy, as in DP-SGD, or the update alone (_measured.py); then the accountant
composes one Gaussian a round, and S is the client's clip bound."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from sordino.contract import clipped_steps
from sordino.contract import local_sgd as training
from sordino.contract.method import Claim, Method, Own, Plan, Release, Site
from sordino.core import check
from sordino.core.errors import BudgetError, SpecError
from sordino.core.message import Message
from sordino.core.types import Batch, Model, Rows, State
from sordino.core.vector import Layout
from sordino.methods._measured import NOISED, OF_UPLOADS, counted, reach, upload
from sordino.privacy.accountants import rdp
from sordino.privacy.clip import Bounded
from sordino.privacy.events import Event, GaussianEvent, Repeated, Sampled
from sordino.privacy.mechanisms.gaussian import Gaussian
from sordino.privacy.release import Unproven

__all__ = ["AdapDpFlPaper"]

LEAST = 1e-6  # smallest clip bound, for clients whose gradients are zero
RECORDS = 500  # records whose gradients are computed together


@dataclass(frozen=True)
class PrintedAdaptationState:
    """The server's state besides the model."""

    noise: float  # sigma_t of the coming round
    used: float  # sigma_t of the last round
    loss: float  # last reported loss
    falls: float  # number of consecutive rounds in which the loss has fallen
    curve: Tensor  # Renyi divergences claimed so far [orders]


@dataclass(frozen=True)
class AdapDpFlPaper(Method):
    """Adap DP-FL as printed; its claim does not hold."""

    clip: float = 1.0  # C: every client's bound on the L2 norm of one record's gradient, in its first round
    batch_sampling: str = "poisson"  # or "fixed": batches of a fixed size
    reading: str = "exact"  # norms that set a client's next clip bound: exact (of its records' gradients), or noisy
    clip_factor: float = 1.0  # alpha: the next clip bound over the norm of the gradients
    noise_step: float = 0.98  # beta: factor by which the noise multiplier is lowered
    patience: int = 3  # consecutive falls of the loss after which it is lowered
    start: float = 0.85  # share of the budget that the run would use if the noise were never lowered
    noised: str = "step"  # where the noise is added: step (to every gradient sum) or upload (once to the update)

    private: ClassVar[bool] = False
    algorithms: ClassVar[tuple[str, ...]] = ("fedavg", "fedavgm", "fedopt", "fedprox")
    noisy_steps: ClassVar[bool] = True
    by_records: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check.positive(clip=self.clip)
        check.one_of(clipped_steps.SAMPLINGS, batch_sampling=self.batch_sampling)
        check.one_of(("exact", "noisy"), reading=self.reading)
        check.positive(clip_factor=self.clip_factor)
        check.below_one(noise_step=self.noise_step)
        check.count(patience=self.patience)
        check.probability(start=self.start)
        check.one_of(NOISED, noised=self.noised)
        if self.noised == "upload" and self.reading == "noisy":
            raise SpecError("noised = upload leaves no noisy gradients whose norms reading = noisy could take.")

    def _why_not(self) -> str:
        loss = "the loss that decides when the noise is lowered is computed from the clients' records and not charged"
        if self.reading == "noisy":
            return loss
        both = f"a client's clip bound, and so its noise, depends on the exact norms of its gradients; and {loss}"
        return both + (OF_UPLOADS if self.noised == "upload" else "")

    def claim(self, plan: Plan) -> Claim:
        return Claim(plan.epsilon, plan.delta, "Fu, Chen, Han (2022), arXiv:2211.15893", self._why_not())

    def releases(self, plan: Plan, round: int = 0, state: State | None = None) -> tuple[Release, ...]:
        """Declare the gradients of the local steps, or the update; a client's noise follows its own clip bound."""
        if self.noised == "upload":
            return upload(self._why_not())
        noise = Gaussian(self._first(plan) if state is None else state.method.noise)
        steps = plan.local.count(plan.smallest_client)
        return (Release("gradient", Unproven(self._why_not(), noise), "record", times=steps, key="train/noise #"),)

    # --- the paper's accounting

    def _first(self, plan: Plan) -> float:
        """Return sigma_1: the constant sigma with which all rounds would claim epsilon, over sqrt(start)."""
        rate, steps = counted(plan, self.noised)
        return _even(rate, steps, plan.rounds, plan.epsilon, plan.delta) / math.sqrt(self.start)

    def _claimed(self, plan: Plan, sigma: float) -> Tensor:
        """Return the Renyi divergences that the paper accounts for one round."""
        return torch.from_numpy(rdp.rdp(_round(sigma, *counted(plan, self.noised))))

    def over(self, state: State, plan: Plan) -> bool:
        """Return whether one more round would exceed the claim."""
        curve = state.method.curve.cpu() + self._claimed(plan, state.method.noise)
        return rdp.epsilon_of_curve(rdp.ORDERS, np.asarray(curve.numpy()), plan.delta) > plan.epsilon

    # --- the round

    def variables(self, state: State, layout: Layout, plan: Plan) -> PrintedAdaptationState:
        first = self._first(plan)
        return PrintedAdaptationState(first, first, math.inf, 0.0, torch.zeros(len(rdp.ORDERS), dtype=torch.float64))

    def keeps(self, state: State, clients: int, plan: Plan) -> Own:
        """Return the clip bound that each client keeps for itself."""
        return {"clip": state.params.new_full((clients, 1), self.clip)}

    def train(self, state: State, site: Site) -> tuple[Message, Own]:
        """Send the update and the exact loss, weighted by the client's records."""
        gradients, clips = site.model.gradients, site.own["clip"]
        scale, norms = clips.expand(-1, site.model.layout.dim).contiguous(), list[Tensor]()

        def clipped(weights: Tensor, batch: Batch, seeds: list[int], groups: clipped_steps.Groups) -> Bounded:
            return Bounded(gradients.sums(weights, batch, 1.0, seeds=seeds, groups=groups, scale=scale), 1.0)

        def let_out(sums: Bounded) -> Rows:
            if self.noised == "upload":
                return sums.value
            noisy = site.out["gradient"](sums, multiplier=state.method.noise * clips)
            norms.append(noisy.norm(dim=1))
            return noisy

        rows, mine = clipped_steps.steps(state, site, clipped, let_out, self.batch_sampling)
        if self.noised == "upload":
            noise = state.method.noise * clips * reach(state, site)
            rows = site.out["update"](Bounded(rows, 1.0), multiplier=noise)
        lengths = self._norms(state, site) if self.reading == "exact" else self._noisy_norms(norms, site)
        after = torch.nan_to_num(self.clip_factor * lengths, nan=LEAST, posinf=1e6).clamp(LEAST, 1e6)
        loss = torch.nan_to_num(training.mean_losses(state, site.data, site.model), posinf=1e6)
        message = Message({"update": rows, "loss": loss}, clipped_steps.weights(site, rows))
        return message, site.kept(mine, clip=after.to(clips.dtype))

    def _norms(self, state: State, site: Site) -> Tensor:
        """Return the mean norm of each client's gradients [clients, 1]."""
        sizes = state.params.new_tensor(site.data.sizes)[:, None]
        return training.sums(record_norms(state.params, site.data, site.model), site.data.sizes) / sizes.clamp_min(1)

    def _noisy_norms(self, norms: list[Tensor], site: Site) -> Tensor:
        """Return the norm of each client's noisy mean gradient, averaged over its steps [clients, 1]."""
        expected = [site.plan.local.expected_batch(n) for n in site.data.sizes]
        mean = torch.stack(norms).mean(dim=0)
        return (mean / mean.new_tensor(expected))[:, None]

    def merge(self, state: State, seen: Message, plan: Plan) -> State:
        """Average the updates, add the round to the claimed Renyi curve, and lower the noise if the loss has fallen."""
        before, sigma = state.method, state.method.noise
        now = replace(before, curve=before.curve + self._claimed(plan, sigma).to(before.curve.device), used=sigma)
        weight = float(len(seen)) if seen.weight is None else float(seen.weight.double().sum())
        if weight > 0:
            loss = float(seen.weighed()["loss"].double().sum()) / weight
            falls = before.falls + 1 if loss < before.loss < math.inf else 0.0
            factor = self.noise_step if falls >= self.patience else 1.0
            now = replace(now, noise=factor * sigma, loss=loss, falls=falls)
        return replace(super().merge(state, seen, plan), method=now)

    def decided(self, state: State, plan: Plan) -> dict[str, Any] | None:
        now = state.method
        return {"noise": now.used, "next_noise": now.noise, "loss": now.loss, "falls": now.falls}

    def explain(self, rounds: list[dict[str, Any]]) -> list[str]:
        if not rounds:
            return []
        first, last, decisions = rounds[0]["round"], rounds[-1]["round"], [r["decided"] for r in rounds]
        lowered = sum(a["noise"] > b["noise"] for a, b in pairwise(decisions))
        times = {0: "not lowered", 1: "lowered once"}.get(lowered, f"lowered {lowered} times")
        return [
            f"The noise multiplier was {decisions[0]['noise']:.4g} in round {first} and {decisions[-1]['noise']:.4g} "
            f"in round {last}: it is lowered when the clients' exact loss has fallen {self.patience} times in a row or "
            f"more, and was {times} between these rounds.",
            f"Every client clips to {self.clip_factor:g} times the "
            + ("mean norm of its records' gradients" if self.reading == "exact" else "norm of its noisy gradients")
            + " in its last round, and does not send this bound.",
        ]


def _round(sigma: float, rate: float, steps: int) -> Event:
    """Return the event of one round as the paper accounts it."""
    step = GaussianEvent(sigma) if rate >= 1 else Sampled(GaussianEvent(sigma), rate)
    return Repeated(step, steps)


@lru_cache(maxsize=64)
def _even(rate: float, steps: int, rounds: int, epsilon: float, delta: float) -> float:
    """Return the constant sigma with which `rounds` rounds would claim epsilon by the paper's accountant."""

    def within(sigma: float) -> bool:
        return rdp.epsilon(Repeated(_round(sigma, rate, steps), rounds), delta) <= epsilon

    low = high = 1.0
    while not within(high):
        if high > 1e9:
            raise BudgetError(f"the paper's accountant claims epsilon = {epsilon:g} for no noise: ask for more.")
        high *= 2
    while within(low) and low > 1e-9:
        low /= 2
    for _ in range(40):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if within(middle) else (middle, high)
    return high


def record_norms(weights: Tensor, data: Batch, model: Model) -> Tensor:
    """Return the norm of every record's gradient [records]."""
    parts = [weights.new_zeros(0)]
    for x, y in zip(data.x.split(RECORDS), data.y.split(RECORDS), strict=True):
        each = model.gradients.sums(weights, Batch(x, y, (1,) * len(y)), None, seeds=[0] * len(y))
        parts.append(each.norm(dim=1))
    return torch.cat(parts)
