"""Server side of UDP-FL beyond the mean: the model that clients with smaller budgets are pulled towards, and
intermediate models on low-loss paths (method.py). All of it is post-processing of released messages."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sordino.algorithms.base import Algorithm
from sordino.contract.method import Plan, Site
from sordino.core import check
from sordino.core.errors import SpecError
from sordino.core.message import Message
from sordino.core.types import Rows, State, Vector
from sordino.methods.udp_fl import low_loss_path

LEAST = 1e-3  # smallest denominator of a ratio, which noise may push below zero


@dataclass(frozen=True)
class Guide:
    """The options of the pull and of the path, and the server's computations for them."""

    penalty: bool
    path: str
    path_steps: int
    path_lr: float
    path_pairs: int

    def __post_init__(self) -> None:
        check.one_of(("none", "pairs", *low_loss_path.CURVES), path=self.path)
        check.non_negative(path_steps=self.path_steps)
        check.positive(path_lr=self.path_lr)
        check.count(path_pairs=self.path_pairs)

    @property
    def curved(self) -> bool:
        """Whether paths are optimised on data that the server holds."""
        return self.path in low_loss_path.CURVES

    def pulls(self, plan: Plan) -> bool:
        """Return whether clients are pulled: `penalty` is set and their budgets differ."""
        return self.penalty and len(set(plan.multipliers)) > 1

    def start(self, state: State, plan: Plan) -> Vector | None:
        """Return w_max before the first round if clients are pulled, else None; refuse a path without public data."""
        if self.curved and plan.public is None:
            raise SpecError(
                f"path = {self.path} is optimised on data that the server may use: set server_data (a share of the "
                "training records that count as public), or path = pairs."
            )
        return state.params.clone() if self.pulls(plan) else None

    def pull(self, state: State, site: Site, strength: dict[float, float], most: float | None = None) -> Algorithm:
        """Return the plan's algorithm with a pull of each client towards w_max.

        Args:
            state: the state at the start of the round.
            site: the clients.
            strength: lambda_k for each noise multiplier.
            most: the largest strength; None: unlimited.
        """
        goal: Tensor = state.method.w_max
        each = goal.new_tensor([strength[site.plan.multipliers[int(i)]] for i in site.rng.ids])
        held = (each if most is None else each.clamp_max(most))[:, None]
        return pulled(site.plan.algorithm, lambda weights: held * (weights - goal))

    def fields(self, site: Site) -> dict[str, Tensor]:
        """Return the public field that the server needs: whether a client has the largest budget [clients]."""
        plan = site.plan
        if not self.pulls(plan):
            return {}
        least = min(plan.multipliers)
        top = [plan.multipliers[int(i)] <= least for i in site.rng.ids]
        return {"top": torch.tensor(top, dtype=torch.bool, device=site.data.x.device)}

    def guided(self, state: State, seen: Message, mean: Vector, plan: Plan) -> tuple[Vector, dict[str, Any]]:
        """Return the mean message moved to the optimised intermediate models, and the changes of the server's state.

        These are `w_max`, and `path`, the losses along a path and along the straight line."""
        changes: dict[str, Any] = {}
        if seen.weight is None or not (self.pulls(plan) or self.curved):
            return mean, changes
        weight = seen.weight[:, None]
        moves = _moves(seen["update"] * weight, weight, len(state.params), plan)
        if self.pulls(plan):
            top = weight * seen["top"][:, None]
            if float(top.sum()) > 0:
                changes["w_max"] = state.params + (top * moves).sum(dim=0) / top.sum()
        if self.curved:
            mean, more = self._through_path(state, mean, moves, plan)
            changes |= more
        return mean, changes

    def _through_path(self, state: State, mean: Vector, moves: Rows, plan: Plan) -> tuple[Vector, dict[str, Any]]:
        if plan.public is None:
            raise SpecError(f"path = {self.path} needs server_data.")
        if plan.dice is None:
            raise ValueError("paths are looked for while the server merges")
        how = (self.path_steps, self.path_lr, self.path_pairs, plan.dice)
        optimised = low_loss_path.optimise(self.path, state.params + moves, plan.public, *how)
        if optimised is None:
            return mean, {}
        share = mean[-1:].clamp_min(LEAST) if "losses" in plan.algorithm.needs else 1.0  # denominator of a ratio
        moved = torch.cat([mean[: len(optimised.shift)] + share * optimised.shift, mean[len(optimised.shift) :]])
        return moved, {"path": torch.stack([optimised.along, optimised.straight])}


def pulled(algorithm: Algorithm, pull: Callable[[Tensor], Rows]) -> Algorithm:
    """Return the same algorithm with `pull(weights)` added to every corrected gradient."""
    variant = copy.copy(algorithm)

    def correct(gradient: Rows, weights: Tensor, *rest: Any) -> Rows:
        return algorithm.correct(gradient, weights, *rest) + pull(weights)

    object.__setattr__(variant, "correct", correct)
    return variant


def _moves(rows: Rows, weight: Rows, dim: int, plan: Plan) -> Rows:
    """Return each client's change of the weights [clients, dim], from weighted messages (which may be a ratio)."""
    under = rows[:, -1:] if "losses" in plan.algorithm.needs else weight
    return rows[:, :dim] / under.clamp_min(1e-12)
