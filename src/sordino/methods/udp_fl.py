"""UDP-FL, sound: local DP-SGD with the noise that the Harmonizer picks.  Feng et al. (2025), "Harmonizing Differential
Privacy Mechanisms for Federated Learning: Boosting Accuracy and Convergence", Section 3 and Algorithm 1.

Protects a record from the server (and so from everyone else). Noise is Gaussian, L2-Laplace, L1-Laplace or an L1-ball
staircase, records' gradients are clipped in the norm that it is made for, and its scale z is found on the accountant
for the total (epsilon, delta). `mechanism = auto` leaves the choice to the Harmonizer (harmonizer.py), which sees
public numbers only; the choice and its reasons stand in the record. It may choose again every `reselect` rounds, by
what was released; choose for every kind of clients, where `profile`, `resources` and `data` are mixtures; and manage
the noise multipliers round by round (`managed`). _harmonised.py says why each of these is sound, and what it costs.

Clients with budgets of their own (key `budgets`) get scales of their own, all of one mechanism. With `penalty` those
with less than the largest budget are pulled to what the clients with the largest released last:
w <- w - eta (g + lambda_k (w - w_max)), lambda_k = (eps_max - eps_k) / eps_max (Section 3.3), never by more than the
whole way; w_max is the mean of their noisy messages, so this is post-processing.

`path`: the global model through intermediate models on low-loss paths between client models (Section 3.2, step 4;
low_loss_path.py), optimised on data the server holds (key `server_data`). `pairs`, averages alone, is the mean.

Differs from the paper: no private statistic is looked at, the vector case is accounted as what it is, batches are
Poisson. As printed: udp_fl_paper.py."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from sordino.algorithms.base import Algorithm
from sordino.core import check
from sordino.core.errors import SpecError
from sordino.core.rng import RowStream, Stream
from sordino.core.types import Batch, Model, Rows, State, Vector
from sordino.core.vector import Layout
from sordino.methods import _managed, _udp_words, harmonizer, low_loss_path
from sordino.methods._harmonised import Harmonised
from sordino.methods.base import Plan
from sordino.privacy.account import epsilon
from sordino.privacy.accountants import basic, pld
from sordino.privacy.events import Event, Repeated

__all__ = ["UdpFl"]

LEAST = 1e-3  # noise may push a denominator below zero


@dataclass(frozen=True)
class UdpFl(Harmonised):
    penalty: bool = True  # pull clients with smaller budgets to the models of those with the largest
    path: str = "none"  # intermediate models: none, pairs, polygon, bezier or tuned (no path, to compare)
    path_steps: int = 10  # SGD steps on public data that optimise a path
    path_lr: float = 0.1  # their learning rate
    path_pairs: int = 4  # paths at most

    algorithms: ClassVar[tuple[str, ...]] = (
        "fedavg", "fedsgd", "fedavgm", "fedopt", "fedprox", "scaffold", "q-fedavg",
    )  # fmt: skip

    def __post_init__(self) -> None:
        super().__post_init__()
        check.one_of(("none", "pairs", *low_loss_path.CURVES), path=self.path)
        check.non_negative(path_steps=self.path_steps)
        check.positive(path_lr=self.path_lr)
        check.count(path_pairs=self.path_pairs)

    def uses_public(self) -> bool:
        return self.path in low_loss_path.CURVES

    def begin(self, state: State, layout: Layout, plan: Plan) -> State:
        if self.path in low_loss_path.CURVES and plan.public is None:
            raise SpecError(
                f"path = {self.path} is optimised on data that the server may use: set server_data (a share of the "
                "training records that count as public), or path = pairs."
            )
        if self.mechanism == "staircase":
            for z in (self._even(plan),) if self.managed else set(plan.multipliers or (plan.z,)):
                harmonizer.ball(1 / z, plan.dim).shells(plan.dim)  # refuses what cannot be drawn
        state = plan.algorithm.begin(state, layout)
        extra: dict[str, Tensor] = {}
        if self.reselect:
            extra["mechanism"] = self._indices(plan)
        if self.managed:
            extra |= {"merged": torch.tensor(0), "reference": torch.zeros(_managed.KEPT, dtype=torch.int64)}
        if self._pulls(plan):
            extra["w_max"] = state.params.clone()
        return replace(state, extra=state.extra | extra)

    # --- clients

    def _alike(
        self, state: State, data: Batch, own: Rows, model: Model, plan: Plan, rng: RowStream
    ) -> tuple[Rows, Rows]:
        """With the pull to those who have the largest budget."""
        within = plan
        if self._pulls(plan):
            strength = self.strengths(plan)
            own_part = [strength[plan.multipliers[int(i)]] for i in rng.ids]
            most, goal = 1 / plan.now(state).learning_rate, state.extra["w_max"]  # at most the whole way
            pull = torch.tensor(own_part, dtype=goal.dtype, device=goal.device).clamp_max(most)[:, None]
            within = replace(plan, algorithm=pulled(plan.algorithm, lambda w: pull * (w - goal)))
        return super()._alike(state, data, own, model, within, rng)

    def _columns(self, data: Batch, rows: Rows, plan: Plan, rng: RowStream) -> list[Rows]:
        """Public columns that the server needs: a client's weight in the mean, and that of those with most budget."""
        if not self._pulls(plan) and self.path not in low_loss_path.CURVES:
            return []
        units = [len(g) for g in data.groups or ()] if plan.unit == "user" else list(data.sizes)
        weight = torch.tensor(units, dtype=rows.dtype, device=rows.device)[:, None] / plan.mean_client
        if not self._pulls(plan):
            return [weight, 0 * weight]
        least = min(plan.multipliers)
        top = torch.tensor([plan.multipliers[int(i)] <= least for i in rng.ids], device=rows.device)[:, None]
        return [weight, weight * top.to(rows.dtype)]

    def _pulls(self, plan: Plan) -> bool:
        return self.penalty and len(set(plan.multipliers)) > 1

    def strengths(self, plan: Plan) -> dict[float, float]:
        """By scale: lambda_k = (eps_max - eps_k) / eps_max, eps_k being what that scale costs at the run's delta."""
        found = {z: epsilon(self._whole(plan, z), plan.delta, pld.ROUGH) for z in sorted(set(plan.multipliers))}
        most = max(found.values())
        return {z: (most - e) / most for z, e in found.items()}

    def _whole(self, plan: Plan, z: float) -> Event:
        """All that a client with this scale releases to the server."""
        (cost,) = self.costs(replace(plan, noise_multiplier=z))
        return cost.event if self.managed else Repeated(cost.event, plan.participations * cost.copies)

    # --- server

    def merge(self, state: State, rows: Rows, plan: Plan, rng: Stream) -> State:
        extra: dict[str, Tensor] = {}
        answers, dim = plan.expected_answers(state.round), len(state.params)
        told = None
        if self._tells():
            rows, told = rows[:, : -_managed.TOLD], rows[:, -_managed.TOLD :]
            extra["told"] = _managed.heard(told)
        if self.managed:
            _, reference = _managed.allow(_managed.kept(state.extra["reference"]), state, plan)
            extra |= {"merged": state.extra["merged"] + 1, "reference": torch.tensor(reference)}
        columns = self._pulls(plan) or self.path in low_loss_path.CURVES
        rows, weight, top = (rows[:, :-2], rows[:, -2:-1], rows[:, -1:]) if columns else (rows, None, None)
        mean = rows.sum(dim=0) / answers
        if self.reselect:
            extra["used"] = state.extra["mechanism"].clone()
            if (state.round + 1) % self.reselect == 0:
                extra |= self._look(state, mean[:dim], told, plan)
        if weight is not None and top is not None:
            moves = _moves(rows, weight, dim, plan)
            if self._pulls(plan) and float(top.sum()) > 0:
                extra["w_max"] = state.params + (top * moves).sum(dim=0) / top.sum()
            if self.path in low_loss_path.CURVES:
                mean, more = self._through_path(state, mean, moves, plan, rng.at("path"))
                extra |= more
        after = plan.algorithm.update(state, mean, plan.server(answers / plan.population))
        return replace(after, extra=after.extra | extra)

    def _through_path(
        self, state: State, mean: Vector, moves: Rows, plan: Plan, rng: Stream
    ) -> tuple[Vector, dict[str, Tensor]]:
        """The mean message with its move to the optimised intermediate models, and the losses along a path."""
        if plan.public is None:
            raise SpecError(f"path = {self.path} needs server_data.")
        models = state.params + moves
        how = (self.path_steps, self.path_lr, self.path_pairs, rng)
        found = low_loss_path.optimise(self.path, models, plan.public, *how)
        if found is None:
            return mean, {}
        share = mean[-1:].clamp_min(LEAST) if "losses" in plan.algorithm.needs else 1.0  # of a ratio: its denominator
        moved = torch.cat([mean[: len(found.shift)] + share * found.shift, mean[len(found.shift) :]])
        return moved, {"path": torch.stack([found.along, found.straight])}

    def _look(self, state: State, update: Vector, told: Rows | None, plan: Plan) -> dict[str, Tensor]:
        """Choose again, by the released mean update."""
        answers, name = plan.expected_answers(state.round), self.noise_of(state, plan)
        if told is None:
            variance = (self.noise(state, plan) or 0.0) ** 2 / answers
            excess = 0.0 if name == "gaussian" else 3.0 / (answers * plan.local.count(plan.smallest_client))
        else:
            variance, excess = _managed.noise_of_mean(told, answers)
        look = harmonizer.seen(update, variance, excess)
        tail = math.nan if look.tail is None else look.tail
        figures = [look.signal, look.kurtosis, float(look.visible), look.density, tail]
        return {"mechanism": self._indices(plan, look.data), "seen": torch.tensor(figures, dtype=torch.float64)}

    # --- the record

    def noise(self, state: State, plan: Plan) -> float | None:
        """Managed: of every client, where all take part in every round and so have spent the same."""
        if self.managed and not plan.everyone:
            return None
        own = plan.multipliers or (plan.z,)
        mean = z = sum(own) / len(own)
        if self.managed:
            units, _ = _managed.allow(_managed.kept(state.extra["reference"]), state, plan)
            z = _managed.noise_for(units, self._releases(plan), mean)
        plain = super().noise(state, plan)  # of Gaussian noise with that multiplier
        if plain is None or not z:
            return None
        squares = [
            n * harmonizer.deviation(self.noise_of(state, plan, k), z, plan.dim) ** 2
            for k, n in enumerate(self.kinds(plan).counts())
        ]
        return plain / mean * math.sqrt(sum(squares) / plan.population)

    def decided(self, state: State, plan: Plan) -> dict[str, Any]:
        looked = self.reselect > 0 and state.round > 0 and state.round % self.reselect == 0
        out: dict[str, Any] = {"noise_multiplier": plan.z}
        if plan.multipliers:  # plan.z is that of the run's epsilon; these are of the clients' budgets
            out["multipliers"] = {f"{z:.6g}": plan.multipliers.count(z) for z in sorted(set(plan.multipliers))}
        look = None
        if looked:
            signal, kurtosis, visible, density, tail = state.extra["seen"].tolist()
            look = harmonizer.Seen(signal, kurtosis, bool(visible), density, None if math.isnan(tail) else tail)
            out["seen"] = vars(look)
        each = [self._of_kind(state, plan, k, look) for k in range(len(self.kinds(plan).kinds))]
        if self.mixed:
            dealt = self.kinds(plan)
            every = zip(dealt.kinds, dealt.counts(), each, strict=True)
            out["kinds"] = [vars(kind) | {"clients": n} | found for kind, n, found in every]
        else:
            out |= each[0]
        out |= self._spent(state, plan)
        if self._tells() and "told" in state.extra:
            told = state.extra["told"]
            out["std"] = float(told[:, 4].mean()) if len(told) else 0.0
            if self.managed:
                out |= _managed.figures(told) | {"even_multiplier": self._even(plan)}
        if self._pulls(plan) and state.round <= 1:
            out["penalty"] = {f"{z:.6g}": s for z, s in self.strengths(plan).items()}
        if "path" in state.extra:
            out["path_loss"], out["straight_loss"] = state.extra["path"].tolist()
        return out

    def _of_kind(self, state: State, plan: Plan, kind: int, look: harmonizer.Seen | None) -> dict[str, Any]:
        """The noise of a kind of clients, the bound that it covers, and why it was chosen, where it was chosen now."""
        used = state.extra.get("used")
        name = self.noise_of(state, plan, kind)
        if used is not None and self.mechanism == "auto":
            name = harmonizer.MECHANISMS[int(used.reshape(-1)[kind])]
        bound, z = self.clip * harmonizer.bound(name, plan.dim), self._even(plan) if self.managed else plan.z
        out: dict[str, Any] = {
            "mechanism": name, "scale": z * bound, "sensitivity": bound, "norm": harmonizer.NORMS[name]
        }  # fmt: skip
        if self.mechanism == "auto" and state.round <= 1:
            out["choice"] = self.chosen(plan, kind=kind).to_json()
        if look is not None:
            out["next"] = self.chosen(plan, look.data, kind).to_json()
        return out

    def _even(self, plan: Plan) -> float:
        """Managed: the multiplier of a step if all participations cost the same."""
        own = plan.multipliers or (plan.z,)
        return sum(own) / len(own) * math.sqrt(self._releases(plan) * plan.participations)

    def _spent(self, state: State, plan: Plan) -> dict[str, float]:
        """Renyi divergence of the rounds so far and of all: for a client that takes part in every one or, managed, on
        average over those that were heard last."""
        whole = self._whole(plan, plan.z)
        found = harmonizer.renyi(whole, plan.delta)
        if found is None:
            return {}
        copies = plan.clients_per_user if plan.unit == "user" else 1  # of a user's data, in so many clients
        done = min(state.round, plan.participations)
        share = done / plan.participations
        if self.managed and "told" in state.extra:
            left = state.extra["told"][:, 2]
            if not len(left):  # nobody was heard in this round
                return {}
            share = 1 - float(left.mean())
        out = {"order": found[0], "renyi": share * found[1], "renyi_total": found[1]}
        if all(plan.local.rate(n) >= 1 for n in plan.sizes):  # D_a <= rho a for every order
            releases = self._releases(plan) * plan.participations
            rho = copies * (1 if self.managed else releases) / (2 * plan.z**2)
            out |= {"rho": share * rho, "rho_total": rho}
        if self.pure and self.batch_sampling == "poisson":
            # managed: the 1/z_t of n releases add up to sqrt(n sum 1/z_t^2) at most (Cauchy and Schwarz)
            most = (
                copies * math.sqrt(self._releases(plan) * done) / plan.z
                if self.managed
                else share * basic.epsilon(whole, plan.delta)
            )
            out["epsilon_at_delta_0"] = most
        return out

    def explain(self, rounds: list[dict[str, Any]]) -> list[str]:
        return _udp_words.explain(rounds)


def pulled(algorithm: Algorithm, pull: Callable[[Tensor], Rows]) -> Algorithm:
    """The same algorithm, to whose every direction a pull at the weights is added."""
    found = copy.copy(algorithm)

    def correct(gradient: Rows, weights: Tensor, *rest: Any) -> Rows:
        return algorithm.correct(gradient, weights, *rest) + pull(weights)

    object.__setattr__(found, "correct", correct)
    return found


def _moves(rows: Rows, weight: Rows, dim: int, plan: Plan) -> Rows:
    """What each client's weights moved by [clients, dim], from messages that are weighted (and may be a ratio)."""
    under = rows[:, -1:] if "losses" in plan.algorithm.needs else weight
    return rows[:, :dim] / under.clamp_min(1e-12)
