"""UDP-FL, sound: local DP-SGD with a noise mechanism chosen by the Harmonizer.  Feng et al. (2025), "Harmonizing
Differential Privacy Mechanisms for Federated Learning: Boosting Accuracy and Convergence", Section 3 and Algorithm 1.

Protects a record from the server (and so from everyone else). The noise is Gaussian, L2-Laplace, L1-Laplace or an
L1-ball staircase; the gradients of records are clipped in the norm that the mechanism is made for; and the noise scale
z is calibrated with the accountant to the total (epsilon, delta). `mechanism = auto` leaves the choice to the
Harmonizer (harmonizer.py), which uses public numbers only; the choice and its reasons are recorded. The Harmonizer may
choose again every `reselect` rounds, based on what was released; choose for each kind of clients, if `profile`,
`resources` and `data` are mixtures; and manage the noise multipliers round by round (`managed`). harmonised.py explains
why each of these is sound, and what it costs.

Clients with their own budgets (key `budgets`) get their own scales, all of one mechanism. With `penalty`, clients that
have less than the largest budget are pulled towards what the clients with the largest budget released last:
w <- w - eta (g + lambda_k (w - w_max)), lambda_k = (eps_max - eps_k) / eps_max (Section 3.3), never past w_max. As
w_max is the mean of their noisy messages, this is post-processing.

`path` moves the global model to intermediate models on low-loss paths between client models (Section 3.2, step 4;
low_loss_path.py), optimised on data that the server holds (key `server_data`). `pairs`, pairwise averages alone, is the
same as the mean.

How this differs from the paper: no private statistic is used, vectors are accounted as vectors, and batches are Poisson
samples. The method as printed is in udp_fl_paper.py."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from sordino.algorithms.base import Algorithm
from sordino.contract import pricing
from sordino.contract.method import Plan, Site
from sordino.core.message import Message
from sordino.core.types import State, Vector
from sordino.core.vector import Layout
from sordino.methods.udp_fl import harmonizer, managed, words
from sordino.methods.udp_fl.harmonised import Harmonised, UdpState
from sordino.methods.udp_fl.seen import ReleasedStatistics
from sordino.methods.udp_fl.server import Guide
from sordino.privacy.accountants import basic, pld
from sordino.privacy.events import Event, Repeated
from sordino.privacy.tightest import epsilon

__all__ = ["UdpFl"]


@dataclass(frozen=True)
class UdpFl(Harmonised):
    """Local DP-SGD with the Harmonizer, a pull towards clients with larger budgets, and low-loss paths."""

    penalty: bool = True  # pull clients with smaller budgets towards the models of those with the largest
    path: str = "none"  # intermediate models: none, pairs, polygon, bezier or tuned (no path, to compare)
    path_steps: int = 10  # SGD steps on public data that optimise a path
    path_lr: float = 0.1  # learning rate of these steps
    path_pairs: int = 4  # largest number of paths

    algorithms: ClassVar[tuple[str, ...]] = (
        "fedavg", "fedsgd", "fedavgm", "fedopt", "fedprox", "scaffold", "q-fedavg",
    )  # fmt: skip

    def __post_init__(self) -> None:
        super().__post_init__()
        self.guide  # checks the options of the path  # noqa: B018

    @property
    def guide(self) -> Guide:
        """The server's options for the pull and the path."""
        return Guide(self.penalty, self.path, self.path_steps, self.path_lr, self.path_pairs)

    def uses_public(self) -> bool:
        return self.guide.curved

    def variables(self, state: State, layout: Layout, plan: Plan) -> UdpState:
        """Return the server's state before the first round; refuse staircase noise that cannot be sampled."""
        goal = self.guide.start(state, plan)
        if self.mechanism == "staircase":
            for z in (self._even(plan),) if self.managed else set(plan.multipliers or (plan.z,)):
                harmonizer.ball(1 / z, plan.dim).shells(plan.dim)  # raises if the noise cannot be sampled
        return UdpState(
            mechanism=self._indices(plan) if self.reselect else None,
            merged=0 if self.managed else None,
            reference=torch.zeros(managed.KEPT, dtype=torch.int64) if self.managed else None,
            w_max=goal,
        )

    # --- clients

    def _algorithm(self, state: State, site: Site) -> Algorithm | None:
        """Return the algorithm with the pull towards w_max, capped so that the pull alone never passes it."""
        if not self.guide.pulls(site.plan):
            return None
        return self.guide.pull(state, site, self.strengths(site.plan), 1 / site.plan.now(state).learning_rate)

    def _fields(self, site: Site) -> dict[str, Tensor]:
        return self.guide.fields(site)

    def strengths(self, plan: Plan) -> dict[float, float]:
        """Return, for each client noise scale, lambda_k = (eps_max - eps_k) / eps_max.

        eps_k is the epsilon of a client with that scale, at the run's delta."""
        epsilons = {z: epsilon(self._run_event(plan, z), plan.delta, pld.ROUGH) for z in sorted(set(plan.multipliers))}
        most = max(epsilons.values())
        return {z: (most - e) / most for z, e in epsilons.items()}

    def _run_event(self, plan: Plan, z: float) -> Event:
        """Return the event of all that a client with this scale releases to the server."""
        (cost,) = pricing.planned(self, replace(plan, noise_multiplier=z))
        return cost.event if self.managed else Repeated(cost.event, plan.participations * cost.copies)

    # --- server

    def merge(self, state: State, seen: Message, plan: Plan) -> State:
        """Average the updates, apply the path, choose mechanisms again if it is time, and update w_max."""
        known: UdpState = state.method
        answers, changes = plan.expected_answers(state.round), dict[str, Any]()
        if self.tells:
            changes["heard"] = managed.heard(seen)
        if known.merged is not None and known.reference is not None:
            _, reference = managed.allow(managed.counters(known.reference), state, plan)
            changes |= {"merged": known.merged + 1, "reference": torch.tensor(reference)}
        mean = seen.total("update")["update"][0] / answers
        if self.reselect:
            changes["used"] = known.mechanism
            if (state.round + 1) % self.reselect == 0:
                changes |= self._look(state, mean[: len(state.params)], seen, plan)
        mean, more = self.guide.guided(state, seen, mean, plan)
        after = plan.algorithm.update(state, mean, plan.server(answers / plan.population))
        return replace(after, method=replace(known, **changes, **more))

    def _look(self, state: State, update: Vector, seen: Message, plan: Plan) -> dict[str, Tensor]:
        """Choose the mechanisms again, based on the released mean update."""
        answers, name = plan.expected_answers(state.round), self.noise_of(state, plan)
        if self.tells:
            variance, excess = managed.noise_of_mean(seen, answers, plan.mean_client)
        else:
            variance = (self.noise(state, plan) or 0.0) ** 2 / answers
            excess = 0.0 if name == "gaussian" else 3.0 / (answers * plan.local.count(plan.smallest_client))
        look = harmonizer.seen(update, variance, excess)
        tail = math.nan if look.tail is None else look.tail
        figures = [look.signal, look.kurtosis, float(look.visible), look.density, tail]
        return {"mechanism": self._indices(plan, look.data), "look": torch.tensor(figures, dtype=torch.float64)}

    # --- the record

    def noise(self, state: State, plan: Plan) -> float | None:
        """Return the standard deviation of the noise in a client's message, averaged over the kinds of clients.

        With managed multipliers, it is known only if all clients take part in every round and so have spent the
        same; otherwise None."""
        if self.managed and not plan.everyone:
            return None
        multipliers = plan.multipliers or (plan.z,)
        mean = z = sum(multipliers) / len(multipliers)
        if self.managed:
            units, _ = managed.allow(managed.counters(state.method.reference), state, plan)
            z = managed.noise_for(units, self._sums(plan), mean)
        if not z:
            return None
        squares = [
            n * harmonizer.deviation(name, z, plan.dim) ** 2
            for name, n in zip(self.noises(plan, state), self.kinds(plan).counts(), strict=True)
        ]
        return self.unit_noise(state, plan, mean) / mean * math.sqrt(sum(squares) / plan.population)

    def decided(self, state: State, plan: Plan) -> dict[str, Any]:
        known: UdpState = state.method
        out: dict[str, Any] = {"noise_multiplier": plan.z}
        if plan.multipliers:  # plan.z belongs to the run's epsilon, these to the clients' budgets
            out["multipliers"] = {f"{z:.6g}": plan.multipliers.count(z) for z in sorted(set(plan.multipliers))}
        look = None
        if known.look is not None and state.round % self.reselect == 0:
            signal, kurtosis, visible, density, tail = known.look.tolist()
            look = ReleasedStatistics(signal, kurtosis, bool(visible), density, None if math.isnan(tail) else tail)
            out["seen"] = vars(look)
        each = [self._of_kind(state, plan, k, look) for k in range(len(self.kinds(plan).kinds))]
        if self.mixed:
            dealt = self.kinds(plan)
            every = zip(dealt.kinds, dealt.counts(), each, strict=True)
            out["kinds"] = [vars(kind) | {"clients": n} | figures for kind, n, figures in every]
        else:
            out |= each[0]
        out |= self._spent(state, plan)
        if known.heard is not None:
            out["std"] = float(known.heard[:, 4].mean()) if len(known.heard) else 0.0
            if self.managed:
                out |= managed.figures(known.heard) | {"even_multiplier": self._even(plan)}
        if self.guide.pulls(plan) and state.round <= 1:
            out["penalty"] = {f"{z:.6g}": s for z, s in self.strengths(plan).items()}
        if known.path is not None:
            out["path_loss"], out["straight_loss"] = known.path.tolist()
        return out

    def chosen_before(self, plan: Plan) -> dict[str, Any] | None:
        """Return the Harmonizer's choice for each kind of clients, which depends on public numbers alone."""
        if self.mechanism != "auto":
            return None
        dealt = self.kinds(plan)
        choices = [self.chosen(plan, kind=k).to_json() for k in range(len(dealt.kinds))]
        every = zip(dealt.kinds, dealt.counts(), choices, strict=True)
        return {"kinds": [vars(kind) | {"clients": n, "choice": choice} for kind, n, choice in every]}

    def _of_kind(self, state: State, plan: Plan, kind: int, look: ReleasedStatistics | None) -> dict[str, Any]:
        """Return the mechanism, scale and clip bound of one kind of clients in the last round, and the choice if it
        was made in that round."""
        used = state.method.used
        name = self.noise_of(state, plan, kind) if used is None else harmonizer.MECHANISMS[int(used[kind])]
        bound, z = self.bound(name, plan), self._even(plan) if self.managed else plan.z
        out: dict[str, Any] = {
            "mechanism": name, "scale": z * bound, "sensitivity": bound, "norm": harmonizer.NORMS[name]
        }  # fmt: skip
        if self.mechanism == "auto" and state.round <= 1:
            out["choice"] = self.chosen(plan, kind=kind).to_json()
        if look is not None:
            out["next"] = self.chosen(plan, look.data, kind).to_json()
        return out

    def _even(self, plan: Plan) -> float:
        """Return the managed multiplier per step that would make all participations cost the same."""
        multipliers = plan.multipliers or (plan.z,)
        return sum(multipliers) / len(multipliers) * math.sqrt(self._sums(plan) * plan.participations)

    def _spent(self, state: State, plan: Plan) -> dict[str, float]:
        """Return the Renyi divergence of the rounds so far and of the whole run.

        These are the figures of a client that takes part in every round or, with managed multipliers, the mean over
        the clients of the last round."""
        run_event = self._run_event(plan, plan.z)
        renyi = harmonizer.renyi(run_event, plan.delta)
        if renyi is None:
            return {}
        order, divergence = renyi
        copies = plan.clients_per_user if plan.unit == "user" else 1  # number of clients that hold a user's data
        done = min(state.round, plan.participations)
        share = done / plan.participations
        if self.managed and state.method.heard is not None:
            left = state.method.heard[:, 2]
            if not len(left):  # no message arrived in this round
                return {}
            share = 1 - float(left.mean())
        out = {"order": order, "renyi": share * divergence, "renyi_total": divergence}
        if all(plan.local.rate(n) >= 1 for n in plan.sizes):  # D_a <= rho a for every order
            releases = self._sums(plan) * plan.participations
            rho = copies * (1 if self.managed else releases) / (2 * plan.z**2)
            out |= {"rho": share * rho, "rho_total": rho}
        if self.pure and self.batch_sampling == "poisson":
            # managed: the 1/z_t of n releases sum to at most sqrt(n sum 1/z_t^2) (Cauchy-Schwarz)
            most = (
                copies * math.sqrt(self._sums(plan) * done) / plan.z
                if self.managed
                else share * basic.epsilon(run_event, plan.delta)
            )
            out["epsilon_at_delta_0"] = most
        return out

    def explain(self, rounds: list[dict[str, Any]]) -> list[str]:
        return words.explain(rounds)
