"""UDP-FL, sound: local DP-SGD with the noise that the Harmonizer picks.  Feng et al. (2025), "Harmonizing Differential
Privacy Mechanisms for Federated Learning: Boosting Accuracy and Convergence", Section 3 and Algorithm 1.

Protects a record from the server (and so from everyone else). Sound, for every mechanism in its own geometry: records'
gradients are clipped to L2 norm C, their sum gets (C the bound, d dimensions)
    gaussian     N(0, (z C)^2) a coordinate;
    l2-laplace   Lap(z C) a coordinate: 1/(2 z^2)-zCDP in every dimension (privacy/mechanisms/laplace.py);
    laplace      Lap(z sqrt(d) C) a coordinate: |g|_1 <= sqrt(d) |g|_2, so an L1 bound sqrt(d) C holds. Against a clip
                 in L1 itself this costs dense gradients a factor of about sqrt(pi / 2) = 1.25;
    staircase    noise of density e^{-level / z} on L1 balls, step sqrt(d) C: 1/z-DP.
The scale z is found on the accountant for the total (epsilon, delta). `mechanism = auto` leaves the choice to the
Harmonizer (harmonizer.py), which sees public numbers only; the choice and its reasons stand in the record.

Re-selection (`reselect` = every so many rounds): between rounds the Harmonizer looks at the released mean update, its
kurtosis corrected for the known noise. Sound for whatever switching, because then all mechanisms share one scale z and
are charged as a release of which rho = 1/(2 z^2) is known and nothing else. Proof. Given the transcript so far, the
next mechanism is fixed, and one step of it has D_a <= a / (2 z^2) at every order a > 1: Gaussian noise with equality;
L2-Laplace noise as said; L1-Laplace noise and the staircase are 1/z-DP, and epsilon-DP implies epsilon^2/2-zCDP (Bun
and Steinke 2016, Proposition 3.3). Renyi divergences of adaptively chosen releases add up at every order (Mironov 2017,
Proposition 1), so K steps have D_a <= K a / (2 z^2), the curve of K Gaussians, whatever was chosen. Drawn batches would
need more than rho, so batches must be full.

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
from sordino.methods import harmonizer, low_loss_path
from sordino.methods.base import Plan
from sordino.methods.dp_sgd import DpSgd, Groups
from sordino.privacy.account import epsilon
from sordino.privacy.accountants import basic, pld
from sordino.privacy.clip import Bounded
from sordino.privacy.events import Cost, Event, Repeated

__all__ = ["UdpFl"]

LEAST = 1e-3  # noise may push a denominator below zero


@dataclass(frozen=True)
class UdpFl(DpSgd):
    mechanism: str = "auto"  # auto (the Harmonizer picks), gaussian, l2-laplace, laplace or staircase
    profile: str = "standard"  # whose weights the Harmonizer takes: standard, medical or iot
    resources: str = "standard"  # the clients' compute: limited, standard or high
    data: str = "dense"  # what the data are like, as in the paper's Table 2: dense, sparse, complex, time-series, ...
    prior: float = 0.05  # how much the paper's Table 2 counts, 0 to 1
    pure: bool = False  # choose among mechanisms only whose every release has delta = 0
    reselect: int = 0  # rounds after which the Harmonizer chooses again; 0: never
    penalty: bool = True  # pull clients with smaller budgets to the models of those with the largest
    path: str = "none"  # intermediate models: none, pairs, polygon or bezier
    path_steps: int = 10  # SGD steps on public data that optimise a path
    path_lr: float = 0.1  # their learning rate
    path_pairs: int = 4  # paths at most

    algorithms: ClassVar[tuple[str, ...]] = (
        "fedavg", "fedsgd", "fedavgm", "fedopt", "fedprox", "scaffold", "q-fedavg",
    )  # fmt: skip
    channels: ClassVar[tuple[str, ...]] = ("direct",)
    own_noise: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check.one_of(("auto", *harmonizer.MECHANISMS), mechanism=self.mechanism)
        check.one_of(tuple(harmonizer.PROFILES), profile=self.profile)
        check.one_of(tuple(harmonizer.RESOURCES), resources=self.resources)
        check.one_of(harmonizer.DATA, data=self.data)
        check.one_of(("none", "pairs", *low_loss_path.CURVES), path=self.path)
        check.non_negative(prior=self.prior, reselect=self.reselect, path_steps=self.path_steps)
        check.positive(path_lr=self.path_lr)
        check.count(path_pairs=self.path_pairs)
        if self.prior > 1:
            raise SpecError(f"prior must lie in [0, 1], not {self.prior!r}.")
        if self.reselect and self.mechanism != "auto":
            raise SpecError(f"reselect needs mechanism = auto; {self.mechanism} was asked for.")
        if self.mechanism == "l2-laplace" and self.batch_sampling == "fixed":
            raise SpecError(
                "l2-laplace noise has no accounting for batches of a fixed size: use batch_sampling = poisson."
            )
        if self.pure and self.mechanism not in ("auto", *harmonizer.PURE):
            raise SpecError(f"pure = true, but {self.mechanism} noise has a delta: use laplace, staircase or auto.")

    # --- which noise

    def chosen(self, plan: Plan, data: str | None = None) -> harmonizer.Choice:
        """By the public plan, and what the data are declared (or were seen) to be."""
        (cost,) = super().costs(replace(plan, noise_multiplier=1.0))
        run = Repeated(cost.event, plan.participations)
        what = (self.profile, self.resources, data or self.data, float(self.prior), self.pure, self.reselect > 0)
        return harmonizer.choose(harmonizer.Setting(run, plan.dim, float(plan.epsilon), plan.delta, *what))

    def noise_of(self, state: State, plan: Plan) -> str:
        """The mechanism of the round that begins with this state."""
        if self.mechanism != "auto":
            return self.mechanism
        if self.reselect:
            return harmonizer.MECHANISMS[int(state.extra["mechanism"])]
        return self.chosen(plan).mechanism

    def costs(self, plan: Plan, round: int = 0) -> tuple[Cost, ...]:
        harmonised = self.reselect > 0
        name = "gaussian" if harmonised else self.mechanism if self.mechanism != "auto" else self.chosen(plan).mechanism
        found = super().costs(plan, round)
        return tuple(replace(c, event=harmonizer.of(c.event, name, harmonised=harmonised)) for c in found)

    def require(self, plan: Plan) -> None:
        if self.reselect and any(plan.local.rate(n) < 1 for n in plan.sizes):
            raise SpecError(
                "reselect charges every mechanism by its Renyi divergence alone, which drawn batches do not amplify: "
                "use batch_rate = 1, or reselect = 0."
            )
        super().require(plan)

    def uses_public(self) -> bool:
        return self.path in low_loss_path.CURVES

    def begin(self, state: State, layout: Layout, plan: Plan) -> State:
        if self.path in low_loss_path.CURVES and plan.public is None:
            raise SpecError(
                f"path = {self.path} is optimised on data that the server may use: set server_data (a share of the "
                "training records that count as public), or path = pairs."
            )
        state = plan.algorithm.begin(state, layout)
        extra: dict[str, Tensor] = {}
        if self.reselect:
            extra["mechanism"] = torch.tensor(harmonizer.MECHANISMS.index(self.chosen(plan).mechanism))
        if self._pulls(plan):
            extra["w_max"] = state.params.clone()
        return replace(state, extra=state.extra | extra)

    # --- clients

    def clipped(
        self, weights: Tensor, batch: Batch, model: Model, state: State, plan: Plan, seeds: list[int], groups: Groups
    ) -> Bounded:
        sums = super().clipped(weights, batch, model, state, plan, seeds, groups)
        if harmonizer.NORMS[self.noise_of(state, plan)] == 2:
            return sums
        return Bounded(sums.value, sums.bound * math.sqrt(sums.value.shape[1]), norm=1)

    def add(self, sums: Bounded, z: float | Tensor, state: State, plan: Plan, rng: RowStream) -> Rows:
        name = self.noise_of(state, plan)
        if sums.value.shape[1] > 1:  # of one number all norms are the same
            sums.require(harmonizer.NORMS[name], name)
        if name == "gaussian":
            return super().add(sums, z, state, plan, rng)
        if name != "staircase":
            return sums.value + z * sums.bound * laplace(rng, sums.value)
        return staircase(sums, z, rng)

    def train(
        self, state: State, data: Batch, own: Rows, model: Model, plan: Plan, rng: RowStream
    ) -> tuple[Rows, Rows]:
        within = plan
        if self._pulls(plan):
            strength = self.strengths(plan)
            own_part = [strength[plan.multipliers[int(i)]] for i in rng.ids]
            most, goal = 1 / plan.now(state).learning_rate, state.extra["w_max"]  # at most the whole way
            pull = torch.tensor(own_part, dtype=goal.dtype, device=goal.device).clamp_max(most)[:, None]
            within = replace(plan, algorithm=pulled(plan.algorithm, lambda w: pull * (w - goal)))
        rows, own = super().train(state, data, own, model, within, rng)
        return torch.cat([rows, *self._columns(data, rows, plan, rng)], dim=1), own

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
        return Repeated(cost.event, plan.participations)

    # --- server

    def merge(self, state: State, rows: Rows, plan: Plan, rng: Stream) -> State:
        extra: dict[str, Tensor] = {}
        answers, dim = plan.expected_answers(state.round), len(state.params)
        columns = self._pulls(plan) or self.path in low_loss_path.CURVES
        rows, weight, top = (rows[:, :-2], rows[:, -2:-1], rows[:, -1:]) if columns else (rows, None, None)
        mean = rows.sum(dim=0) / answers
        if self.reselect:
            extra["used"] = state.extra["mechanism"].clone()
            if (state.round + 1) % self.reselect == 0:
                extra |= self._look(state, mean[:dim], plan)
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

    def _look(self, state: State, update: Vector, plan: Plan) -> dict[str, Tensor]:
        """Choose again, by the released mean update."""
        answers, name = plan.expected_answers(state.round), self.noise_of(state, plan)
        variance = (self.noise(state, plan) or 0.0) ** 2 / answers
        draws = answers * plan.local.count(plan.smallest_client)
        look = harmonizer.seen(update, variance, 0.0 if name == "gaussian" else 3.0 / draws)
        new = self.chosen(plan, look.data).mechanism
        figures = torch.tensor([look.signal, look.kurtosis, float(look.visible)], dtype=torch.float64)
        return {"mechanism": torch.tensor(harmonizer.MECHANISMS.index(new)), "seen": figures}

    # --- the record

    def noise(self, state: State, plan: Plan) -> float | None:
        own = plan.multipliers or (plan.z,)
        z = sum(own) / len(own)
        plain = super().noise(state, plan)  # of Gaussian noise with that multiplier
        return None if plain is None else plain / z * harmonizer.deviation(self.noise_of(state, plan), z, plan.dim)

    def decided(self, state: State, plan: Plan) -> dict[str, Any]:
        looked = self.reselect > 0 and state.round > 0 and state.round % self.reselect == 0
        name = harmonizer.MECHANISMS[int(state.extra["used"])] if "used" in state.extra else self.noise_of(state, plan)
        wide = self.clip * (math.sqrt(plan.dim) if harmonizer.NORMS[name] == 1 else 1.0)
        out: dict[str, Any] = {"mechanism": name, "noise_multiplier": plan.z, "scale": plan.z * wide}
        out |= self._spent(state, plan)
        if self.mechanism == "auto" and state.round <= 1:
            out["choice"] = self.chosen(plan).to_json()
        if looked:
            signal, kurtosis, visible = state.extra["seen"].tolist()
            look = harmonizer.Seen(signal, kurtosis, bool(visible))
            out["seen"] = vars(look)
            out["next"] = self.chosen(plan, look.data).to_json()
        if self._pulls(plan) and state.round <= 1:
            out["penalty"] = {f"{z:.6g}": s for z, s in self.strengths(plan).items()}
        if "path" in state.extra:
            out["path_loss"], out["straight_loss"] = state.extra["path"].tolist()
        return out

    def _spent(self, state: State, plan: Plan) -> dict[str, float]:
        """Renyi divergence of the rounds so far and of all, for a client that takes part in every one."""
        whole = self._whole(plan, plan.z)
        found = harmonizer.renyi(whole, plan.delta)
        if found is None:
            return {}
        share = min(state.round, plan.participations) / plan.participations
        out = {"order": found[0], "renyi": share * found[1], "renyi_total": found[1]}
        if all(plan.local.rate(n) >= 1 for n in plan.sizes):  # D_a <= rho a for every order
            releases = plan.local.count(plan.smallest_client) + ("losses" in plan.algorithm.needs)
            rho = releases * plan.participations / (2 * plan.z**2)
            out |= {"rho": share * rho, "rho_total": rho}
        if self.pure and self.batch_sampling == "poisson":
            out["epsilon_at_delta_0"] = share * basic.epsilon(whole, plan.delta)
        return out

    def explain(self, rounds: list[dict[str, Any]]) -> list[str]:
        out: list[str] = []
        for record in rounds:
            found, number = record.get("decided") or {}, record["round"]
            if "choice" in found:
                out += harmonizer.why(found["choice"])
            for z, strength in found.get("penalty", {}).items():
                out.append(f"Clients with noise multiplier {z} are pulled with lambda = {strength:.3f}.")
            if "next" in found:
                look, new = found["seen"], found["next"]["candidates"][0]["mechanism"]
                out.append(
                    f"Round {number}: the signal in the released mean update was {look['signal']:.3g} times its noise "
                    f"in variance, kurtosis {look['kurtosis']:.3g}"
                    + ("; " if look["visible"] else ", too little to judge by; ")
                    + (f"{new} stays." if new == found["mechanism"] else f"{new} follows {found['mechanism']}.")
                )
                out += harmonizer.why(found["next"]) if new != found["mechanism"] else []
        last = (rounds[-1].get("decided") or {}) if rounds else {}
        if "renyi" in last:
            out.append(
                f"After round {rounds[-1]['round']}: {last['mechanism']} noise of scale {last['scale']:.4g} a step; "
                f"{100 * last['renyi'] / last['renyi_total']:.1f} % of the run's privacy loss was spent, measured as a "
                f"Renyi divergence of order {last['order']:g}: {last['renyi']:.4g} of {last['renyi_total']:.4g}."
            )
        return out


def laplace(rng: RowStream, like: Rows) -> Rows:
    """Lap(0, 1) of the shape of `like`, on its device: of independent normals X, Y, (X^2 + Y^2) / 2 is Exp(1), and the
    sign of X is independent of it."""
    dim = like.shape[1]
    x, y = rng.normal(2 * dim, like).chunk(2, dim=1)
    return torch.sign(x) * (x * x + y * y) / 2


def staircase(sums: Bounded, z: float | Tensor, rng: RowStream) -> Rows:
    """L1-ball staircase noise with epsilon = 1 / z of every row."""
    dim = sums.value.shape[1]
    if isinstance(z, float):
        return harmonizer.ball(1 / z, dim).add(Bounded(sums.value, sums.bound, norm=1), rng)
    out = sums.value.clone()
    for one in sorted(set(z[:, 0].tolist())):
        mask = z[:, 0] == one
        part = RowStream(rng.stream, rng.ids[mask.cpu().numpy()])
        out[mask] = harmonizer.ball(1 / one, dim).add(Bounded(sums.value[mask], sums.bound, norm=1), part)
    return out


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
