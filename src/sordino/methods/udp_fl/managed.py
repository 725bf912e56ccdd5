"""Noise multipliers managed round by round: each client's remaining budget, and the share that a participation gets.

In Feng et al. (2025), Section 3.3, the Harmonizer adjusts the multiplier "throughout training by computing Renyi
divergence at each iteration to ensure privacy loss remains within the set bounds". Here the bound is rho, in
D_a <= rho a, the privacy loss of the whole run, and each client keeps its own filter: a participation is granted
    rho_t = (remaining rho) / n,    n = min(participations still allowed, rounds left, likely participations left).
The likely participations are q (rounds left - 1) + 1 plus one standard deviation, where q is the public share of the
clients whose messages arrive in a round. A client that was not sampled, dropped out or joined late has more budget left
for each later round, and adds less noise. If all clients take part in every round, n is the number of rounds left, and
every round gets the same budget.

All of this follows from public numbers: the plan, the round, and how often the client took part. Grants are counted in
whole units of 2^-24 rho, rounded against the client, so that the sum is exact and never exceeds the total. A client
that has no budget left sends zeros. A round that was paid for and lost in a crash (secure mode) may have been seen:
every client counts such rounds as if it had taken part in all of them, as late as they can have been. No history with
fewer or earlier lost rounds leaves less budget: n falls with the round and with the count, and so do the units left
after a grant."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sordino.contract.method import Plan
from sordino.core.message import Message
from sordino.core.types import State
from sordino.methods._budget_units import UNITS, Kept, counters, noise_for

KEPT = 3  # numbers in a client's filter: units spent, participations, lost rounds counted so far
MARGIN = 1.0  # standard deviations added to the expected number of participations

__all__ = ["KEPT", "UNITS", "Kept", "allow", "counters", "figures", "grant", "heard", "least", "noise_for", "remarks"]


def likely(round: int, plan: Plan) -> float:
    """Return the likely number of a client's participations from this round on, including this one: at least 1."""
    after = plan.rounds - round - 1
    if after <= 0:
        return 1.0
    heard = plan.share * (1 - sum(plan.stragglers.dropout) / 2)
    return min(1.0 + after, 1 + heard * after + MARGIN * math.sqrt(after * heard * (1 - heard)))


def grant(left: int, count: int, round: int, plan: Plan) -> int:
    """Return the units granted in this round to a client with `left` units and `count` earlier participations."""
    return math.floor(left / min(float(max(1, plan.participations - count)), likely(round, plan)))


def allow(before: Kept, state: State, plan: Plan) -> tuple[int, Kept]:
    """Return the units granted to a participation in this round, and the client's filter afterwards."""
    spent, count, counted = before
    lost = max(0, state.round - state.method.merged)
    for back in range(lost - counted, 0, -1):
        spent += grant(UNITS - spent, count, state.round - back, plan)
        count += 1
    units = grant(UNITS - spent, count, state.round, plan)
    return units, (spent + units, count + 1, max(lost, counted))


def most(round: int, plan: Plan) -> int:
    """Return an upper bound on the units of any participation in this round, whatever the client's history.

    If P participations are allowed, left <= UNITS (P - count) / P, up to one unit of rounding per participation."""
    even = UNITS / min(float(plan.participations), likely(round, plan))
    return min(UNITS, math.ceil(even) + plan.participations)


def least(round: int, plan: Plan, releases: int) -> float:
    """Return a lower bound on the noise multiplier per release of any participation in this round."""
    return noise_for(most(round, plan), releases, plan.z)


# --- what clients report about their noise, all of it public


def remarks(
    records: Sequence[int],
    shares: Sequence[tuple[float, float]],
    multipliers: Sequence[float],
    stds: Sequence[float],
    fourths: Sequence[float],
    device: torch.device,
) -> dict[str, Tensor]:
    """Return the message fields [clients] in which clients report their noise.

    Args:
        records: each client's number of records, which weights its row.
        shares: the shares of each client's budget that it spends now and that it has left.
        multipliers: each client's noise multiplier; 0 if it sends zeros.
        stds: the standard deviation of the noise in a coordinate of each weighted row.
        fourths: the fourth cumulant of the same noise.
        device: the device of the fields.
    """
    spent, left = ([share[k] for share in shares] for k in (0, 1))
    numbers = {"spent": spent, "left": left, "multiplier": multipliers, "std": stds, "fourth": fourths}
    fields = {name: torch.tensor(value, dtype=torch.float64, device=device) for name, value in numbers.items()}
    return fields | {"records": torch.tensor(records, dtype=torch.int64, device=device)}


def heard(seen: Message) -> Tensor:
    """Return the recorded figures of every row [clients, 5]: client, share of its budget spent now, share left, noise
    multiplier, standard deviation. The weighting of stragglers' answers is not included."""
    ids = torch.from_numpy(seen.ids if seen.ids is not None else np.full(len(seen), -1))
    return torch.stack([ids.double(), *(seen[k].cpu() for k in ("spent", "left", "multiplier", "std"))], dim=1)


def noise_of_mean(seen: Message, answers: float, mean_client: float) -> tuple[float, float]:
    """Return the variance and the excess kurtosis of the noise in a coordinate of the weighted sum over `answers`.

    Stragglers' rows are not weighted by their records alone, and their noise is weighted in the same way."""
    if seen.weight is None or not len(seen):
        return 0.0, 0.0
    usual = seen["records"].to(seen.weight.dtype) / mean_client
    counts = (seen.weight / usual.clamp_min(1e-12)).double()
    variance, fourth = float(((counts * seen["std"]) ** 2).sum()), float((counts**4 * seen["fourth"]).sum())
    return variance / answers**2, fourth / variance**2 if variance > 0 else 0.0


def figures(each: Tensor) -> dict[str, Any]:
    """Return a summary of the figures from `heard`, for the run's record."""
    loud, left = each[each[:, 3] > 0, 3], each[:, 2]
    out: dict[str, Any] = {
        "heard": len(each),
        "silent": len(each) - len(loud),  # without budget left
        "multiplier": _spread(loud),  # per step: least, mean and largest of the clients that sent noise
        "spent": float(each[:, 1].mean()) if len(each) else 0.0,  # mean share of a client's budget spent in this round
        "left": _spread(left),
    }
    out["clients"] = {
        str(round(i)): {
            name: float(f"{x:.6g}") for name, x in zip(("spent", "left", "noise_multiplier"), rest, strict=True)
        }
        for i, *rest in each[:, :4].tolist()
    }
    return out


def _spread(values: Tensor) -> list[float]:
    """Return the minimum, mean and maximum; zeros if there are no values."""
    return [float(values.min()), float(values.mean()), float(values.max())] if len(values) else [0.0, 0.0, 0.0]
