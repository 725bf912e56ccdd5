"""Per-component scales computed from released means, shared by both levels of adaptive noise.

v^2 is the running mean of the squared released mean update, minus the variance of its noise, bounded below by a floor;
u = v / |v|_2; s_m^2 = C^2 u_m sum_j u_j. Among all allocations with sum_m Delta_m^2 / s_m^2 = 1 this one has the
smallest total noise, C^2 |u|_1^2, which is at most the C^2 M of plain noise with clip C, and equal to it while nothing
is known (u constant).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sordino.core.types import State, Vector

ALGORITHMS = ("fedavg", "fedsgd", "fedavgm", "fedopt", "fedprox")


@dataclass(frozen=True)
class History:
    """The server's memory of the released means."""

    moment: Vector  # running mean of the squares
    noise_part: Vector  # running mean of the variance of the noise in them
    used: Tensor  # [4]: `shape` of the last round's scales, in units of the clip bound


@dataclass(frozen=True)
class Scales:
    """The rule that computes scales from the history."""

    clip: float
    memory: float
    floor: float
    warm: int

    def start(self, state: State) -> History:
        """Return the history before the first round."""
        nothing = torch.zeros_like(state.params)
        first = History(nothing, nothing.clone(), nothing.new_zeros(4))
        return History(nothing, nothing.clone(), self.shape(self.of(state, first)))

    def of(self, state: State, history: History | None = None) -> Tensor:
        """Return the scales s [dim], computed only from released quantities."""
        known = history or state.method
        excess = (known.moment - known.noise_part).clamp_min(0).double()
        level = float(excess.mean())
        if state.round < self.warm or level <= 0:
            return torch.full_like(state.params, self.clip)
        v = torch.sqrt(excess.clamp_min(self.floor**2 * level))
        u = v / v.norm()
        return (self.clip * torch.sqrt(u * u.sum())).to(state.params.dtype)

    def after(self, state: State, mean: Vector, noise: float, answers: float) -> History:
        """Return the history after a round with this mean.

        `noise` is the standard deviation, in one message, of a component whose scale is the clip bound.
        """
        s, decay = self.of(state), self.memory
        variance = (noise * s / self.clip) ** 2 / answers
        moment = decay * state.method.moment + (1 - decay) * mean * mean
        return History(moment, decay * state.method.noise_part + (1 - decay) * variance, self.shape(s))

    def spread(self, state: State) -> float:
        """Return the root mean square of the scales over the clip, at most 1.

        Its square is the noise variance relative to plain noise.
        """
        return math.sqrt(float((self.of(state).double() / self.clip).square().mean()))

    def shape(self, scales: Tensor) -> Tensor:
        """Return the root mean square of the scales over the clip, and their 5, 50 and 95 % quantiles."""
        s = scales.double() / self.clip
        some = torch.quantile(s[:: max(1, len(s) // 10_000)], s.new_tensor([0.05, 0.5, 0.95]))
        return torch.cat([s.square().mean().sqrt()[None], some])


def decided(state: State) -> dict[str, Any]:
    """Return the shape of the last round's scales, for the record."""
    rms, *quantiles = state.method.used.tolist()
    return {"scale_rms": rms, "scale_quantiles": quantiles}


def explain(rounds: list[dict[str, Any]]) -> list[str]:
    """Return an explanation of the recorded scales, round by round."""
    out = ["The larger a parameter's released updates were, the more noise it gets; as a percentage of plain DP-SGD's:"]
    for record in rounds:
        low, middle, high = (100 * q for q in record["decided"]["scale_quantiles"])
        rms = 100 * record["decided"]["scale_rms"]
        text = f"{rms:.1f} % over all; half of the parameters got {middle:.0f} % or less, "
        text += f"a twentieth {low:.0f} % or less, a twentieth {high:.0f} % or more"
        if math.isclose(low, high, rel_tol=1e-6):
            text = f"{rms:.1f} % for every parameter"
        out.append(f"Round {record['round']}: {text}.")
    return out if rounds else []
