"""FedSDP, sound: noise adapts to the released contribution of private attributes, within one budget.

The idea is that of Li et al. (2025), arXiv:2503.12958, whose own noise reveals that contribution (fedsdp_paper.py).

Protects a record from the server: DP-SGD inside every client (dp_sgd.py) with full batches. `private_data` says which
records have private attributes, and to which of `groups` groups they belong; a record's group is part of the record.

Budget. The run as a whole is mu-GDP, mu = 1/plan.z, so a client has rho = mu^2 / 2. A participation is given rho_t =
min(rem, w rem / n_left), w = 1 / (1 + slope (R - 1/2)): the larger R, the contribution of the private groups, the less
is spent and the more noise there is; but half of an even part is reserved for each later participation, since what is
spent early is missing at the end, when the model is taken. Each of the K local steps has noise multiplier sqrt(K / (2
rho_t)). R, what a client has spent and how often it took part are functions of what was released before, and the rho_t
of a client add up to at most rho: fully adaptive composition of Gaussians (Smith and Thakurta 2022, arXiv:2210.17520)
gives mu-GDP, whatever the value of R. Spending is counted in whole 2^-24ths of rho, rounded against the client, so that
the sum is exact. A client that has nothing left sends zeros.

Contribution. In the first round and every `refresh` rounds a step releases the clipped sums of the general records and
of every private group separately, each with the full noise z C. Adding or removing a record changes one of these sums,
by at most C: all of them together are one Gaussian release of sensitivity C and cost as much as one sum. The step uses
their total, whose noise is sqrt(groups + 1) times larger. Added up over steps and clients, these sums are s_g; with
v(S) = |sum of s_g over S|^2, the squared length of the step that the groups S would make, the Shapley value of a group
is <s_g, sum of all> (shapley.py), from which the expected contribution of the noise is subtracted. R is the share of
the private groups, clamped to [0, 1]; it is 1/2 before the first refresh; if the length of the total is lost in its
noise, R keeps its value. All of that is post-processing. (A later step of a round knows the noise of an earlier one;
that may bias R slightly, but does not affect privacy.)

A round that was paid for and lost in a crash (secure mode) may have been seen: every client counts it as spent at the
highest rate that any R would have allowed.

The record lists what each client of a round spent, what it has left and its noise: this follows from who took part and
from what was released. The server sees who takes part (channel direct only), and no epsilon here relies on hiding it.

Differs from the paper: gradients are clipped, not weights; contributions are those of gradients, pooled over the
clients, not of validation accuracies of three models, which for a single client could be released with noise of 0.58 at
best (epsilon = 1, a twentieth of it, four times, 100 validation records); epsilon is for the whole run.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from sordino.contract import clipped_steps
from sordino.contract import local_sgd as training
from sordino.contract.augment import augment
from sordino.contract.method import Method, Own, Plan, Release, Site
from sordino.core import check
from sordino.core.errors import DataError, RunError, SpecError
from sordino.core.message import Message
from sordino.core.types import Batch, Rows, State
from sordino.core.vector import Layout
from sordino.methods._budget_units import UNITS, Kept, counters, noise_for
from sordino.methods.fedsdp import shapley, words
from sordino.privacy.allocation import next_rho
from sordino.privacy.clip import Bounded
from sordino.privacy.mechanisms.gaussian import Gaussian
from sordino.privacy.release import GRADIENTS

__all__ = ["FedSdp"]

LEAST = 0.5  # fraction of an even part of the budget that is reserved for each later participation


@dataclass(frozen=True)
class Contribution:
    """The server's state beside the model; it follows from what was released and from who took part."""

    ratio: float  # R from now on
    ratio_used: float  # R that determined the last round's noise
    shares: Tensor  # shares of the general records, of group 1, ... from now on [groups + 1]
    shares_used: Tensor  # shares that determined the last round's noise
    learnt: bool  # whether the shares were learnt in the last round
    learnt_in: int  # round in which the shares were learnt, from 1 on; 0: none yet
    learnt_in_used: int  # the same for `shares_used`
    merged: int  # number of merged rounds
    reference: Tensor  # state (`Kept`) of a client that took part in all rounds
    spent: float  # fraction of the budget spent by a participation in the last round; mean over clients
    left: float  # fraction of the budget left after it; mean over clients
    clients: Tensor  # clients that answered in the last round [clients]
    units: Tensor  # units that each of them spent and has left [clients, 2]


@dataclass(frozen=True)
class FedSdp(Method):
    """DP-SGD with noise that adapts to the contribution of private attributes; see the module docstring."""

    clip: float = 1.0  # C: bound on the L2 norm of one record's gradient
    groups: int = 1  # number of groups of private attributes in private_data
    refresh: int = 10  # rounds after which the contribution of the private groups is released again
    slope: float = 1.0  # how strongly noise depends on that contribution: 0 (not at all) to below 2

    algorithms: ClassVar[tuple[str, ...]] = ("fedavg", "fedsgd", "fedavgm", "fedopt", "fedprox")
    own_noise: ClassVar[bool] = True
    noisy_steps: ClassVar[bool] = True
    by_records: ClassVar[bool] = True
    tagged: ClassVar[bool] = True
    reads: ClassVar[str] = "rows"

    def __post_init__(self) -> None:
        check.positive(clip=self.clip)
        check.count(groups=self.groups, refresh=self.refresh)
        check.non_negative(slope=self.slope)
        if self.slope >= 2:
            raise SpecError(f"slope must lie in [0, 2), not {self.slope!r}.")

    def releases(self, plan: Plan, round: int = 0, state: State | None = None) -> tuple[Release, ...]:
        """Declare one noisy sum per step, or one for each group; a participation spends at most the whole budget."""
        steps = plan.local.count(plan.smallest_client)

        def group(g: int, name: str, part: str) -> Release:
            noise, key = Gaussian(plan.z * math.sqrt(steps)), f"train/group {g}/noise #"
            total = Gaussian(plan.z)
            return Release(
                name, noise, "record", self.clip, times=steps, total=total, part=part, terms=GRADIENTS, key=key
            )

        if not self.refreshes(round):
            return (group(0, "gradient", ""),)
        return tuple(group(g, f"group {g}", str(g)) for g in range(self.groups + 1))

    def require(self, plan: Plan) -> None:
        """Refuse batches that are not full, and late answers."""
        rate = min(plan.local.rate(n) for n in plan.sizes)
        if rate < 1:
            raise SpecError(
                f"fedsdp chooses its noise during the run, and the accountant covers this for full batches only, not "
                f"for a batch rate of {rate:g}: use batch_rate = 1."
            )
        if plan.stragglers.late:
            raise SpecError("fedsdp pools what clients release in the same round: use late = 0.")

    def check_groups(self, highest: int) -> None:
        require_groups(highest, self.groups)

    def variables(self, state: State, layout: Layout, plan: Plan) -> Contribution:
        even = torch.full((self.groups + 1,), 1 / (self.groups + 1), dtype=torch.float64)
        nobody, unspent = torch.zeros(0, dtype=torch.int64), torch.zeros(3, dtype=torch.int64)
        units = torch.zeros(0, 2, dtype=torch.int64)
        return Contribution(0.5, 0.5, even, even, False, 0, 0, 0, unspent, 0.0, 1.0, nobody, units)

    def keeps(self, state: State, clients: int, plan: Plan) -> Own:
        """Return the clients' initial budget counters (`Kept`)."""
        return {"budget": torch.zeros(clients, 3, dtype=torch.int64)}

    def refreshes(self, round: int) -> bool:
        """Return whether a round (from 0) releases the contribution of the groups."""
        return round % self.refresh == 0

    def allow(self, before: Kept, state: State, plan: Plan) -> tuple[int, Kept]:
        """Return the units granted to a participation in this round, and the client's state after it.

        Both depend only on the transcript.
        """
        spent, count, counted = before
        even = UNITS / plan.participations
        lost = max(0, state.round - state.method.merged)
        for back in range(lost - counted, 0, -1):  # as much as the smallest R would have allowed, in the latest rounds
            left = min(plan.participations - count, plan.rounds - (state.round - back))
            spent = min(UNITS, spent + 1 + _grant(UNITS - spent, left, 0.0, self.slope, even))
            count += 1
        left = min(plan.participations - count, plan.rounds - state.round)
        units = _grant(UNITS - spent, left, state.method.ratio, self.slope, even)
        return units, (spent + units, count + 1, max(lost, counted))

    def train(self, state: State, site: Site) -> tuple[Message, Own]:
        """Train with noise that each client's granted units pay for, and send update and budget.

        In rounds that refresh, clients also send the noisy sums of the groups and the deviation of their noise.
        """
        known(site.data, self.groups)
        plan, data, rng, like = site.plan, site.data, site.rng, state.params
        local = plan.now(state)
        steps = local.count(plan.smallest_client)
        run_multipliers = (
            [plan.multipliers[int(i)] for i in rng.ids] if plan.multipliers else [plan.z] * len(data.sizes)
        )
        allowed = [self.allow(counters(row), state, plan) for row in site.own["budget"].cpu()]
        multipliers = [
            noise_for(units, steps, z) or math.inf for (units, _), z in zip(allowed, run_multipliers, strict=True)
        ]
        z = torch.tensor(multipliers, dtype=like.dtype, device=like.device)[:, None]
        expected = torch.tensor([local.expected_batch(n) for n in data.sizes], dtype=like.dtype, device=like.device)
        counts = plan.stragglers.steps([steps] * len(data.sizes), rng.at("slow"))
        sums: list[Rows] = []  # by group, summed over the steps

        def gradient(weights: Tensor, batch: Batch, number: int) -> Rows:
            parts = []
            for g, (name, part) in enumerate(self._parts(batch, state)):
                draw = rng.at("group", g)
                seen, runs = augment(part, local.augment, local.views, draw.at("augment", number))
                seeds = draw.at("model", number).integers()
                clipped = site.model.gradients.sums(weights, seen, self.clip, seeds=seeds, groups=runs)
                parts.append(site.out[name](Bounded(clipped, self.clip), multiplier=z))
            sums[:] = [a + b for a, b in zip(sums, parts, strict=True)] if number else parts
            return sum(parts[1:], parts[0]) / expected[:, None]

        batches = (clipped_steps.batch_of(data, plan, "poisson", rng.at("batch", number)) for number in range(steps))
        rows, mine = training.run(state, site, counts, batches, gradient, None)
        budget = torch.tensor([after for _, after in allowed], dtype=torch.int64, device=like.device).reshape(-1, 3)
        spent = torch.tensor([units for units, _ in allowed], dtype=torch.int64, device=like.device)
        fields = {
            "update": rows * clipped_steps.weights(site, rows)[:, None],
            "spent": spent,
            "left": UNITS - budget[:, 0],
        }
        if self.refreshes(state.round):
            std = torch.where(torch.isinf(z), 0.0, z) * self.clip * math.sqrt(steps)
            fields |= {"groups": torch.stack(sums, dim=1), "std": std[:, 0].double()}
        return Message(fields), site.kept(mine, budget=budget)

    def _parts(self, batch: Batch, state: State) -> list[tuple[str, Batch]]:
        """Return the parts of a batch that are summed and noised separately, with the names of their outlets."""
        if batch.tags is None or not self.refreshes(state.round):
            return [("gradient", batch)]
        return [(f"group {g}", batch.where(batch.tags == g)) for g in range(self.groups + 1)]

    def merge(self, state: State, seen: Message, plan: Plan) -> State:
        """Return the state after the round.

        What a client reports about its budget is read as it is; its update is weighted as the stragglers require.
        """
        if seen.ids is None:
            raise RunError("fedsdp records what each client spent: use channel = direct.")
        after, now = super().merge(state, seen, plan), state.method
        count = (torch.ones(len(seen)) if seen.weight is None else seen.weight).double().cpu()
        heard = float(count.sum())
        shares = self._learn(seen, count) if heard > 0 and self.refreshes(state.round) else None
        _, reference = self.allow(counters(now.reference), state, plan)
        units = torch.stack([seen["spent"], seen["left"]], dim=1).cpu()
        means = (count @ units.double() / heard / UNITS).tolist() if heard > 0 else (0.0, 1.0)
        known = Contribution(
            ratio=now.ratio if shares is None else min(max(float(shares[1:].sum()), 0.0), 1.0),
            ratio_used=now.ratio,
            shares=now.shares if shares is None else shares,
            shares_used=now.shares,
            learnt=shares is not None,
            learnt_in=now.learnt_in if shares is None else state.round + 1,
            learnt_in_used=now.learnt_in,
            merged=now.merged + 1,
            reference=torch.tensor(reference, dtype=torch.int64),
            spent=means[0],
            left=means[1],
            clients=torch.from_numpy(seen.ids).to(torch.int64),
            units=units,
        )
        return replace(after, method=known)

    def _learn(self, seen: Message, count: Tensor) -> Tensor | None:
        """Return the groups' shares of the step; None if its length is lost in noise."""
        groups = seen["groups"] if seen.weight is None else seen["groups"] * seen.weight[:, None, None]
        sums = groups.sum(dim=0, dtype=torch.float64)  # [groups + 1, dim]
        players, dim = sums.shape
        variance = float((seen["std"].cpu() * count).square().sum())  # of one coordinate of one group's sum
        values = shapley.quadratic(sums).cpu() - dim * variance
        total = float(values.sum())
        if not total > math.sqrt(2 * dim) * players * variance:  # standard deviation of the squared length of the noise
            return None
        return values / total

    def noise(self, state: State, plan: Plan) -> float | None:
        """Return the noise of every client if all take part in every round and so have spent the same, else None."""
        if not plan.everyone:
            return None
        local, run_multipliers = plan.now(state), plan.multipliers or (plan.z,)
        steps, batch = local.count(plan.smallest_client), local.expected_batch(plan.mean_client)
        units, _ = self.allow(counters(state.method.reference), state, plan)
        z = noise_for(units, steps, sum(run_multipliers) / len(run_multipliers))
        parts = self.groups + 1 if self.refreshes(state.round) else 1
        return local.learning_rate * math.sqrt(steps * parts) * z * self.clip / batch

    def decided(self, state: State, plan: Plan) -> dict[str, Any]:
        now, steps = state.method, plan.local.count(plan.smallest_client)
        run_multipliers = plan.multipliers or (plan.z,)
        run_multiplier = sum(run_multipliers) / len(run_multipliers)
        return {
            "ratio_used": now.ratio_used,  # R that determined this round's noise
            "ratio": now.ratio,  # R from now on
            "shares": [float(s) for s in now.shares],  # of the general records, of group 1, ...
            "learnt": now.learnt,  # whether they were learnt in this round
            "shares_used": [float(s) for s in now.shares_used],  # shares that determined this round's noise
            "learnt_in": now.learnt_in_used,  # round in which they were learnt; 0: none yet
            "sums": self.groups + 1 if self.refreshes(state.round - 1) else 1,  # noisy sums per step
            "rho": now.spent,  # fraction of the budget spent by a participation in this round; the mean
            "left": now.left,
            "noise_multiplier": noise_for(int(now.spent * UNITS), steps, run_multiplier),
            "even_multiplier": noise_for(UNITS // plan.participations, steps, run_multiplier),  # in equal rounds
            "clients": self._each(now, plan, steps),
        }

    def _each(self, now: Contribution, plan: Plan, steps: int) -> dict[str, dict[str, float]]:
        """Return what each client of the round spent, what is left of its budget, and its noise multiplier."""
        out = {}
        for client, (spent, left) in zip(now.clients.tolist(), now.units.tolist(), strict=True):
            z = noise_for(spent, steps, plan.multipliers[client] if plan.multipliers else plan.z)
            values = {"rho": spent / UNITS, "left": left / UNITS, "noise_multiplier": z}
            out[str(client)] = {name: float(f"{value:.6g}") for name, value in values.items()}
        return out

    def explain(self, rounds: list[dict[str, Any]]) -> list[str]:
        decisions = [(r["round"], r["decided"]) for r in rounds if r.get("decided")]
        return [words.sentence(number, decided, self.slope, LEAST) for number, decided in decisions]


def known(data: Batch, groups: int) -> None:
    """Raise an error if records do not say which group of private attributes they belong to."""
    if data.tags is None:
        raise DataError("which records are private is not said: set private_data, such as private_data = label:3,8.")
    require_groups(int(data.tags.max()) if len(data.tags) else 0, groups)


def require_groups(highest: int, groups: int) -> None:
    """Raise an error if records belong to more than `groups` groups."""
    if highest > groups:
        raise DataError(
            f"private_data marks group {highest}, and groups = {groups}. Set groups to the number of private groups."
        )


def _grant(left: int, participations: int, ratio: float, slope: float, even: float) -> int:
    """Return how many of the units left go to one of `participations`; `even` is its part of an even spread."""
    n = max(1, participations)
    most = max(left / n, left - (n - 1) * LEAST * even)
    return math.floor(min(next_rho(float(left), n, ratio, slope), most, float(left)))
