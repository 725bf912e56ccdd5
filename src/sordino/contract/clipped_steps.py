"""Noisy local steps: gradients of records (or users) are clipped, summed and released with noise at every local step.

This module holds what DP-SGD and the methods derived from it share: how batches are drawn and what that means for the
privacy cost (`releases`), the local steps themselves (`steps`), and the clients' losses for algorithms that need them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate

import torch
from torch import Tensor

from sordino.algorithms.base import Algorithm
from sordino.contract import local_sgd as training
from sordino.contract.augment import augment
from sordino.contract.plan import Plan
from sordino.contract.site import Site, units
from sordino.core.devices import sent
from sordino.core.errors import RunError, SpecError
from sordino.core.rng import Picks, RowStream, picked
from sordino.core.types import Batch, Rows, State
from sordino.privacy.clip import Bounded
from sordino.privacy.release import GRADIENTS, Draw, Mechanism, Release

SAMPLINGS = ("poisson", "fixed")  # ways to draw a batch
AHEAD = 16  # local steps whose batches a GPU draws at once
Groups = Sequence[int] | None
Clipped = Callable[[Tensor, Batch, list[int], Groups], Bounded]  # weights, batch, seeds, views per unit -> clipped sums
LetOut = Callable[[Bounded], Rows]  # clipped sums -> noisy sums


# --- releases


def releases(
    plan: Plan,
    mechanism: Mechanism,
    bound: float,
    sampling: str = "poisson",
    losses: Mechanism | None = None,
    total: Mechanism | None = None,
    terms: int | None = GRADIENTS,
) -> tuple[Release, ...]:
    """Declare the noisy sums of one participation.

    There is one noisy gradient sum per local step and, if the algorithm needs losses, one noisy sum of losses.

    Args:
        plan: The public plan of the run.
        mechanism: Mechanism applied to every gradient sum.
        bound: Clip bound of one unit's gradient.
        sampling: How batches are drawn, one of `SAMPLINGS`.
        losses: Mechanism for the losses; `mechanism` if None.
        total: Mechanism whose single use covers all uses of the whole run, if there is one.
        terms: `Release.terms` of the gradient sums.
    """
    unit, times = plan.unit or "record", plan.local.count(plan.sizes[0])
    gradient = Release(
        "gradient",
        mechanism,
        unit,
        bound,
        times=times,
        draw=draw(plan, sampling),
        total=total,
        terms=terms,
        key="train/noise #",
    )
    if "losses" not in plan.algorithm.needs:
        return (gradient,)
    most = plan.sizes[-1]
    cap = plan.algorithm.loss_clip  # losses lie in [0, cap]: adding or replacing a record moves the sum by at most cap
    return gradient, Release(
        "losses", losses or mechanism, unit, cap, swing=1, total=total, terms=most, key="train/loss noise"
    )


def draw(plan: Plan, sampling: str) -> Draw:
    """Return the draw of records within a client that is used for accounting: the most expensive over all clients."""
    local, sizes = plan.local, plan.sizes
    if local.steps is None and local.batch_rate is None and len(sizes) > 1:
        raise SpecError(
            "dp-sgd with local_epochs and batch_size needs clients of one size "
            f"(found {sizes[0]} to {sizes[-1]} records). Use local_steps, or batch_rate."
        )
    if sampling != "fixed":
        return Draw(rate=max(local.rate(n) for n in sizes))
    if all(taken(plan, n) >= n for n in sizes):
        return Draw()
    # the client that draws the largest fraction of its records has the highest cost
    dear = max(sizes, key=lambda n: taken(plan, n) / n)
    return Draw(size=taken(plan, dear), population=dear)


def taken(plan: Plan, size: int) -> int:
    """Return the size of a fixed-size batch of a client with `size` records: an integer, at least one."""
    return min(size, max(1, int(plan.local.rate(size) * size)))


# --- local training


def steps(
    state: State,
    site: Site,
    clipped: Clipped,
    let_out: LetOut,
    sampling: str = "poisson",
    algorithm: Algorithm | None = None,
    losses: LetOut | None = None,
) -> tuple[Rows, Rows]:
    """Train every client along noisy gradients.

    Args:
        state: Public state at the start of the round.
        site: The clients.
        clipped: Computes the clipped gradient sums of a batch.
        let_out: Adds noise to clipped gradient sums.
        sampling: How batches are drawn, one of `SAMPLINGS`.
        algorithm: Replaces the plan's algorithm if given.
        losses: Adds noise to the sums of losses; the outlet "losses" if None.

    Returns:
        What the algorithm sends for each client, and the rows that it keeps at each client.
    """
    plan, data, rng = site.plan, site.data, site.rng
    local, dtype = plan.now(state), state.params.dtype
    sizes = units(data, plan)
    expected = sent(torch.tensor([local.expected_batch(n) for n in sizes], dtype=dtype), state.params.device)
    full = local.count(plan.smallest_client)
    counts = plan.stragglers.steps([full] * len(sizes), rng.at("slow"))

    def gradient(weights: Tensor, batch: Batch, number: int) -> Rows:
        return let_out(_sums(weights, batch, number, site, clipped)) / expected[:, None]

    batches = batches_of(data, plan, sampling, [rng.at("batch", number) for number in range(full)])
    needed = None
    if "losses" in plan.algorithm.needs:
        needed = noisy_losses(state, site, losses or site.out["losses"])
    return training.run(state, site, counts, batches, gradient, needed, algorithm=algorithm)


def clipped_sums(weights: Tensor, site: Site, clipped: Clipped, sampling: str = "poisson") -> Bounded:
    """Return the clipped gradient sums of the first local step."""
    return _sums(weights, batch_of(site.data, site.plan, sampling, site.rng.at("batch", 0)), 0, site, clipped)


def _sums(weights: Tensor, batch: Batch, number: int, site: Site, clipped: Clipped) -> Bounded:
    local, rng = site.plan.local, site.rng
    seeds = rng.at("model", number).integers()
    seen, groups = augment(batch, local.augment, local.views, rng.at("augment", number))
    if batch.groups is not None:  # all views of a user's records belong to that user
        groups = [local.views * n for client in batch.groups for n in client]
    return clipped(weights, seen, seeds, groups)


def weights(site: Site, like: Rows) -> Tensor:
    """Return the weight of each client in a sum [clients]: its number of records (or users), which is public."""
    return sent(torch.tensor(units(site.data, site.plan), dtype=like.dtype), like.device) / site.plan.mean_client


def batch_of(data: Batch, plan: Plan, sampling: str, rng: RowStream) -> Batch:
    """Draw a batch at every client."""
    return next(batches_of(data, plan, sampling, [rng]))


def batches_of(data: Batch, plan: Plan, sampling: str, rngs: Sequence[RowStream]) -> Iterator[Batch]:
    """Draw batches at every client, one for each stream."""
    sizes = units(data, plan)
    rates = [plan.local.rate(n) for n in sizes]
    if all(r >= 1 for r in rates):
        for _ in rngs:
            yield data if plan.unit == "user" else replace(data, groups=None)
        return
    for index, counts in _picks(sizes, rates, plan, sampling, rngs, data.x.device):
        if sampling != "fixed" and plan.exact is not None and max(counts, default=0) > plan.exact.batch:
            raise RunError("a batch is larger than its noise was made for, which should never happen: start a new run.")
        yield _users(data, index, counts) if plan.unit == "user" else data.pick(index, counts)


def _picks(
    sizes: Sequence[int],
    rates: Sequence[float],
    plan: Plan,
    sampling: str,
    rngs: Sequence[RowStream],
    device: torch.device,
) -> Iterator[Picks]:
    """Draw the records (or users) of every step; on a GPU several steps ahead, so that it is seldom waited for."""
    if sampling == "fixed":
        yield from (rng.fixed(sizes, [taken(plan, n) for n in sizes], device) for rng in rngs)
    elif not all(rng.draws_on(device) for rng in rngs):
        yield from (rng.poisson(sizes, rates, device) for rng in rngs)
    else:
        for first in range(0, len(rngs), AHEAD):
            yield from picked([rng.kept(sizes, rates, device) for rng in rngs[first : first + AHEAD]], sizes)


def noisy_losses(state: State, site: Site, let_out: LetOut, cap: float | None = None) -> Tensor:
    """Return each client's noisy mean loss [clients, 1].

    The loss of every record (or user) is clamped to [0, cap] before averaging; `cap` defaults to the algorithm's
    `loss_clip`.
    """
    plan, data = site.plan, site.data
    cap = plan.algorithm.loss_clip if cap is None else cap
    losses = torch.nan_to_num(training.record_losses(state, data, site.model), nan=cap).clamp(0, cap)
    groups = data.groups if plan.unit == "user" else None
    if groups is not None:
        lengths = torch.tensor([n for client in groups for n in client], device=losses.device)
        owner = torch.arange(len(lengths), device=losses.device).repeat_interleave(lengths)
        losses = losses.new_zeros(len(lengths)).index_add_(0, owner, losses) / lengths
    sizes = units(data, plan)
    sums = training.sums(losses, sizes)
    noisy = let_out(Bounded(sums, cap))
    return noisy / torch.tensor(sizes, device=sums.device, dtype=sums.dtype)[:, None].clamp_min(1)


def _users(data: Batch, chosen: Tensor, counts: tuple[int, ...]) -> Batch:
    """Return all records of the chosen users.

    `chosen` indexes the users of all clients in client order; counts[k] of the chosen users belong to client k.
    """
    lengths = torch.tensor([n for client in data.groups or () for n in client], device=chosen.device)
    starts, many = (lengths.cumsum(0) - lengths)[chosen], lengths[chosen]
    first = many.cumsum(0) - many
    total = int(many.sum())
    index = torch.arange(total, device=chosen.device) + (starts - first).repeat_interleave(many, output_size=total)
    groups = tuple(tuple(part) for part in _split(many.tolist(), counts))
    return replace(data.pick(index, tuple(sum(g) for g in groups)), groups=groups)


def _split(values: list[int], counts: tuple[int, ...]) -> list[list[int]]:
    ends = list(accumulate(counts))
    return [values[end - n : end] for n, end in zip(counts, ends, strict=True)]
