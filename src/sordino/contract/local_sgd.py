"""Local training of a cohort in one round: batches, gradients, the algorithm's steps and its message.

The method decides where gradients come from (exact, or clipped and noisy); the algorithm decides how they are used.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call

from sordino.algorithms.base import Algorithm, Gradient, LocalWork
from sordino.contract.augment import augment
from sordino.contract.plan import Plan
from sordino.contract.site import Site
from sordino.core.devices import sent
from sordino.core.local_training import Local
from sordino.core.optimizers import Optimizer
from sordino.core.rng import Ints, RowStream, flat
from sordino.core.types import Batch, Model, Rows, State

NONE = np.empty(0, dtype=np.int64)
After = Callable[[int, Tensor, Rows, Optimizer], None]  # step number, weights after the step, direction, optimiser
RECORDS = 2000  # number of records whose losses are computed at once


def sgd(state: State, site: Site, gradient: Gradient | None = None, after: After | None = None) -> tuple[Rows, Rows]:
    """Train every client with shuffled mini-batches and exact gradients, without clipping or noise.

    Args:
        state: Public state at the start of the round.
        site: The clients.
        gradient: Replaces the exact gradients if given.
        after: Called after every local step.

    Returns:
        What the algorithm would send for each client, and the rows that it keeps at each client.
    """
    plan, data, rng = site.plan, site.data, site.rng
    local = plan.now(state)
    counts = plan.stragglers.steps(each(lambda n: local.count(n) if n else 0, data.sizes), rng.at("slow"))
    losses = mean_losses(state, data, site.model) if "losses" in plan.algorithm.needs else None
    gradient = gradient or exact(site.model, local, rng)
    return run(state, site, counts, batches(data, local, counts, rng), gradient, losses, after)


def run(
    state: State,
    site: Site,
    counts: Sequence[int],
    steps: Iterable[Batch],
    gradient: Gradient,
    losses: Tensor | None,
    after: After | None = None,
    algorithm: Algorithm | None = None,
) -> tuple[Rows, Rows]:
    """Train every client along `gradient`.

    Args:
        state: Public state at the start of the round.
        site: The clients.
        counts: Number of local steps of each client.
        steps: Batches, one per local step.
        gradient: Computes the gradient [clients, dim] of a batch.
        losses: Each client's loss [clients, 1], for algorithms that need it.
        after: Called after every local step.
        algorithm: Replaces the plan's algorithm if given.

    Returns:
        What each client would send and what it keeps, [clients, ...] each.
    """
    plan, data, client_state, rng = site.plan, site.data, site.mine, site.rng
    algorithm, local = algorithm or plan.algorithm, plan.now(state)
    step = Optimizer(local)
    start = algorithm.start(state, client_state)
    weights = start
    for number, batch in enumerate(steps):
        direction = gradient(weights, batch, number)
        if local.weight_decay:
            direction = direction + local.weight_decay * weights
        direction = algorithm.correct(direction, weights, client_state, state, number, local)
        moved = step(direction)
        if number >= min(counts, default=0):  # clients that have done all their steps stand still
            active = sent(torch.tensor([number < c for c in counts], dtype=torch.bool), moved.device)[:, None]
            moved = torch.where(active, moved, 0.0)
        weights = weights - moved
        if after is not None:
            after(number, weights, direction, step)
    moved = (weights - start).expand(len(data.sizes), -1)
    taken = sent(torch.tensor(counts, dtype=moved.dtype), moved.device)[:, None]
    if algorithm.personal:
        rng = rng.at("aside")
        client_state = algorithm.aside(
            client_state, state, batches(data, local, counts, rng), exact(site.model, local, rng), local
        )
    return algorithm.message(moved, client_state, state, LocalWork(taken, local, losses))


def one_step(state: State, gradient: Rows, plan: Plan) -> Rows:
    """Return the message of a client that takes one local step along `gradient`, which is public.

    If every client takes one plain step, the message for the mean of their gradients is the mean of their messages.
    """
    algorithm, local, client_state = plan.algorithm, plan.now(state), plan.algorithm.keeps(state, len(gradient))
    start = algorithm.start(state, client_state)
    direction = gradient + local.weight_decay * start if local.weight_decay else gradient
    moved = Optimizer(local)(algorithm.correct(direction, start, client_state, state, 0, local))
    return algorithm.message(-moved, client_state, state, LocalWork(moved.new_ones(len(moved), 1), local))[0]


def exact(model: Model, local: Local, rng: RowStream) -> Gradient:
    """Return a function that computes mean gradients of batches, without clipping or noise."""

    def gradient(weights: Tensor, batch: Batch, number: int) -> Rows:
        seeds = rng.at("model", number).integers()
        seen, groups = augment(batch, local.augment, local.views, rng.at("augment", number))
        sums = model.gradients.sums(weights, seen, None, seeds=seeds, groups=groups)
        return sums / sent(torch.tensor(batch.sizes, dtype=sums.dtype), sums.device)[:, None].clamp_min(1)

    return gradient


def batches(data: Batch, local: Local, counts: Sequence[int], rng: RowStream) -> Iterator[Batch]:
    """Yield batches from shuffled passes over each client's records."""
    if all(local.rate(n) >= 1 for n in set(data.sizes)):
        for _ in range(max(counts, default=0)):
            yield data
        return
    widths = each(lambda n: max(1, round(local.expected_batch(n))), data.sizes)
    per_pass = [max(1, -(-n // w)) for n, w in zip(data.sizes, widths, strict=True)]
    if rng.draws_on(data.x.device):
        yield from _shuffled(data, widths, per_pass, counts, rng)
        return
    orders: dict[int, list[Ints]] = {}
    for number in range(max(counts, default=0)):
        chosen = []
        for k, (width, count) in enumerate(zip(widths, counts, strict=True)):
            turn, part = divmod(number, per_pass[k])
            if turn not in orders:
                orders[turn] = rng.at("shuffle", turn).permutations(data.sizes)
            chosen.append(orders[turn][k][part * width : (part + 1) * width] if number < count else NONE)
        yield data.pick(*flat(chosen, data.sizes, data.x.device))


def each(count: Callable[[int], int], sizes: Sequence[int]) -> list[int]:
    """Apply a function to every client's number of records, once for each number that occurs."""
    known = {size: count(size) for size in set(sizes)}
    return [known[size] for size in sizes]


def _shuffled(
    data: Batch, widths: Sequence[int], per_pass: Sequence[int], counts: Sequence[int], rng: RowStream
) -> Iterator[Batch]:
    """Yield the same kind of batches from passes that are shuffled on a GPU, which is never waited for."""
    device, clients = data.x.device, np.arange(len(data.sizes))
    sizes, width, passes, steps = (np.asarray(v, dtype=np.int64) for v in (data.sizes, widths, per_pass, counts))
    starts, most = np.cumsum(sizes) - sizes, int(sizes.max(initial=0))
    orders: dict[int, Tensor] = {}
    for number in range(int(steps.max(initial=0))):
        turn, part = np.divmod(number, passes)
        turns = np.unique(turn)
        orders = {
            t: orders[t] if t in orders else rng.at("shuffle", t).shuffled(data.sizes, device) for t in turns.tolist()
        }
        many = np.where(number < steps, np.clip(sizes - part * width, 0, width), 0)
        owner = np.repeat(clients, many)
        place = np.arange(len(owner)) - np.repeat(np.cumsum(many) - many - part * width, many)
        row = np.searchsorted(turns, turn)[owner] * len(clients) + owner
        at, first = (sent(torch.from_numpy(v), device) for v in (row * most + place, starts[owner]))
        order = torch.cat([order.reshape(-1) for order in orders.values()])
        yield data.pick(order[at] + first, tuple(many.tolist()))


def record_losses(state: State, data: Batch, model: Model) -> Tensor:
    """Return the loss of the received model on every record [records]."""
    module = copy.deepcopy(model.module).eval()
    weights = model.layout.views(state.params)
    with torch.no_grad():
        parts = [
            model.loss(functional_call(module, weights, (x,)), y)
            for x, y in zip(data.x.split(RECORDS), data.y.split(RECORDS), strict=True)
        ]
    return torch.cat([state.params.new_zeros(0), *parts])


def mean_losses(state: State, data: Batch, model: Model) -> Tensor:
    """Return each client's mean loss [clients, 1]."""
    losses = record_losses(state, data, model)
    return sums(losses, data.sizes) / losses.new_tensor(data.sizes)[:, None].clamp_min(1)


def sums(values: Tensor, sizes: Sequence[int]) -> Tensor:
    """Return each client's sum [clients, 1]; sizes[k] consecutive values belong to client k."""
    parts = [part.sum() for part in values.split(list(sizes))] if len(sizes) else []
    return torch.stack(parts)[:, None] if parts else values.new_zeros(0, 1)
