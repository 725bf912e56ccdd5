"""DP-SGD inside every client.  Abadi et al. (2016), arXiv:1607.00133, Algorithm 1, run locally at each step.

Protects a record from the server (and so from everyone else): each record's gradient is clipped, each client
adds the whole noise to its own sum, at every local step. Records of different clients are disjoint, so a client
pays only for its own rounds. Differs from the paper: Poisson batches (or fixed-size ones, accounted as such),
the sum is divided by its expected size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from sordino.core import check
from sordino.core.errors import SpecError
from sordino.core.rng import RowStream, Stream
from sordino.core.types import Batch, Model, Rows, State
from sordino.methods import optimizers, server
from sordino.methods.base import Plan
from sordino.privacy.clip import Bounded
from sordino.privacy.events import Cost, Event, FixedSize, Repeated, Sampled
from sordino.privacy.events import Gaussian as GaussianEvent
from sordino.privacy.mechanisms.gaussian import Gaussian

__all__ = ["DpSgd"]


@dataclass(frozen=True)
class DpSgd:
    clip: float = 1.0  # C: bound on the L2 norm of one record's gradient
    batch_sampling: str = "poisson"  # or "fixed": batches of a fixed size, accounted under replace

    viewer: ClassVar[str] = "server"
    private: ClassVar[bool] = True

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
        return (Cost("record", relation, "server", Repeated(step, local.count(sizes[0]))),)

    def _take(self, plan: Plan, size: int) -> int:
        """Records in a fixed-size batch of a client: whole, at least one."""
        return min(size, max(1, int(plan.local.rate(size) * size)))

    def begin(self, state: State, plan: Plan) -> State:
        return server.begin(state, plan)

    def train(self, state: State, data: Batch, model: Model, plan: Plan, rng: RowStream) -> Rows:
        local, noise = plan.local, Gaussian(plan.z)
        step = optimizers.make(local)
        weights: Tensor = state.params
        expected = torch.tensor([local.expected_batch(n) for n in data.sizes], device=weights.device)[:, None]
        for number in range(local.count(plan.smallest_client)):
            batch = self._batch(data, plan, rng.at("batch", number))
            seeds = rng.at("model", number).integers()
            sums = model.gradients.sums(weights, batch, self.clip, seeds=seeds)
            noisy = noise.add(Bounded(sums, self.clip), rng.at("noise", number))  # an empty batch too
            weights = weights - step(noisy / expected)
        return weights - state.params

    def _batch(self, data: Batch, plan: Plan, rng: RowStream) -> Batch:
        rates = [plan.local.rate(n) for n in data.sizes]
        if all(r >= 1 for r in rates):
            return data
        if self.batch_sampling == "fixed":
            takes = [self._take(plan, n) for n in data.sizes]
            return data.pick(*rng.fixed(data.sizes, takes, data.x.device))
        return data.pick(*rng.poisson(data.sizes, rates, data.x.device))

    def release(self, rows: Rows, sizes: tuple[int, ...], state: State, plan: Plan, rng: RowStream) -> Rows:
        weights = torch.tensor(sizes, dtype=rows.dtype, device=rows.device)[:, None] / plan.mean_client
        return rows * weights  # sizes are public; the noise is already inside

    def merge(self, state: State, rows: Rows, plan: Plan, rng: Stream) -> State:
        return server.step(state, rows.sum(dim=0) / plan.expected_cohort, plan)
