"""Scales of the components that follow released means: what both levels of adaptive noise share.

v^2 is the running mean of the squared released mean update, less the variance of its noise, held above a floor;
u = v / |v|_2; s_m^2 = C^2 u_m sum_j u_j. Of all allocations with sum_m Delta_m^2 / s_m^2 = 1 this one has the least
total noise, C^2 |u|_1^2, at most the C^2 M of plain noise with clip C, to which it is equal while nothing is known (u
constant)."""

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
    """What the server remembers of the released means."""

    moment: Vector  # running mean of the squares,
    noise_part: Vector  # and of the variance of the noise in them
    used: Tensor  # [4]: shape of the last round's scales, in units of the clip


@dataclass(frozen=True)
class Scales:
    """How scales follow the history."""

    clip: float
    memory: float
    floor: float
    warm: int

    def start(self, state: State) -> History:
        nothing = torch.zeros_like(state.params)
        first = History(nothing, nothing.clone(), nothing.new_zeros(4))
        return History(nothing, nothing.clone(), self.shape(self.of(state, first)))

    def of(self, state: State, history: History | None = None) -> Tensor:
        """s [dim]: by released quantities alone."""
        known = history or state.method
        excess = (known.moment - known.noise_part).clamp_min(0).double()
        level = float(excess.mean())
        if state.round < self.warm or level <= 0:
            return torch.full_like(state.params, self.clip)
        v = torch.sqrt(excess.clamp_min(self.floor**2 * level))
        u = v / v.norm()
        return (self.clip * torch.sqrt(u * u.sum())).to(state.params.dtype)

    def after(self, state: State, mean: Vector, noise: float, answers: float) -> History:
        """Return the history after a round with this mean; `noise` is the deviation in one message, of a component
        whose scale is the clip."""
        s, kept = self.of(state), self.memory
        variance = (noise * s / self.clip) ** 2 / answers
        moment = kept * state.method.moment + (1 - kept) * mean * mean
        return History(moment, kept * state.method.noise_part + (1 - kept) * variance, self.shape(s))

    def spread(self, state: State) -> float:
        """Root mean square of the scales, in units of the clip: at most 1, the gain over plain noise squared."""
        return math.sqrt(float((self.of(state).double() / self.clip).square().mean()))

    def shape(self, scales: Tensor) -> Tensor:
        """Return the root mean square of scales in units of the clip, and their 5, 50 and 95 % quantiles."""
        s = scales.double() / self.clip
        some = torch.quantile(s[:: max(1, len(s) // 10_000)], s.new_tensor([0.05, 0.5, 0.95]))
        return torch.cat([s.square().mean().sqrt()[None], some])


def decided(state: State) -> dict[str, Any]:
    rms, *quantiles = state.method.used.tolist()
    return {"scale_rms": rms, "scale_quantiles": quantiles}


def explain(rounds: list[dict[str, Any]]) -> list[str]:
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
