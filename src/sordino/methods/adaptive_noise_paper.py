"""Component-wise adaptive noise as printed.  Xue et al., "Differentially Private Federated Learning with an Adaptive
Noise Mechanism", Algorithms 2 to 4; unit record, viewer server; the claim does not hold.

Each client trains without clipping and predicts its last step from the step before (Table II: the optimiser's next step
for the gradient it has just seen), w^ = w_{K-1} - G(g_{K-1}). K is `local_steps` if it counts batches (Table I, Eq. 5,
Algorithm 3), `local_epochs` if it counts epochs (Algorithm 1, line 5). In both cases w_k are the weights after k
batches, as Eq. (5) defines them, so that the last step is that of the last batch of the last epoch; Algorithm 1 names
no weights after an epoch. (With those after epoch K - 1 instead, Adam ends Fig. 3a with the same accuracy to 0.1
points, one seed. Line 5 of Algorithm 3 takes one more batch than K.) A client then truncates its weights to w_0 +- q
with q = beta |w^| / 2 (Eq. 2), declares Delta_m = 2 q_m (Eq. 3) and adds N(0, M sigma_0^2 Delta_m^2) to component m
(Eq. 4). sigma_0 comes from Eq. (13), or is given. The clients count their participations L_i, Algorithm 4 converts the
largest count into delta at the fixed epsilon, and training ends before delta would exceed delta* (Algorithm 2 ends one
round later, with the model that exceeds it; a client that drops out is not counted, one that joins late starts from
zero: V-F). With `scope = round` the claimed epsilon is for each round, as in other authors' comparisons, and does not
end the training.

Not sound: q is computed from the client's own records, so neighbouring data have noise of different variance and
windows at different places; where a weight and its gradient are zero there is no noise at all. An event then has
probability 1 with a record and 0 without it (tests/methods/test_adaptive_noise_paper.py). Read literally, the noise is
also hundreds of times larger than the weights; `reading` says how Eq. (4) is interpreted:

    literal      M is the number of components
    per-tensor   M is the number of tensors of the model
    per-batch    per-tensor, divided by the batch size (as VI-C suggests)
    per-dataset  per-tensor, divided by the client's number of records

None of these divisions has a sensitivity proof: K unclipped steps are not an average over records."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from sordino.contract import local_sgd
from sordino.contract.claim import SCOPES
from sordino.contract.method import Claim, Method, Own, Plan, Release, Site
from sordino.core import check
from sordino.core.errors import SpecError
from sordino.core.message import Message
from sordino.core.optimizers import Optimizer
from sordino.core.rng import RowStream
from sordino.core.types import Batch, Rows, State
from sordino.core.vector import Layout
from sordino.methods import _claims as claims
from sordino.methods.none import by_records
from sordino.privacy.mechanisms.gaussian import Gaussian
from sordino.privacy.release import Unproven

__all__ = ["AdaptiveNoisePaper"]

READINGS = ("literal", "per-tensor", "per-batch", "per-dataset")
SHOWN = 2048  # components whose quantiles are recorded
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
WHY_NOT = (
    "the clip bounds and the noise are computed from the client's private records, so one record changes the scale of "
    "the noise; a weight that is zero without that record gets no noise, so delta is 1"
)


@dataclass(frozen=True)
class Shown:
    """The server's figures of the last round."""

    most: int  # largest number of participations of any client so far
    tensors: int  # number of tensors of the model
    std: float  # standard deviation of the noise, mean over components and clients
    largest: float  # standard deviation in the component with the most noise, mean over clients
    weights: Tensor  # quantiles of the first client's weights
    truncated: Tensor  # quantiles of the same weights after truncation


@dataclass(frozen=True)
class AdaptiveNoisePaper(Method):
    """Component-wise adaptive noise as printed; its claim does not hold."""

    beta: float = 1.1  # truncation factor
    sigma0: float = 0.0  # noise level sigma_0; 0: the smallest that Eq. (13) allows
    reading: str = "per-batch"  # interpretation of Eq. (4): literal, per-tensor, per-batch or per-dataset
    scope: str = "total"  # whether the claimed epsilon is for all rounds of a client (total) or for one (round)

    private: ClassVar[bool] = False
    algorithms: ClassVar[tuple[str, ...]] = ("fedavg", "fedsgd", "fedavgm", "fedopt", "fedprox")
    reads: ClassVar[str] = "rows"

    def __post_init__(self) -> None:
        check.positive(beta=self.beta)
        check.non_negative(sigma0=self.sigma0)
        check.one_of(READINGS, reading=self.reading)
        check.one_of(SCOPES, scope=self.scope)
        if self.scope == "round" and self.sigma0:
            raise SpecError("scope = round takes sigma_0 from the claimed epsilon: leave sigma0 out.")

    def releases(self, plan: Plan, round: int = 0, state: State | None = None) -> tuple[Release, ...]:
        return (Release("update", Unproven(WHY_NOT, Gaussian(1.0)), "record", key="train/noise"),)

    def claim(self, plan: Plan) -> Claim:
        return Claim(plan.epsilon, plan.delta, "Xue et al., Theorem 1", WHY_NOT, self.scope)

    def remarks(self, plan: Plan) -> tuple[str, ...]:
        if max(plan.local.count(n) for n in plan.sizes) > 1:
            return ()
        return (
            "with one local step there is no step to foresee the last one from, and weights that start at zero never "
            "move: the paper takes K = 16 to 64",
        )

    def require(self, plan: Plan) -> None:
        """Refuse a sigma_0 at which the paper's accountant allows no round."""
        if claims.xue_delta(plan.epsilon, 1, self.level(plan)) > plan.delta * (1 + 1e-9):
            raise SpecError(
                f"by the paper's accountant not even one round fits epsilon = {plan.epsilon:g}, delta = {plan.delta:g} "
                f"at sigma0 = {self.sigma0:g}: raise sigma0, or leave it out."
            )

    def level(self, plan: Plan) -> float:
        """Return the noise level sigma_0."""
        counted = plan.participations if self.scope == "total" else 1
        return self.sigma0 or claims.xue_sigma(plan.epsilon, plan.delta, counted)

    def variables(self, state: State, layout: Layout, plan: Plan) -> Shown:
        nothing = torch.zeros(len(QUANTILES), dtype=torch.float64)
        return Shown(0, len(layout.slots), 0.0, 0.0, nothing, nothing)

    def keeps(self, state: State, clients: int, plan: Plan) -> Own:
        return {"participations": torch.zeros(clients, dtype=torch.int64)}  # L_i

    def train(self, state: State, site: Site) -> tuple[Message, Own]:
        """Send the truncated noisy update, and figures for the server's record."""
        data, plan = site.data, site.plan
        foreseen, counts = self._watch(state, data, plan, site.rng)
        rows, mine = local_sgd.sgd(state, site, after=foreseen.after)
        taken = site.own["participations"] + 1
        q = 0.5 * self.beta * foreseen.weights.abs()
        truncated = torch.minimum(torch.maximum(rows, -q), q)  # truncates the weights to w_0 +- q
        std = self.factor(state, data, plan, counts) * 2 * q
        weight = torch.tensor(data.sizes, dtype=rows.dtype, device=rows.device)
        fields = {
            "update": site.out["update"](truncated, multiplier=std),
            "participations": taken,
            "std": std.mean(dim=1).double(),
            "most": std.amax(dim=1).double(),
            "weights": _quantiles(state.params + rows),
            "truncated": _quantiles(state.params + truncated),
        }
        return Message(fields, weight), site.kept(mine, participations=taken)

    def factor(self, state: State, data: Batch, plan: Plan, counts: list[int]) -> Tensor:
        """Return sigma_m / Delta_m of every client [clients, 1]."""
        m = state.params.numel() if self.reading == "literal" else float(state.method.tensors)
        sizes = torch.tensor(data.sizes, dtype=state.params.dtype, device=state.params.device)[:, None].clamp_min(1)
        divide = torch.ones_like(sizes)
        if self.reading == "per-batch":
            divide = torch.tensor([plan.local.expected_batch(n) for n in data.sizes]).to(sizes)[:, None]
        elif self.reading == "per-dataset":
            divide = sizes
        return math.sqrt(m) * self.level(plan) / divide

    def _watch(self, state: State, data: Batch, plan: Plan, rng: RowStream) -> tuple[Foreseen, list[int]]:
        """Return the predictor of the last weights, and each client's steps as `local_sgd.sgd` counts them."""
        counts = plan.stragglers.steps([plan.local.count(n) if n else 0 for n in data.sizes], rng.at("slow"))
        return Foreseen(state.params.expand(len(data.sizes), -1), counts), counts

    def merge(self, state: State, seen: Message, plan: Plan) -> State:
        """Average the updates by the clients' records, and keep the figures of the round."""
        after = by_records(state, seen, plan, noisy=True)
        weight = seen.weight
        if weight is None or not float(weight.sum()) > 0:  # no client answered
            return after
        share = weight.double() / weight.double().sum()
        shown = Shown(
            max(state.method.most, int(seen["participations"].max())),
            state.method.tensors,
            float((share * seen["std"]).sum()),
            float((share * seen["most"]).sum()),
            seen["weights"][0].double(),
            seen["truncated"][0].double(),
        )
        return replace(after, method=shown)

    def over(self, state: State, plan: Plan) -> bool:
        """Return whether one more participation would exceed delta* by Algorithm 4; never with `scope = round`."""
        most = state.method.most
        return self.scope == "total" and claims.xue_delta(plan.epsilon, most + 1, self.level(plan)) > plan.delta * (
            1 + 1e-9
        )

    def decided(self, state: State, plan: Plan) -> dict[str, Any]:
        shown, sigma = state.method, self.level(plan)
        most = shown.most
        return {
            "sigma0": sigma,
            "participations": most,
            "delta_algorithm_4": claims.xue_delta(plan.epsilon, most, sigma) if most else 0.0,
            "delta_exact_if_public": claims.xue_exact_delta(plan.epsilon, most, sigma) if most else 0.0,
            "noise": shown.std,  # standard deviation, mean over components and clients
            "std": shown.std,  # the same, for the record of injected noise
            "noise_most": shown.largest,  # in the component with the most noise, mean over clients
            "weights_quantiles": shown.weights.tolist(),
            "truncated_quantiles": shown.truncated.tolist(),
        }

    def explain(self, rounds: list[dict[str, Any]]) -> list[str]:
        return [
            f"Round {r['round']}: at noise level {d['sigma0']:.3g} (the paper's sigma_0) noise of on average "
            f"{_formatted(d['noise'])} a weight; weights lay between {_formatted(d['weights_quantiles'][0])} and "
            f"{_formatted(d['weights_quantiles'][-1])}. By the paper's accountant delta = {d['delta_algorithm_4']:.3g} "
            f"up to here (a claim); exactly, if the noise did not follow the data, {d['delta_exact_if_public']:.3g}."
            for r in rounds
            if (d := r["decided"])
        ]


def _formatted(value: float | None) -> str:
    return "no finite number" if value is None else f"{value:.3g}"


class Foreseen:
    """Each client's last weights as predicted one step before, w_{K-1} - G(g_{K-1}) (Eq. 3, Table II)."""

    def __init__(self, start: Tensor, counts: list[int]) -> None:
        self.weights, self.counts = start, counts  # with K = 1 there is no step to predict from: w_0

    def after(self, number: int, weights: Tensor, direction: Rows, optimizer: Optimizer) -> None:
        """Record the prediction for the clients whose next step is their last; called after every step."""
        last = [count == number + 2 for count in self.counts]
        if any(last):
            here = torch.tensor(last, device=weights.device)[:, None]
            self.weights = torch.where(here, weights - optimizer.would(direction), self.weights)


def _quantiles(rows: Rows) -> Tensor:
    """Return the QUANTILES of every client's components, or of an evenly spaced subset [clients, 5]."""
    some = rows[:, :: max(1, rows.shape[1] // SHOWN)]
    if not len(some):
        return some.new_zeros(0, len(QUANTILES))
    return torch.quantile(some.float(), some.new_tensor(QUANTILES).float(), dim=1).T
