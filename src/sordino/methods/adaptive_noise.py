"""Component-wise adaptive noise, sound: every component is clipped and noised on a scale of its own that follows what
was released before.  The idea of Xue et al., "Differentially Private Federated Learning with an Adaptive Noise
Mechanism" (Algorithms 2 and 3), whose own scales come from private data (adaptive_noise_paper.py).

Protects a record from the server (`unit = record`, every local step a Gaussian release), or a client from the server
(`unit = client`, its whole update one release). Sound: the scales s are a function of released means alone. Given
these, a record's gradient g is clipped to |g / s| <= 1, the sum of g / s gets noise of standard deviation z, and the
result is multiplied by s again, which is post-processing. So each step is the Gaussian mechanism with sensitivity 1 and
multiplier z whatever the data are, and is accounted so.

Scales: v^2 is the running mean of the squared released mean update, less the variance of its noise, held above a floor;
u = v / |v|_2; s_m^2 = C^2 u_m sum_j u_j. Of all allocations with sum_m Delta_m^2 / s_m^2 = 1 this one has the least
total noise, C^2 |u|_1^2, at most the C^2 M of plain DP-SGD with clip C, to which it is equal while nothing is known (u
constant). Differs from the paper: gradients (or updates) are truncated in an ellipsoid rather than weights in a box,
noise is allocated by s_m^2 ~ u_m rather than u_m^2, the history is that of the released models."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from sordino.core import check
from sordino.core.errors import SpecError
from sordino.core.rng import RowStream, Stream
from sordino.core.types import Batch, Model, Rows, State
from sordino.core.vector import Layout
from sordino.methods import local
from sordino.methods.base import Plan
from sordino.methods.dp_sgd import DpSgd, Groups
from sordino.privacy.clip import Bounded, clip_rows
from sordino.privacy.events import Cost
from sordino.privacy.events import Gaussian as GaussianEvent

__all__ = ["AdaptiveNoise"]


@dataclass(frozen=True)
class AdaptiveNoise(DpSgd):
    clip: float = 1.0  # C: bound on the L2 norm of one record's gradient (unit = client: update), before scales adapt
    memory: float = 0.9  # how much of the history is kept from round to round
    floor: float = 0.3  # least size of a component, relative to the root mean square of all
    warm: int = 3  # first rounds in which all components are alike

    units: ClassVar[tuple[str, ...]] = ("record", "client")
    algorithms: ClassVar[tuple[str, ...]] = ("fedavg", "fedsgd", "fedavgm", "fedopt", "fedprox")

    def __post_init__(self) -> None:
        super().__post_init__()
        check.fraction(memory=self.memory)
        check.probability(floor=self.floor)
        check.count(warm=self.warm)

    def costs(self, plan: Plan, round: int = 0) -> tuple[Cost, ...]:
        if plan.unit != "client":
            return super().costs(plan, round)
        relation = plan.sampler.relation  # in a cohort of a fixed size a client is replaced: it moves a row by twice
        moves = 1 if relation == "add/remove" else 2
        # "inside": whoever is not drawn sends no noise either, so its absence shows and does not amplify
        return (Cost("client", relation, "server", GaussianEvent(plan.z / moves), draw="inside"),)

    def require(self, plan: Plan) -> None:
        if plan.unit == "client" and plan.channel != "direct":
            raise SpecError("adaptive-noise with unit = client sends through the direct channel.")
        if plan.unit != "client":
            super().require(plan)

    def begin(self, state: State, layout: Layout, plan: Plan) -> State:
        state = plan.algorithm.begin(state, layout)
        nothing = torch.zeros_like(state.params)
        state = replace(state, extra=state.extra | {"moment": nothing, "noise_part": nothing.clone()})
        return replace(state, extra=state.extra | {"used": self._shape(state)})

    def scales(self, state: State) -> Tensor:
        """s [dim]: by released quantities alone."""
        excess = (state.extra["moment"] - state.extra["noise_part"]).clamp_min(0).double()
        level = float(excess.mean())
        if state.round < self.warm or level <= 0:
            return torch.full_like(state.params, self.clip)
        v = torch.sqrt(excess.clamp_min(self.floor**2 * level))
        u = v / v.norm()
        return (self.clip * torch.sqrt(u * u.sum())).to(state.params.dtype)

    def clipped(
        self, weights: Tensor, batch: Batch, model: Model, state: State, plan: Plan, seeds: list[int], groups: Groups
    ) -> Bounded:
        s = self.scales(state)
        sums = model.gradients.sums(weights, batch, 1.0, seeds=seeds, groups=groups, scale=s)
        return Bounded(sums / s, 1.0)

    def add(self, sums: Bounded, z: float | Tensor, state: State, plan: Plan, rng: RowStream) -> Rows:
        return self.scales(state) * super().add(sums, z, state, plan, rng)

    def train(
        self, state: State, data: Batch, own: Rows, model: Model, plan: Plan, rng: RowStream
    ) -> tuple[Rows, Rows]:
        if plan.unit == "client":
            return local.sgd(state, data, own, model, plan, rng)
        return super().train(state, data, own, model, plan, rng)

    def release(self, rows: Rows, sizes: tuple[int, ...], state: State, plan: Plan, rng: RowStream) -> Rows:
        if plan.unit != "client":
            return rows
        whole = clip_rows(rows / self.scales(state), 1.0)
        return self.add(whole, self._noise_of(state, plan, rng), state, plan, rng)

    def merge(self, state: State, rows: Rows, plan: Plan, rng: Stream) -> State:
        answers = plan.expected_answers(state.round)
        mean = rows.sum(dim=0) / answers
        kept, s = self.memory, self.scales(state)
        variance = (self._message_noise(state, plan) * s / self.clip) ** 2 / answers
        moment = kept * state.extra["moment"] + (1 - kept) * mean * mean
        noise = kept * state.extra["noise_part"] + (1 - kept) * variance
        after = plan.algorithm.update(state, mean, plan.server(answers / plan.population))
        return replace(after, extra=after.extra | {"moment": moment, "noise_part": noise, "used": self._shape(state)})

    def _message_noise(self, state: State, plan: Plan) -> float:
        """Standard deviation of the noise in a client's message, of a component whose scale is the clip."""
        if plan.unit == "client":
            return self.multiplier(plan, state.round) * self.clip
        return super().noise(state, plan) or 0.0

    def noise(self, state: State, plan: Plan) -> float | None:
        return self._message_noise(state, plan) * self._spread(state)

    def _spread(self, state: State) -> float:
        """Root mean square of the scales, in units of the clip: at most 1, the gain over plain DP-SGD squared."""
        return math.sqrt(float((self.scales(state).double() / self.clip).square().mean()))

    def _shape(self, state: State) -> Tensor:
        """Of the scales of a round, in units of the clip: root mean square; 5, 50 and 95 %."""
        s = self.scales(state).double() / self.clip
        some = torch.quantile(s[:: max(1, len(s) // 10_000)], s.new_tensor([0.05, 0.5, 0.95]))
        return torch.cat([s.square().mean().sqrt()[None], some])

    def decided(self, state: State, plan: Plan) -> dict[str, Any]:
        rms, *quantiles = state.extra["used"].tolist()
        return {"scale_rms": rms, "scale_quantiles": quantiles}

    def explain(self, rounds: list[dict[str, Any]]) -> list[str]:
        out = ["The larger a parameter's released updates were, the more noise it gets; in per cent of plain DP-SGD's:"]
        for record in rounds:
            low, middle, high = (100 * q for q in record["decided"]["scale_quantiles"])
            rms = 100 * record["decided"]["scale_rms"]
            text = f"{rms:.1f} % over all; half of the parameters got {middle:.0f} % or less, "
            text += f"a twentieth {low:.0f} % or less, a twentieth {high:.0f} % or more"
            if math.isclose(low, high, rel_tol=1e-6):
                text = f"{rms:.1f} % for every parameter"
            out.append(f"Round {record['round']}: {text}.")
        return out if rounds else []
