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

import torch
from torch import Tensor

from sordino.core.types import Rows, State
from sordino.methods.base import Plan
from sordino.methods.fedsdp import UNITS, Kept, noise_for

KEPT = 3  # what a client keeps: units spent, participations, lost rounds that it has counted
MARGIN = 1.0  # standard deviations beyond the expected participations that are provided for
TOLD = 7  # what a row says, all of it public: 1, its client, budget spent now and left, multiplier, std, 4th cumulant

__all__ = ["KEPT", "TOLD", "UNITS", "Kept", "allow", "columns", "figures", "grant", "heard", "kept", "noise_for"]


def likely(round: int, plan: Plan) -> float:
    """Participations from this round on, this one included, that a client is given to expect: at least 1."""
    after = plan.rounds - round - 1
    if after <= 0:
        return 1.0
    heard = plan.share * (1 - sum(plan.stragglers.dropout) / 2)
    return min(1.0 + after, 1 + heard * after + MARGIN * math.sqrt(after * heard * (1 - heard)))


def grant(left: int, count: int, round: int, plan: Plan) -> int:
    """Of the units left, for a client that has taken part so often before this round."""
    return math.floor(left / min(float(max(1, plan.participations - count)), likely(round, plan)))


def allow(before: Kept, state: State, plan: Plan) -> tuple[int, Kept]:
    """Units that a participation in this round gets, and what its client keeps then."""
    spent, count, counted = before
    lost = max(0, state.round - int(state.extra["merged"]))
    for back in range(lost - counted, 0, -1):
        spent += grant(UNITS - spent, count, state.round - back, plan)
        count += 1
    units = grant(UNITS - spent, count, state.round, plan)
    return units, (spent + units, count + 1, max(lost, counted))


def most(round: int, plan: Plan) -> int:
    """Units that no participation in this round exceeds, whatever its client's history: left <= UNITS (P - count) / P
    up to one unit of rounding a participation, where P participations are allowed."""
    even = UNITS / min(float(plan.participations), likely(round, plan))
    return min(UNITS, math.ceil(even) + plan.participations)


def kept(values: Tensor) -> Kept:
    spent, count, counted = (int(v) for v in values)
    return spent, count, counted


def columns(
    ids: Sequence[int],
    shares: Sequence[tuple[float, float]],
    multipliers: Sequence[float],
    stds: Sequence[float],
    fourths: Sequence[float],
    like: Rows,
) -> Rows:
    """Behind a message [clients, TOLD]. A row may be scaled on its way, all of it by one number, so noise is told in
    figures that scale alike: a standard deviation and the fourth root of the fourth cumulant."""
    parts = zip(ids, shares, multipliers, stds, fourths, strict=True)
    told = [[1.0, float(i), spent, left, z, std, fourth**0.25] for i, (spent, left), z, std, fourth in parts]
    return torch.tensor(told, dtype=like.dtype, device=like.device).reshape(-1, TOLD)


def heard(told: Rows) -> Tensor:
    """For the record, of every row: client, budget spent now and left, multiplier, standard deviation [clients, 5]."""
    rows = told.double().cpu()
    rows = rows[rows[:, 0] > 0]
    return rows[:, 1:6] / rows[:, :1]  # whatever an answer counts, what it says stays


def noise_of_mean(told: Rows, answers: float) -> tuple[float, float]:
    """Of the sum of the rows over `answers`: the variance of its noise in a coordinate, and its excess kurtosis."""
    rows = told.double()
    variance, fourth = float((rows[:, 5] ** 2).sum()), float((rows[:, 6] ** 4).sum())
    return variance / answers**2, fourth / variance**2 if variance > 0 else 0.0


def figures(each: Tensor) -> dict[str, Any]:
    """What `heard` found, for the record."""
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
