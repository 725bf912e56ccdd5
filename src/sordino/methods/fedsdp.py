"""FedSDP, sound: noise follows the contribution of private attributes, as far as it was released, within one budget.
The idea of Li et al. (2025), arXiv:2503.12958, whose own noise gives that contribution away (fedsdp_paper.py).

Protects a record from the server: DP-SGD inside every client (dp_sgd.py) with full batches. `private_data` says which
records carry private attributes, and of which of `groups` groups; a record's group is part of the record.

Budget. The run as a whole is mu-GDP, mu = 1/plan.z, so a client has rho = mu^2 / 2. A participation is given
rho_t = min(rem, w rem / n_left), w = 1 / (1 + slope (R - 1/2)): the larger R, the contribution of the private groups,
the less is spent and the more noise there is; but half of an even part is kept for each later participation, as what is
spent early is missing at the end, when the model is taken. The K local steps have noise multiplier sqrt(K / (2 rho_t))
each. R, what a client has spent and how often it took part are functions of what was released before, and the rho_t of
a client add up to rho at most: fully adaptive composition of Gaussians (Smith and Thakurta 2022, arXiv:2210.17520)
gives mu-GDP, whatever R is worth. What is spent is counted in whole 2^-24ths of rho, rounded against the client, so
that the sum is exact. A client that has nothing left sends zeros.

Contribution. In the first round and every `refresh` rounds a step releases the clipped sums of the general records and
of every private group separately, each with the whole noise z C. Adding or removing a record changes one of these
sums, by C at most: all of them together are one Gaussian release of sensitivity C and cost what one sum costs. The step
uses their total, whose noise is sqrt(groups + 1) times larger. Added up over steps and clients they are s_g; with
v(S) = |sum of s_g over S|^2, the squared length of the step that the groups S would make, the Shapley value of a group
is <s_g, sum of all> (shapley.py), of which the noise's expected part is taken away. R is the private groups' share,
held in [0, 1]; 1/2 before the first refresh; where the length of the total is lost in its noise, R stays what it was.
All of that is post-processing. (A later step of a round knows the noise of an earlier one; that may bias R a little,
and is no matter of privacy.)

A round that was paid for and lost in a crash (secure mode) may have been seen: every client counts it as spent as fast
as any R would have allowed.

The record lists what each client of a round spent, has left and had as noise: it follows from who took part and from
what was released. The server sees who takes part (channel direct alone), and no epsilon here counts on hiding it.

Differs from the paper: gradients are clipped, not weights; contributions are those of gradients, pooled over the
clients, not of validation accuracies of three models, which for a single client could be released with noise of 0.58 at
best (epsilon = 1, a twentieth of it, four times, 100 validation records); epsilon is for the whole run."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from sordino.core import check
from sordino.core.errors import DataError, SpecError
from sordino.core.rng import RowStream, Stream
from sordino.core.types import Batch, Model, Rows, State
from sordino.core.vector import Layout
from sordino.methods import local as training
from sordino.methods import shapley
from sordino.methods.augment import augment
from sordino.methods.base import Plan
from sordino.methods.dp_sgd import DpSgd
from sordino.privacy.allocation import next_rho
from sordino.privacy.events import Cost
from sordino.privacy.events import Gaussian as GaussianEvent

__all__ = ["FedSdp"]

UNKNOWN = -1  # in which round shares were learnt: a run that an earlier version began
UNITS = 2**24  # that a client's budget is counted in: whole numbers up to this are exact in float32
KEPT = 3  # what a client keeps: units spent, participations, lost rounds that it has counted
LEAST = 0.5  # of an even part of the budget, that is kept for each later participation
TOLD = 5  # what it says, all public: 1, its number (from 1), budget spent, budget left (shares), a group's sum's std

Kept = tuple[int, int, int]


@dataclass(frozen=True)
class FedSdp(DpSgd):
    groups: int = 1  # how many groups of private attributes private_data tells apart
    refresh: int = 10  # rounds after which the contribution of the private groups is released again
    slope: float = 1.0  # how strongly noise follows that contribution: 0 (not at all) to below 2

    units: ClassVar[tuple[str, ...]] = ("record",)
    channels: ClassVar[tuple[str, ...]] = ("direct",)
    algorithms: ClassVar[tuple[str, ...]] = ("fedavg", "fedsgd", "fedavgm", "fedopt", "fedprox")
    own_noise: ClassVar[bool] = True
    tagged: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check.count(groups=self.groups, refresh=self.refresh)
        check.non_negative(slope=self.slope)
        if self.slope >= 2:
            raise SpecError(f"slope must lie in [0, 2), not {self.slope!r}.")

    def costs(self, plan: Plan, round: int = 0) -> tuple[Cost, ...]:
        """Of a participation, no more is known beforehand than that it stays within the whole."""
        return self.whole(plan)

    def whole(self, plan: Plan) -> tuple[Cost, ...]:
        return (Cost("record", "add/remove", "server", GaussianEvent(plan.z)),)

    def require(self, plan: Plan) -> None:
        rate = min(plan.local.rate(n) for n in plan.sizes)
        if rate < 1:
            raise SpecError(
                f"fedsdp chooses its noise on the way, which is accounted for full batches only (found a batch rate of "
                f"{rate:g}): use batch_rate = 1."
            )
        if plan.stragglers.late:
            raise SpecError("fedsdp pools what clients release in the same round: use late = 0.")

    def check_groups(self, highest: int) -> None:
        require_groups(highest, self.groups)

    def begin(self, state: State, layout: Layout, plan: Plan) -> State:
        state = plan.algorithm.begin(state, layout)
        nobody = torch.full((self.groups + 1,), 1 / (self.groups + 1), dtype=torch.float64)
        known = _tensors(0.5, 0.5, (0, 0, 0), 0, (0.0, 1.0), False, nobody)
        return replace(state, extra=state.extra | known | _behind(nobody, 0, 0, torch.zeros(0, 3)))

    def fresh(self, state: State, clients: int, plan: Plan) -> Rows:
        first = plan.algorithm.fresh(state, clients)
        return torch.cat([first, first.new_zeros(clients, KEPT)], dim=1)

    def refreshes(self, round: int) -> bool:
        return round % self.refresh == 0

    def allow(self, kept: Kept, state: State, plan: Plan) -> tuple[int, Kept]:
        """Units that a participation in this round gets, and what its client keeps then: by the transcript alone."""
        spent, count, counted = kept
        even = UNITS / plan.participations
        lost = max(0, state.round - int(state.extra["merged"]))
        for back in range(lost - counted, 0, -1):  # as much as the least R would have allowed, in the latest rounds
            left = min(plan.participations - count, plan.rounds - (state.round - back))
            spent = min(UNITS, spent + 1 + _grant(UNITS - spent, left, 0.0, self.slope, even))
            count += 1
        left = min(plan.participations - count, plan.rounds - state.round)
        units = _grant(UNITS - spent, left, float(state.extra["ratio"]), self.slope, even)
        return units, (spent + units, count + 1, max(lost, counted))

    def train(
        self, state: State, data: Batch, own: Rows, model: Model, plan: Plan, rng: RowStream
    ) -> tuple[Rows, Rows]:
        known(data, self.groups)
        local, like = plan.now(state), state.params
        steps = local.count(plan.smallest_client)
        whole = [plan.multipliers[int(i)] for i in rng.ids] if plan.multipliers else [plan.z] * len(data.sizes)
        mine, kept = own[:, : own.shape[1] - KEPT], own[:, own.shape[1] - KEPT :]
        allowed = [self.allow(_kept(row), state, plan) for row in kept.cpu()]
        multipliers = [noise_for(units, steps, z) for (units, _), z in zip(allowed, whole, strict=True)]
        z = torch.tensor(multipliers, dtype=like.dtype, device=like.device)[:, None]
        expected = torch.tensor([local.expected_batch(n) for n in data.sizes], dtype=like.dtype, device=like.device)
        counts = plan.stragglers.steps([steps] * len(data.sizes), rng.at("slow"))
        released: list[Rows] = []  # by group, added up over the steps

        def gradient(weights: Tensor, batch: Batch, number: int) -> Rows:
            parts = []
            for g, part in enumerate(self._parts(batch, state)):
                draw = rng.at("group", g)
                seen, runs = augment(part, local.augment, local.views, draw.at("augment", number))
                seeds = draw.at("model", number).integers()
                sums = self.clipped(weights, seen, model, state, plan, seeds, runs)
                parts.append(torch.where(z > 0, self.add(sums, z, state, plan, draw.at("noise", number)), 0.0))
            released[:] = [a + b for a, b in zip(released, parts, strict=True)] if number else parts
            return sum(parts[1:], parts[0]) / expected[:, None]

        batches = (self._batch(data, plan, rng.at("batch", number)) for number in range(steps))
        rows, mine = training.run(state, data, mine, model, plan, rng, counts, batches, gradient, None)
        weights = torch.tensor(data.sizes, dtype=like.dtype, device=like.device) / plan.mean_client
        std = z * self.bound(state, plan) * math.sqrt(steps)
        said = [
            [1.0, float(i + 1), units / UNITS, (UNITS - after[0]) / UNITS]
            for i, (units, after) in zip(rng.ids, allowed, strict=True)
        ]
        told = torch.cat([torch.tensor(said, dtype=like.dtype, device=like.device).reshape(-1, 4), std], dim=1)
        pooled = released if self.refreshes(state.round) else []
        keep = torch.tensor([after for _, after in allowed], dtype=own.dtype, device=own.device).reshape(-1, KEPT)
        return torch.cat([rows * weights[:, None], *pooled, told], dim=1), torch.cat([mine, keep], dim=1)

    def _parts(self, batch: Batch, state: State) -> list[Batch]:
        """What is summed, and noised, apart from the rest."""
        if batch.tags is None or not self.refreshes(state.round):
            return [batch]
        return [batch.where(batch.tags == g) for g in range(self.groups + 1)]

    def merge(self, state: State, rows: Rows, plan: Plan, rng: Stream) -> State:
        dim, players, extra = state.params.numel(), self.groups + 1, state.extra
        pooled = players * dim if self.refreshes(state.round) else 0
        width = rows.shape[1] - pooled - TOLD
        told, heard = rows[:, width + pooled :].double(), float(rows[:, width + pooled].double().sum())
        after = super().merge(state, rows[:, :width], plan, rng)
        ratio = used = float(extra["ratio"])
        shares, learnt = extra["shares"], False
        if pooled and heard > 0:
            sums = rows[:, width : width + pooled].sum(dim=0, dtype=torch.float64).reshape(players, dim)
            variance = float((told[:, 4] ** 2).sum())  # of a coordinate of one group's sum
            values = shapley.quadratic(sums).cpu() - dim * variance
            total = float(values.sum())
            if total > math.sqrt(2 * dim) * players * variance:  # the deviation of the noise's own squared length
                shares, learnt = values / total, True
                ratio = min(max(float(shares[1:].sum()), 0.0), 1.0)
        means = (float(told[:, 2].sum()) / heard, float(told[:, 3].sum()) / heard) if heard > 0 else (0.0, 1.0)
        _, reference = self.allow(_kept(extra["reference"]), state, plan)
        known = _tensors(ratio, used, reference, int(extra["merged"]) + 1, means, learnt, shares)
        since = int(extra["since"][1]) if "since" in extra else UNKNOWN
        each = told[:, 1:4] / told[:, :1]  # whatever an answer counts (stragglers), what it says stays
        known |= _behind(extra["shares"], since, state.round + 1 if learnt else since, each.cpu())
        return replace(after, extra=after.extra | known)

    def noise(self, state: State, plan: Plan) -> float | None:
        """Of every client, where all take part in every round and so have spent the same."""
        if not plan.everyone:
            return None
        local, own = plan.now(state), plan.multipliers or (plan.z,)
        steps, batch = local.count(plan.smallest_client), local.expected_batch(plan.mean_client)
        units, _ = self.allow(_kept(state.extra["reference"]), state, plan)
        z = noise_for(units, steps, sum(own) / len(own))
        parts = self.groups + 1 if self.refreshes(state.round) else 1
        return local.learning_rate * math.sqrt(steps * parts) * z * self.bound(state, plan) / batch

    def decided(self, state: State, plan: Plan) -> dict[str, Any]:
        rho, left = state.extra["told"].tolist()
        own, steps = plan.multipliers or (plan.z,), plan.local.count(plan.smallest_client)
        return {
            "ratio_used": float(state.extra["used"]),  # R behind this round's noise
            "ratio": float(state.extra["ratio"]),  # R from now on
            "shares": [float(s) for s in state.extra["shares"]],  # of the general records, of group 1, ...
            "learnt": bool(state.extra["learnt"]),  # whether they are of this round
            "shares_used": [float(s) for s in state.extra["behind"]],  # the shares behind this round's noise
            "learnt_in": int(state.extra["since"][0]),  # the round that they are of; 0: none was learnt yet
            "sums": self.groups + 1 if self.refreshes(state.round - 1) else 1,  # that a step released, each with noise
            "rho": rho,  # spent by a participation in this round, relative to the whole budget; the mean
            "left": left,
            "noise_multiplier": noise_for(int(rho * UNITS), steps, sum(own) / len(own)),
            "even_multiplier": noise_for(UNITS // plan.participations, steps, sum(own) / len(own)),  # were all alike
            "clients": self._each(state, plan, steps),
        }

    def _each(self, state: State, plan: Plan, steps: int) -> dict[str, dict[str, float]]:
        """Of every client that was heard in the round, what it spent, has left (of its own budget) and had as noise."""
        out = {}
        for number, rho, left in state.extra["clients"].tolist():
            client = round(number) - 1
            z = noise_for(round(rho * UNITS), steps, plan.multipliers[client] if plan.multipliers else plan.z)
            found = {"rho": rho, "left": left, "noise_multiplier": z}
            out[str(client)] = {name: float(f"{value:.6g}") for name, value in found.items()}
        return out

    def explain(self, rounds: list[dict[str, Any]]) -> list[str]:
        return [_sentence(r["round"], r["decided"], self.slope) for r in rounds if r.get("decided")]


def known(data: Batch, groups: int) -> None:
    """Records must say which group of private attributes they belong to."""
    if data.tags is None:
        raise DataError("which records are private is not said: set private_data, such as private_data = label:3,8.")
    require_groups(int(data.tags.max()) if len(data.tags) else 0, groups)


def require_groups(highest: int, groups: int) -> None:
    if highest > groups:
        raise DataError(
            f"private_data marks group {highest}, and groups = {groups}. Set groups to the number of private groups."
        )


def noise_for(units: int, steps: int, whole: float) -> float:
    """The noise multiplier of each of so many steps that together cost units / UNITS of the run's budget 1 / whole^2;
    0: there is nothing to pay with. A little more than that, for the rounding to float32."""
    return whole * math.sqrt(steps * UNITS / units) * (1 + 2**-22) if units else 0.0


def _grant(left: int, participations: int, ratio: float, slope: float, even: float) -> int:
    """Of the units left, for one of so many participations; `even` is what an even spread would give it."""
    n = max(1, participations)
    most = max(left / n, left - (n - 1) * LEAST * even)
    return math.floor(min(next_rho(float(left), n, ratio, slope), most, float(left)))


def _kept(values: Tensor) -> Kept:
    spent, count, counted = (int(v) for v in values)
    return spent, count, counted


def _tensors(
    ratio: float, used: float, reference: Kept, merged: int, told: tuple[float, float], learnt: bool, shares: Tensor
) -> dict[str, Tensor]:
    """What the server knows, for the state."""
    numbers = {"ratio": ratio, "used": used, "merged": merged, "learnt": float(learnt)}
    found = {name: torch.tensor(value, dtype=torch.float64) for name, value in numbers.items()}
    lists = {"reference": reference, "told": told}
    return found | {k: torch.tensor(v, dtype=torch.float64) for k, v in lists.items()} | {"shares": shares}


def _behind(shares: Tensor, used: int, now: int, clients: Tensor) -> dict[str, Tensor]:
    """What was behind a round's noise: the groups' shares, the round in which they were learnt (and in which the next
    round's were); and for each client its number, what it spent and what it has left [clients, 3]."""
    since = torch.tensor((used, now), dtype=torch.float64)
    return {"behind": shares.clone(), "since": since, "clients": clients.double()}


def _sentence(number: int, chosen: dict[str, Any], slope: float = 1.0) -> str:
    if chosen["rho"] <= 0:
        return f"Round {number}: no client had any budget left (or none came), so nothing was learnt of anyone's data."
    used, ratio = chosen["ratio_used"], chosen["ratio"]
    asks = "more noise than" if used > 0.5 else "less noise than" if used < 0.5 else "as much noise as"
    text = (
        f"Round {number}: private groups were taken to make {round(100 * used)} % of the step{_led(chosen)}, which "
        f"asks for {asks} an even spread of what was left{_in_vain(chosen, slope)}: multiplier "
        f"{chosen['noise_multiplier']:.3g} (had all rounds been alike {chosen['even_multiplier']:.3g}; what earlier "
        f"rounds saved lowers it, what they took raises it). "
        f"That cost {100 * chosen['rho']:.3g} % of the budget, {100 * chosen['left']:.3g} % is left.{_clients(chosen)}"
    )
    if chosen["sums"] > 1:
        text += (
            f" Every group was released apart from the others, each with that noise, so the step had "
            f"{math.sqrt(chosen['sums']):.2g} times as much."
        )
    if not chosen["learnt"]:
        return text + (" All of it was lost in that noise, so nothing new was learnt." if chosen["sums"] > 1 else "")
    each = [f"group {g} {round(100 * share)} %" for g, share in enumerate(chosen["shares"][1:], start=1)]
    first = max(range(len(each)), key=lambda g: chosen["shares"][g + 1])
    drives = f", most of it by group {first + 1}" if len(each) > 1 else ""
    return (
        f"{text} Released anew: {', '.join(each)}, general records {round(100 * chosen['shares'][0])} %; from here on "
        f"the private share is {100 * ratio:.0f} %{drives}."
    )


def _in_vain(chosen: dict[str, Any], slope: float) -> str:
    """Where R had no effect. R > 1/2 always has one. R < 1/2 asks for more than an even part of what is left, which is
    not given in the last round, nor where that part is not more than what is kept for each later round (`_grant`)."""
    if slope == 0:
        return ", without effect (slope is 0)"
    if chosen["ratio_used"] >= 0.5 or not chosen["noise_multiplier"]:
        return ""
    planned = (chosen["even_multiplier"] / chosen["noise_multiplier"]) ** 2 / chosen["rho"]  # participations
    every = {k: own for k, own in (chosen.get("clients") or {}).items() if own["rho"] > 0} or {"": chosen}
    reasons = []
    for own in every.values():
        if own["left"] <= 1e-6:
            reasons.append("the last participation spends all that is left")
        elif own["rho"] * planned <= LEAST * (1 + 1e-3):  # rounded to whole units
            reasons.append("no more was left than is kept for each later one")
    if not reasons:
        return ""
    some = f" at {len(reasons)} of {len(every)} clients" if len(reasons) < len(every) else ""
    where = f" at client {next(iter(every))}" if len(every) == 1 and "" not in every else some
    return f", without effect{where} ({' or '.join(dict.fromkeys(reasons))})"


def _led(chosen: dict[str, Any]) -> str:
    """The group that made most of the share behind this round's noise, and when that was learnt."""
    since = chosen.get("learnt_in", UNKNOWN)  # which earlier versions did not record
    if since == 0:
        return " (nothing was learnt yet)"
    if since == UNKNOWN:
        return ""
    private = chosen["shares_used"][1:]
    first = max(range(len(private)), key=lambda g: float(private[g]))
    if len(private) == 1:
        return f" (learnt in round {since})"
    led = f"led by group {first + 1} with {round(100 * private[first])} %" if private[first] > 0 else "led by none"
    return f" ({led}, learnt in round {since})"


def _clients(chosen: dict[str, Any]) -> str:
    """Of the client asked for, or the range over all of them."""
    every = chosen.get("clients")
    if every is None:  # recorded by an earlier version
        return ""
    if not every:
        return " The client asked for was not in it."
    if len(every) == 1:
        ((client, own),) = every.items()
        if own["rho"] <= 0:
            return f" Client {client} had nothing left, so it sent nothing of its data."
        return (
            f" Client {client}: multiplier {own['noise_multiplier']:.3g}, for {100 * own['rho']:.3g} % of its budget; "
            f"{100 * own['left']:.3g} % of it is left."
        )
    paid = sorted((own["noise_multiplier"], int(client)) for client, own in every.items() if own["rho"] > 0)
    (low, least), (high, most) = paid[0], paid[-1]
    if high <= low * (1 + 1e-4):
        return ""
    return f" By client the multiplier was {low:.3g} (client {least}) to {high:.3g} (client {most})."
