"""Shadow models: many models trained at once, each as a job trains its own, on known halves of a pool of records.

Attacks compare the attacked model with such models (Shokri et al. 2017, arXiv:1610.05820, Section V). Shadows 2i and
2i + 1 are trained on complementary halves of the pool, so that each record is in exactly half of an even number of
them, as in Carlini et al. (2022), arXiv:2112.03570, Section V.A. A shadow's half is dealt to as many clients as the job
has, who train in lockstep: one row of weights for each client of each shadow. Where clients take a single step a round,
their gradients add up to that of one client with all their records, and one row per shadow suffices.

Batches, steps, clipping and noise are those of the job's plan; random draws are the attacker's own. Every shadow begins
with the job's initial model, which is broadcast, and depends on the seed and its own number alone, not on how many are
trained with it.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sordino.algorithms.fedavg import FedAvg
from sordino.contract.augment import augment
from sordino.contract.clipped_steps import taken
from sordino.core import check
from sordino.core.errors import RunError, SpecError
from sordino.core.local_training import Local
from sordino.core.optimizers import Optimizer
from sordino.core.rng import Stream
from sordino.core.types import Batch, Rows, State
from sordino.core.version import VERSION
from sordino.methods.dp_sgd import DpSgd
from sordino.methods.none import NoPrivacy
from sordino.privacy.samplers import FixedSizeSampler
from sordino.run_folder.folder import pack, unpack
from sordino.runs import loop
from sordino.runs.job import Job

Progress = Callable[[int, int], None]  # rounds of shadow models done, and to do
MEMORY = {"cpu": 1 << 30, "cuda": 24 << 30}  # bytes of weights, gradients and batches that are held at a time
COPIES = 8  # of a row of weights: start, gradients, noise, momentum and what is made on the way
METHODS = "none and dp-sgd"


@dataclass(frozen=True)
class ShadowModels:
    """Trained shadow models; the fields are those of `sordino.attacks.base.Shadows`."""

    pool: Batch
    params: Tensor  # [models, dim]
    members: NDArray[np.bool_]  # [models, records of the pool]


def train_shadows(
    job: Job,
    pool: Batch,
    count: int,
    seed: int,
    clients: int | None = None,
    progress: Progress | None = None,
    folder: Path | None = None,
) -> ShadowModels:
    """Train shadow models as a job would train its model, each on half of a pool of records.

    Args:
        job: the job that is imitated: none or dp-sgd, with FedAvg and SGD or momentum.
        pool: records from the same source; who holds them does not matter.
        count: the number of shadow models.
        seed: of the attacker's own randomness.
        clients: clients of a shadow; as many as the job has if None.
        progress: called after every round of some of the shadows.
        folder: where trained shadows are stored and found again; None: nowhere.
    """
    check.count(count=count)
    clients = job.plan.population if clients is None else clients
    check.count(clients=clients)
    require(job)
    if len(pool.y) < 2 * clients:
        raise SpecError(f"half of {len(pool.y)} records is too little for {clients} clients: use a larger pool.")
    members = halves(len(pool.y), count, seed)
    path = None if folder is None else folder / f"shadows-{_key(job, pool, count, seed, clients)}.safetensors"
    params = None if path is None else _stored(path, count, job)
    if params is None:
        params = _trained(job, pool, members, seed, clients, progress)
        if path is not None:
            _store(path, params)
    return ShadowModels(pool, params, members)


def require(job: Job) -> None:
    """Raise SpecError if shadow models cannot be trained as the job trains."""
    plan, name = job.plan, job.spec.method
    if type(job.method) not in (NoPrivacy, DpSgd):
        raise SpecError(f"shadow models can be trained as {METHODS} train, not as {name} does.")
    if type(plan.algorithm) is not FedAvg:
        raise SpecError(f"shadow models are trained with FedAvg, not with {job.spec.algorithm}.")
    if plan.local.optimizer not in ("sgd", "momentum"):
        raise SpecError(f"shadow models are trained with SGD or momentum, not with {plan.local.optimizer}.")
    if (plan.unit or "record") != "record" or plan.multipliers or plan.capped or not plan.stragglers.none:
        raise SpecError(
            "shadow models are trained without users as units, budgets of clients, dropout or late answers."
        )


def halves(records: int, count: int, seed: int) -> NDArray[np.bool_]:
    """Return which of the records each shadow is trained on [count, records]: half of them, pairs being complements."""
    out = np.zeros((count, records), dtype=np.bool_)
    for k in range(0, count, 2):
        order = np.random.default_rng((seed, k, 1)).permutation(records)
        out[k, order[: records // 2]] = True
        if k + 1 < count:
            out[k + 1, order[records - records // 2 :]] = True
    return out


def dealt(members: NDArray[np.bool_], clients: int, seed: int, shadow: int) -> list[NDArray[np.int64]]:
    """Return the records of each client of a shadow, whose members [records] are dealt at random and evenly."""
    order = np.random.default_rng((seed, shadow, 2)).permutation(np.flatnonzero(members))
    return np.array_split(order, clients)


# --- training in lockstep


def _trained(
    job: Job, pool: Batch, members: NDArray[np.bool_], seed: int, clients: int, progress: Progress | None
) -> Tensor:
    pool = replace(pool, x=pool.x.to(job.device), y=pool.y.to(job.device), tags=None, groups=None)
    count, rounds, parts = len(members), job.plan.rounds, []
    width = _at_once(job, pool, members, clients)
    for first in range(0, count, width):
        some = list(range(first, min(count, first + width)))
        lockstep = _Lockstep(job, pool, members, some, seed, clients)
        models = torch.empty(0)
        for number, after in enumerate(lockstep.rounds(), start=1):
            models = after
            if progress is not None:
                progress(first * rounds + number * len(some), count * rounds)
        parts.append(models)
    return torch.cat(parts)


def _at_once(job: Job, pool: Batch, members: NDArray[np.bool_], clients: int) -> int:
    """Return how many shadows fit into memory together."""
    plan, dim = job.plan, job.model.layout.dim
    size = int(members[0].sum())
    rows = 1 if _merged(plan.local, size // clients, plan.share) else clients
    batch = clients * plan.local.expected_batch(size / clients) * plan.local.views
    need = 4 * (rows * dim * COPIES + 2 * batch * math.prod(pool.x.shape[1:])) + 16 * size
    return max(1, min(len(members), int(MEMORY["cuda" if job.device.type == "cuda" else "cpu"] / need)))


def _merged(local: Local, size: int, share: float) -> bool:
    """Return whether clients who take one step each can be replaced by one client with all of their records."""
    return local.count(size) == 1 and share >= 1 and local.views == 1


class _Lockstep:
    """Some shadow models that are trained together, one row of weights for each client of each shadow."""

    def __init__(
        self, job: Job, pool: Batch, members: NDArray[np.bool_], which: Sequence[int], seed: int, clients: int
    ) -> None:
        self.job, self.pool, self.which = job, pool, which
        self.clients = clients
        self.merged = _merged(job.plan.local, int(members[0].sum()) // clients, job.plan.share)
        self.rows = 1 if self.merged else clients  # of one shadow
        lists = [part for k in which for part in dealt(members[k], self.rows, seed, k)]
        self.sizes = np.array([len(part) for part in lists])
        table = np.zeros((len(lists), self.sizes.max()), dtype=np.int64)
        for row, part in zip(table, lists, strict=True):
            row[: len(part)] = part
        self.table = torch.from_numpy(table).to(job.device)  # [rows, width]: places in the pool
        self.draws = [torch.Generator(job.device).manual_seed(_number(seed, k)) for k in which]
        self.cohorts = [np.random.default_rng((seed, k, 3)) for k in which]
        self.ids = np.array([k * self.rows + client for k in which for client in range(self.rows)])
        self.stream = Stream.research(seed).at("shadow models")
        self.private = isinstance(job.method, DpSgd)

    def rounds(self) -> Iterator[Tensor]:
        """Yield the models to report [shadows, dim] after every round."""
        job, plan = self.job, self.job.plan
        start = job.model.layout.read(job.model.module).to(job.device)
        state = State(start.repeat(len(self.which), 1))
        if job.spec.average()[0] != "none":
            state = replace(state, average=state.params.clone())
        for _ in range(plan.rounds):
            drawn = self._cohort()
            moved = self._steps(state, drawn)
            mean = self._mean(moved, drawn)
            state = plan.algorithm.update(state, mean, plan.server(1.0, noisy=self.private))
            state = loop._average(job, state)
            state = replace(state, round=state.round + 1)
            yield state.model

    def _cohort(self) -> NDArray[np.int64]:
        """Return the rows of the clients that take part in a round."""
        sampler, share = self.job.plan.sampler, self.job.plan.share
        if share >= 1:
            return np.arange(len(self.sizes))
        fixed = max(1, round(share * self.rows)) if isinstance(sampler, FixedSizeSampler) else None
        chosen = []
        for k, rng in enumerate(self.cohorts):
            drawn = (
                np.flatnonzero(rng.random(self.rows) < share) if fixed is None else rng.permutation(self.rows)[:fixed]
            )
            chosen.append(k * self.rows + np.sort(drawn))
        return np.concatenate(chosen).astype(np.int64)

    def _mean(self, moved: Rows, drawn: NDArray[np.int64]) -> Tensor:
        """Return the mean update of every shadow [shadows, dim], weighted by records as the method does."""
        weight = torch.from_numpy(self.sizes[drawn]).to(moved)
        owner = torch.from_numpy(drawn // self.rows).to(moved.device)
        sums = moved.new_zeros(len(self.which), moved.shape[1]).index_add_(0, owner, weight[:, None] * moved)
        if self.private:
            expected = self.job.plan.share * self.sizes.reshape(-1, self.rows).sum(axis=1)
            return sums / torch.from_numpy(expected).to(moved)[:, None]
        return sums / sums.new_zeros(len(self.which)).index_add_(0, owner, weight)[:, None].clamp_min(1)

    def _steps(self, state: State, drawn: NDArray[np.int64]) -> Rows:
        """Return by how much local training moves the weights of these rows."""
        job, local = self.job, self.job.plan.now(state)
        rows = torch.from_numpy(drawn).to(job.device)
        start = state.params[rows // self.rows]
        if not len(drawn):
            return start
        weights, step = start, Optimizer(local)
        count = local.count(int(self.sizes[0]) // (self.clients if self.merged else 1))
        for number, index in zip(range(count), self._batches(local, drawn, rows), strict=False):
            direction = self._gradient(weights, index, drawn, state.round, number)
            if local.weight_decay:
                direction = direction + local.weight_decay * weights
            weights = weights - step(direction)
        return weights - start

    def _gradient(
        self, weights: Rows, picked: tuple[Tensor, tuple[int, ...]], drawn: NDArray[np.int64], round: int, number: int
    ) -> Rows:
        """Return the mean gradient of the batch of every row; of a private job clipped and noisy."""
        job, local = self.job, self.job.plan.local
        rng = self.stream.at(round, number).rows(self.ids[drawn])
        batch, groups = augment(self.pool.pick(*picked), local.augment, local.views, rng.at("augment"))
        bound = job.method.clip if isinstance(job.method, DpSgd) else None
        sums = job.model.gradients.sums(weights, batch, bound, seeds=rng.at("model").integers(), groups=groups)
        if bound is None:
            return sums / torch.tensor(picked[1]).to(sums)[:, None].clamp_min(1)
        parts = self.clients if self.merged else 1
        std = job.plan.z * bound * math.sqrt(parts / job.plan.split)
        noise = self._random(torch.randn, drawn, sums.shape[1])
        expected = [parts * local.expected_batch(self.sizes[row] / parts) for row in drawn]
        return (sums + std * noise) / torch.tensor(expected).to(sums)[:, None]

    def _batches(
        self, local: Local, drawn: NDArray[np.int64], rows: Tensor
    ) -> Iterator[tuple[Tensor, tuple[int, ...]]]:
        """Yield the batch of every local step: places in the pool, and how many of them belong to each row."""
        sizes, table = self.sizes[drawn], self.table[rows]
        parts = self.clients if self.merged else 1
        place = torch.arange(table.shape[1], device=table.device)
        valid = place < torch.from_numpy(sizes).to(table.device)[:, None]
        if local.rate(sizes[0] / parts) >= 1:
            while True:
                yield table[valid], tuple(sizes.tolist())
        poisson = isinstance(self.job.method, DpSgd) and self.job.method.batch_sampling == "poisson"
        if poisson:
            rates = torch.tensor([local.rate(n / parts) for n in sizes], device=table.device)[:, None]
            while True:
                keep = valid & (self._random(torch.rand, drawn, table.shape[1]) < rates)
                yield table[keep], tuple(keep.sum(dim=1).tolist())
        yield from self._shuffled(local, drawn, table, valid, parts)

    def _shuffled(
        self, local: Local, drawn: NDArray[np.int64], table: Tensor, valid: Tensor, parts: int
    ) -> Iterator[tuple[Tensor, tuple[int, ...]]]:
        """Yield batches of one size from shuffled passes; with noise, each from a pass of its own."""
        sizes = self.sizes[drawn]
        if self.private:
            width = [parts * taken(self.job.plan, int(n) // parts) for n in sizes]
        else:
            width = [parts * max(1, round(local.expected_batch(n / parts))) for n in sizes]
        most = max(width)
        passes = 1 if self.private else max(1, -(-int(sizes.max()) // most))
        while True:
            keys = self._random(torch.rand, drawn, table.shape[1]).masked_fill(~valid, math.inf)
            order = table.gather(1, keys.argsort(dim=1))
            for part in range(passes):
                counts = [max(0, min(w, int(n) - part * most)) for w, n in zip(width, sizes, strict=True)]
                some = order[:, part * most : part * most + most]
                keep = (
                    torch.arange(some.shape[1], device=some.device) < torch.tensor(counts, device=some.device)[:, None]
                )
                yield some[keep], tuple(counts)

    def _random(self, draw: Callable[..., Tensor], drawn: NDArray[np.int64], width: int) -> Tensor:
        """Return random numbers [drawn rows, width]; those of a shadow do not depend on who is trained with it."""
        per_shadow = np.bincount(drawn // self.rows, minlength=len(self.which))
        parts = [
            draw((int(n), width), generator=g, device=self.table.device)
            for n, g in zip(per_shadow, self.draws, strict=True)
        ]
        return torch.cat(parts)


def _number(seed: int, shadow: int) -> int:
    """Return the seed of a shadow's own generator."""
    return int(np.random.SeedSequence((seed, shadow, 4)).generate_state(1, np.uint64)[0] >> np.uint64(1))


# --- the store


def _key(job: Job, pool: Batch, count: int, seed: int, clients: int) -> str:
    """Return a digest of everything that determines the shadow models."""
    total = hashlib.blake2b(digest_size=16)
    plan, local = job.plan, replace(job.plan.local, own_optimizer=None)
    words = {
        "version": VERSION,
        "method": repr(job.method),
        "plan": repr((plan.rounds, plan.sampler, plan.server_lr, plan.noise_multiplier, plan.split, local)),
        "spec": [job.spec.averaging, job.spec.precision],
        "layout": repr(job.model.layout),
        "loss": getattr(job.model.loss, "__qualname__", repr(job.model.loss)),
        "asked": [count, seed, clients, job.device.type],
    }
    total.update(json.dumps(words, sort_keys=True).encode())
    module = job.model.module
    for tensor in (*module.parameters(), *module.buffers(), pool.x, pool.y):
        total.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return total.hexdigest()


def _stored(path: Path, count: int, job: Job) -> Tensor | None:
    """Return stored shadow models; None if there are none, or if the file is damaged."""
    try:
        params = unpack(path)[0]["params"]
    except (RunError, KeyError):
        return None
    return params.to(job.device) if params.shape == (count, job.model.layout.dim) else None


def _store(path: Path, params: Tensor) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix(".tmp")
        temporary.write_bytes(pack({"params": params}, {}))
        temporary.replace(path)
    except OSError as error:
        raise RunError(f"cannot store shadow models in {path.parent}: {error.strerror}.") from error
