"""Noise multipliers managed round by round: what is left of each client's budget, and what a participation gets of it.

Feng et al. (2025), Section 3.3, have the Harmonizer adjust the multiplier "throughout training by computing Renyi
divergence at each iteration to ensure privacy loss remains within the set bounds". Here the bound is rho, in
D_a <= rho a, the privacy loss of the whole run, and each client keeps a filter of its own: a participation is given
    rho_t = (what is left) / n,    n = min(participations it may still have, rounds left, likely participations left),
with the likely ones q (rounds left - 1) + 1 and a standard deviation more, q being the public share of the clients that
a round hears. Who was not drawn, dropped out or joined late has more left for each later round, and adds less noise.
Where all take part in every round n is the rounds left, and every round gets the same.

All of it follows from public numbers: the plan, the round, how often the client took part. What is given away is
counted in whole 2^-24ths of rho, rounded against the client, so that the sum is exact: it never exceeds the whole. A
client that has nothing left sends zeros. A round that was paid for and lost in a crash (secure mode) may have been
seen: every client counts such rounds as if it had been in all of them, as late as they can have been. No history with
fewer or earlier ones leaves less: n falls with the round and with the count, and so do the units left after a grant."""

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
from sordino.methods.fedsdp.method import UNITS, Kept, noise_for

KEPT = 3  # what a client keeps: units spent, participations, lost rounds that it has counted
MARGIN = 1.0  # standard deviations beyond the expected participations that are provided for

__all__ = ["KEPT", "UNITS", "Kept", "allow", "figures", "grant", "heard", "kept", "least", "noise_for", "remarks"]


def likely(round: int, plan: Plan) -> float:
    """Return the participations that a client is given to expect from this round on, this one included: at least 1."""
    after = plan.rounds - round - 1
    if after <= 0:
        return 1.0
    heard = plan.share * (1 - sum(plan.stragglers.dropout) / 2)
    return min(1.0 + after, 1 + heard * after + MARGIN * math.sqrt(after * heard * (1 - heard)))


def grant(left: int, count: int, round: int, plan: Plan) -> int:
    """Return how many of the units left are for this round, of a client that has taken part so often before it."""
    return math.floor(left / min(float(max(1, plan.participations - count)), likely(round, plan)))


def allow(before: Kept, state: State, plan: Plan) -> tuple[int, Kept]:
    """Return the units that a participation in this round gets, and what its client keeps then."""
    spent, count, counted = before
    lost = max(0, state.round - state.method.merged)
    for back in range(lost - counted, 0, -1):
        spent += grant(UNITS - spent, count, state.round - back, plan)
        count += 1
    units = grant(UNITS - spent, count, state.round, plan)
    return units, (spent + units, count + 1, max(lost, counted))


def most(round: int, plan: Plan) -> int:
    """Return units that no participation in this round exceeds, whatever its client's history.

    Where P participations are allowed, left <= UNITS (P - count) / P, up to one unit of rounding a participation."""
    even = UNITS / min(float(plan.participations), likely(round, plan))
    return min(UNITS, math.ceil(even) + plan.participations)


def least(round: int, plan: Plan, releases: int) -> float:
    """Return the noise multiplier of a release that no participation in this round is below."""
    return noise_for(most(round, plan), releases, plan.z)


def kept(values: Tensor) -> Kept:
    spent, count, counted = (int(v) for v in values)
    return spent, count, counted


# --- what clients say of their noise, all of it public


def remarks(
    records: Sequence[int],
    shares: Sequence[tuple[float, float]],
    multipliers: Sequence[float],
    stds: Sequence[float],
    fourths: Sequence[float],
    device: torch.device,
) -> dict[str, Tensor]:
    """Return fields of a message [clients]: a client's records, by which its row weighs; the shares of its budget that
    it spends now and has left; its noise multiplier (0: it is silent); and of the noise in a coordinate of its weighted
    row the standard deviation and the fourth cumulant."""
    spent, left = ([share[k] for share in shares] for k in (0, 1))
    numbers = {"spent": spent, "left": left, "multiplier": multipliers, "std": stds, "fourth": fourths}
    found = {name: torch.tensor(value, dtype=torch.float64, device=device) for name, value in numbers.items()}
    return found | {"records": torch.tensor(records, dtype=torch.int64, device=device)}


def heard(seen: Message) -> Tensor:
    """Return what the record keeps of every row: client, budget spent now and left, multiplier, standard deviation
    [clients, 5]. How much an answer counts (stragglers) is not in it."""
    ids = torch.from_numpy(seen.ids if seen.ids is not None else np.full(len(seen), -1))
    return torch.stack([ids.double(), *(seen[k].cpu() for k in ("spent", "left", "multiplier", "std"))], dim=1)


def noise_of_mean(seen: Message, answers: float, mean_client: float) -> tuple[float, float]:
    """Return the variance and the excess kurtosis of the noise in a coordinate of the weighted sum over `answers`.

    Stragglers' rows count otherwise than by their records, and so does their noise."""
    if seen.weight is None or not len(seen):
        return 0.0, 0.0
    usual = seen["records"].to(seen.weight.dtype) / mean_client
    counts = (seen.weight / usual.clamp_min(1e-12)).double()
    variance, fourth = float(((counts * seen["std"]) ** 2).sum()), float((counts**4 * seen["fourth"]).sum())
    return variance / answers**2, fourth / variance**2 if variance > 0 else 0.0


def figures(each: Tensor) -> dict[str, Any]:
    """Return what `heard` found, for the record."""
    loud, left = each[each[:, 3] > 0, 3], each[:, 2]
    out: dict[str, Any] = {
        "heard": len(each),
        "silent": len(each) - len(loud),  # had nothing left
        "multiplier": _spread(loud),  # of a step: least, mean and most of the clients that were heard
        "spent": float(each[:, 1].mean()) if len(each) else 0.0,  # of a client's own budget, by this round; the mean
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
    return [float(values.min()), float(values.mean()), float(values.max())] if len(values) else [0.0, 0.0, 0.0]
