"""DP-SGD inside every client.  Abadi et al. (2016), arXiv:1607.00133, Algorithm 1, run locally at each step.

Protects a record from the server (and so from everyone else): each record's gradient is clipped, each client
adds the whole noise to its own sum, at every local step. Records of different clients are disjoint, so a client
pays only for its own rounds. Differs from the paper: Poisson batches (or fixed-size ones, accounted as such),
the sum is divided by its expected size.

With `unit = user` the unit of everything below is a user instead of a record: users are drawn, the mean gradient of a
user's records is clipped as a whole, and a user whose records lie in m clients pays m times. Everything else a client
computes comes from its noisy gradients; where the algorithm asks for the client's loss, that is released with the same
noise multiplier and charged too."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import accumulate
from typing import ClassVar

import torch
from torch import Tensor

from sordino.core import check
from sordino.core.errors import DataError, SpecError
from sordino.core.rng import RowStream, Stream
from sordino.core.types import Batch, Model, Rows, State
from sordino.core.vector import Layout
from sordino.methods import local as training
from sordino.methods.augment import augment
from sordino.methods.base import Plan
from sordino.privacy.clip import Bounded
from sordino.privacy.events import Composed, Cost, Event, FixedSize, Repeated, Sampled
from sordino.privacy.events import Gaussian as GaussianEvent
from sordino.privacy.mechanisms.gaussian import Gaussian

__all__ = ["DpSgd"]


@dataclass(frozen=True)
class DpSgd:
    clip: float = 1.0  # C: bound on the L2 norm of one record's (or user's) gradient
    batch_sampling: str = "poisson"  # or "fixed": batches of a fixed size, accounted under replace

    viewer: ClassVar[str] = "server"
    private: ClassVar[bool] = True
    units: ClassVar[tuple[str, ...]] = ("record", "user")

    def __post_init__(self) -> None:
        check.positive(clip=self.clip)
        check.one_of(("poisson", "fixed"), batch_sampling=self.batch_sampling)

    def costs(self, plan: Plan) -> tuple[Cost, ...]:
        local, sizes = plan.local, plan.sizes
        if local.steps is None and local.batch_rate is None and len(sizes) > 1:
            raise SpecError(
                "dp-sgd with local_epochs and batch_size needs clients of one size "
                f"(found {sizes[0]} to {sizes[-1]} records). Use local_steps, or batch_rate."
            )
        step: Event
        if self.batch_sampling == "fixed" and any(self._take(plan, n) < n for n in sizes):
            # replacing one record moves the clipped sum by 2C; the client with the largest share pays most
            dear = max(sizes, key=lambda n: self._take(plan, n) / n)
            relation, step = "replace", FixedSize(GaussianEvent(plan.z / 2), self._take(plan, dear), dear)
        else:
            rate = 1.0 if self.batch_sampling == "fixed" else max(local.rate(n) for n in sizes)
            relation, step = "add/remove", GaussianEvent(plan.z)
            if rate < 1:
                step = Sampled(step, rate)
        event: Event = Repeated(step, local.count(sizes[0]))
        if "losses" in plan.algorithm.needs:  # in [0, cap] each: adding and replacing both move the sum by the cap
            event = Composed((event, GaussianEvent(plan.z)))
        unit = plan.unit or "record"
        copies = plan.clients_per_user if unit == "user" else 1
        return (Cost(unit, relation, "server", event, copies=copies),)

    def _take(self, plan: Plan, size: int) -> int:
        """Records in a fixed-size batch of a client: whole, at least one."""
        return min(size, max(1, int(plan.local.rate(size) * size)))

    def begin(self, state: State, layout: Layout, plan: Plan) -> State:
        return plan.algorithm.begin(state, layout)

    def train(
        self, state: State, data: Batch, own: Rows, model: Model, plan: Plan, rng: RowStream
    ) -> tuple[Rows, Rows]:
        local, noise, dtype = plan.now(state), Gaussian(plan.z), state.params.dtype
        sizes = _units(data, plan)
        expected = torch.tensor([local.expected_batch(n) for n in sizes], device=state.params.device, dtype=dtype)
        full = local.count(plan.smallest_client)
        counts = plan.stragglers.steps([full] * len(sizes), rng.at("slow"))

        def gradient(weights: Tensor, batch: Batch, number: int) -> Rows:
            seeds = rng.at("model", number).integers()
            seen, groups = augment(batch, local.augment, local.views, rng.at("augment", number))
            if batch.groups is not None:  # views of a user's records are its records
                groups = [local.views * n for client in batch.groups for n in client]
            sums = model.gradients.sums(weights, seen, self.clip, seeds=seeds, groups=groups)
            noisy = noise.add(Bounded(sums, self.clip), rng.at("noise", number))  # an empty batch too
            return noisy / expected[:, None]

        steps = (self._batch(data, plan, rng.at("batch", number)) for number in range(full))
        losses = self._losses(state, data, model, plan, rng) if "losses" in plan.algorithm.needs else None
        rows, own = training.run(state, data, own, model, plan, rng, counts, steps, gradient, losses)
        weights = torch.tensor(sizes, device=rows.device, dtype=dtype) / plan.mean_client  # numbers of units are public
        return rows * weights[:, None], own

    def _batch(self, data: Batch, plan: Plan, rng: RowStream) -> Batch:
        sizes = _units(data, plan)
        rates = [plan.local.rate(n) for n in sizes]
        if all(r >= 1 for r in rates):
            return data if plan.unit == "user" else Batch(data.x, data.y, data.sizes)
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
        noisy = Gaussian(plan.z).add(Bounded(sums, cap), rng.at("loss noise"))
        return noisy / torch.tensor(sizes, device=sums.device, dtype=sums.dtype)[:, None].clamp_min(1)

    def release(self, rows: Rows, sizes: tuple[int, ...], state: State, plan: Plan, rng: RowStream) -> Rows:
        return rows  # the noise is already inside

    def merge(self, state: State, rows: Rows, plan: Plan, rng: Stream) -> State:
        answers = plan.expected_answers(state.round)
        return plan.algorithm.update(state, rows.sum(dim=0) / answers, plan.server(answers / plan.population))


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
