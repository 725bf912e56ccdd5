"""DP-SGD inside every client.  Abadi et al. (2016), arXiv:1607.00133, Algorithm 1, run locally at each step.

Protects a record from the server (and so from everyone else): each record's gradient is clipped, each client
adds the whole noise to its own sum, at every local step. Records of different clients are disjoint, so a client
pays only for its own rounds. Differs from the paper: Poisson batches (or fixed-size ones, accounted as such),
the sum is divided by its expected size.

With `unit = user` the unit of everything below is a user instead of a record: users are drawn, the mean gradient of a
user's records is clipped as a whole, and a user whose records lie in m clients pays m times. Everything else a client
computes comes from its noisy gradients; where the algorithm asks for the client's loss, that is released with the same
noise multiplier and charged too.

Through a secure sum (one local step of plain SGD a round) the server sees the sum over all clients alone: each adds its
share of the noise, and the whole of it is there once instead of once a client.

Other methods are this one with a part replaced: `multiplier` and `bound` (a schedule), `clipped` (another clip), `add`
(another noise)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import ClassVar

import torch
from torch import Tensor

from sordino.core import check
from sordino.core.errors import DataError, SpecError
from sordino.core.rng import RowStream
from sordino.core.types import Batch, Model, Rows, State
from sordino.methods import local as training
from sordino.methods.augment import augment
from sordino.methods.base import Method, Plan
from sordino.privacy.clip import Bounded
from sordino.privacy.events import Composed, Cost, Event, FixedSize, Repeated, Sampled
from sordino.privacy.events import Gaussian as GaussianEvent
from sordino.privacy.mechanisms.gaussian import Gaussian

__all__ = ["DpSgd"]

Groups = Sequence[int] | None


@dataclass(frozen=True)
class DpSgd(Method):
    clip: float = 1.0  # C: bound on the L2 norm of one record's (or user's) gradient
    batch_sampling: str = "poisson"  # or "fixed": batches of a fixed size, accounted under replace

    units: ClassVar[tuple[str, ...]] = ("record", "user")
    channels: ClassVar[tuple[str, ...]] = ("direct", "secure-sum")

    def __post_init__(self) -> None:
        check.positive(clip=self.clip)
        check.one_of(("poisson", "fixed"), batch_sampling=self.batch_sampling)

    def multiplier(self, plan: Plan, round: int) -> float:
        """The noise multiplier of a round's steps: by the public plan alone."""
        return plan.z

    def step_noise(self, plan: Plan) -> float:
        """Where the multiplier is that of the whole run: as if all steps had the same part of it."""
        if self.whole(plan) is None:
            return plan.z
        return plan.z * math.sqrt(plan.local.count(plan.smallest_client) * plan.participations)

    def bound(self, state: State, plan: Plan) -> float:
        """The clip of the round that begins with this state: by what was released before."""
        return self.clip

    def clipped(
        self, weights: Tensor, batch: Batch, model: Model, state: State, plan: Plan, seeds: list[int], groups: Groups
    ) -> Bounded:
        """Each client's sum of clipped gradients, and how far one unit can move it."""
        bound = self.bound(state, plan)
        return Bounded(model.gradients.sums(weights, batch, bound, seeds=seeds, groups=groups), bound)

    def add(self, sums: Bounded, z: float | Tensor, state: State, plan: Plan, rng: RowStream) -> Rows:
        """Noise of z (the same for all, or [clients, 1]) times the bound, also to the sum of an empty batch."""
        if isinstance(z, float):
            return Gaussian(z).add(sums, rng)
        return sums.value + z * sums.bound * rng.normal(sums.value.shape[1], like=sums.value)

    def costs(self, plan: Plan, round: int = 0) -> tuple[Cost, ...]:
        local, sizes = plan.local, plan.sizes
        z = self.multiplier(plan, round)
        if local.steps is None and local.batch_rate is None and len(sizes) > 1:
            raise SpecError(
                "dp-sgd with local_epochs and batch_size needs clients of one size "
                f"(found {sizes[0]} to {sizes[-1]} records). Use local_steps, or batch_rate."
            )
        step: Event
        if self.batch_sampling == "fixed" and any(self._take(plan, n) < n for n in sizes):
            # replacing one record moves the clipped sum by 2C; the client with the largest share pays most
            dear = max(sizes, key=lambda n: self._take(plan, n) / n)
            relation, step = "replace", FixedSize(GaussianEvent(z / 2), self._take(plan, dear), dear)
        else:
            rate = 1.0 if self.batch_sampling == "fixed" else max(local.rate(n) for n in sizes)
            relation, step = "add/remove", GaussianEvent(z)
            if rate < 1:
                step = Sampled(step, rate)
        event: Event = Repeated(step, local.count(sizes[0]))
        if "losses" in plan.algorithm.needs:  # in [0, cap] each: adding and replacing both move the sum by the cap
            event = Composed((event, GaussianEvent(z)))
        unit = plan.unit or "record"
        copies = plan.clients_per_user if unit == "user" else 1
        charged = Cost(unit, relation, "server", event, copies=copies)
        if plan.channel == "direct" or plan.colluders:
            return (charged,)
        others = max(1, plan.population - 1)  # a client knows its own share of the noise
        return charged, replace(charged, viewer="client", event=_less(event, (others / plan.population) ** 0.5))

    def require(self, plan: Plan) -> None:
        if plan.channel == "direct":
            return
        least, algorithm = plan.local.count(plan.smallest_client), plan.algorithm
        kept = algorithm.personal or algorithm.fresh(State(torch.zeros(1)), 1).shape[1]
        if least > 1 or plan.local.optimizer != "sgd" or algorithm.needs or kept:
            raise SpecError(
                "a secure sum hides the clients' noise in one another's where each takes one step of plain SGD a "
                "round: use local_steps = 1, optimizer = sgd and fedavg, fedavgm or fedopt."
            )
        if not plan.everyone or plan.local.batch_rate is None or plan.clients_per_user > 1:
            raise SpecError(
                "a secure sum needs every client in every round, and one batch_rate for all: use client_rate = 1, no "
                "dropout, late answers or joining, no max_participations or budgets, and batch_rate, not batch_size."
            )
        if plan.local.batch_rate * plan.smallest_client < 1:  # its noise would be divided by more than its part
            raise SpecError(
                f"a secure sum needs clients that expect at least one record in a batch: the smallest has "
                f"{plan.smallest_client}, so use batch_rate >= {1 / plan.smallest_client:.3g}."
            )
        if self.batch_sampling == "fixed" and plan.local.batch_rate < 1:
            raise SpecError("a secure sum goes with batch_sampling = poisson.")

    def _take(self, plan: Plan, size: int) -> int:
        """Records in a fixed-size batch of a client: whole, at least one."""
        return min(size, max(1, int(plan.local.rate(size) * size)))

    def train(
        self, state: State, data: Batch, own: Rows, model: Model, plan: Plan, rng: RowStream
    ) -> tuple[Rows, Rows]:
        local, dtype = plan.now(state), state.params.dtype
        z = self._noise_of(state, plan, rng)
        sizes = _units(data, plan)
        expected = torch.tensor([local.expected_batch(n) for n in sizes], device=state.params.device, dtype=dtype)
        full = local.count(plan.smallest_client)
        counts = plan.stragglers.steps([full] * len(sizes), rng.at("slow"))

        def gradient(weights: Tensor, batch: Batch, number: int) -> Rows:
            seeds = rng.at("model", number).integers()
            seen, groups = augment(batch, local.augment, local.views, rng.at("augment", number))
            if batch.groups is not None:  # views of a user's records are its records
                groups = [local.views * n for client in batch.groups for n in client]
            sums = self.clipped(weights, seen, model, state, plan, seeds, groups)
            return self.add(sums, z, state, plan, rng.at("noise", number)) / expected[:, None]

        steps = (self._batch(data, plan, rng.at("batch", number)) for number in range(full))
        losses = self._losses(state, data, model, plan, rng) if "losses" in plan.algorithm.needs else None
        rows, own = training.run(state, data, own, model, plan, rng, counts, steps, gradient, losses)
        weights = torch.tensor(sizes, device=rows.device, dtype=dtype) / plan.mean_client  # numbers of units are public
        return rows * weights[:, None], own

    def _batch(self, data: Batch, plan: Plan, rng: RowStream) -> Batch:
        sizes = _units(data, plan)
        rates = [plan.local.rate(n) for n in sizes]
        if all(r >= 1 for r in rates):
            return data if plan.unit == "user" else replace(data, groups=None)
        if self.batch_sampling == "fixed":
            picked = rng.fixed(sizes, [self._take(plan, n) for n in sizes], data.x.device)
        else:
            picked = rng.poisson(sizes, rates, data.x.device)
        return _users(data, *picked) if plan.unit == "user" else data.pick(*picked)

    def _losses(self, state: State, data: Batch, model: Model, plan: Plan, rng: RowStream) -> Tensor:
        """Each client's mean loss [clients, 1], every record's (or user's) held below a cap, with noise."""
        cap = plan.algorithm.loss_clip
        losses = torch.nan_to_num(training.record_losses(state, data, model), nan=cap).clamp(0, cap)
        groups = data.groups if plan.unit == "user" else None
        if groups is not None:
            lengths = torch.tensor([n for client in groups for n in client], device=losses.device)
            owner = torch.arange(len(lengths), device=losses.device).repeat_interleave(lengths)
            losses = losses.new_zeros(len(lengths)).index_add_(0, owner, losses) / lengths
        sizes = _units(data, plan)
        sums = training.sums(losses, sizes)
        noisy = self.add(Bounded(sums, cap), self._noise_of(state, plan, rng), state, plan, rng.at("loss noise"))
        return noisy / torch.tensor(sizes, device=sums.device, dtype=sums.dtype)[:, None].clamp_min(1)

    def _noise_of(self, state: State, plan: Plan, rng: RowStream) -> float | Tensor:
        """The clients' noise multipliers in this round: one for all, or [clients, 1]."""
        z = plan.noise_share * self.multiplier(plan, state.round)
        return z / plan.z * plan.z_of(rng.ids, state.params) if plan.multipliers else z

    def noise(self, state: State, plan: Plan) -> float | None:
        local = plan.now(state)
        steps, batch = local.count(plan.smallest_client), local.expected_batch(plan.mean_client)
        own = plan.multipliers or (plan.z,)
        z = self.multiplier(plan, state.round) / plan.z * sum(own) / len(own) * plan.noise_share
        return local.learning_rate * math.sqrt(steps) * z * self.bound(state, plan) / batch  # of plain SGD steps


def _less(event: Event, factor: float) -> Event:
    """The same with less noise."""
    match event:
        case GaussianEvent(z):
            return GaussianEvent(z * factor)
        case Sampled(inner, rate, relation):
            return Sampled(_less(inner, factor), rate, relation)
        case Repeated(inner, count):
            return Repeated(_less(inner, factor), count)
        case _:
            raise TypeError(f"no noise to take from in {event!r}")


def _units(data: Batch, plan: Plan) -> tuple[int, ...]:
    """How many records, or users, each client has."""
    if plan.unit != "user":
        return data.sizes
    if data.groups is None:
        raise DataError("unit = user, but the clients' data do not say which record belongs to which user.")
    return tuple(len(client) for client in data.groups)


def _users(data: Batch, chosen: Tensor, counts: tuple[int, ...]) -> Batch:
    """All records of the users at these places (users of all clients laid end to end), counts[k] of them client k's."""
    lengths = torch.tensor([n for client in data.groups or () for n in client], device=chosen.device)
    starts, taken = (lengths.cumsum(0) - lengths)[chosen], lengths[chosen]
    first = taken.cumsum(0) - taken
    total = int(taken.sum())
    index = torch.arange(total, device=chosen.device) + (starts - first).repeat_interleave(taken, output_size=total)
    groups = tuple(tuple(part) for part in _split(taken.tolist(), counts))
    return replace(data.pick(index, tuple(sum(g) for g in groups)), groups=groups)


def _split(values: list[int], counts: tuple[int, ...]) -> list[list[int]]:
    ends = list(accumulate(counts))
    return [values[end - n : end] for n, end in zip(counts, ends, strict=True)]
