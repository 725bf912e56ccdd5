"""Shared code of the methods as printed that measure their sensitivity on the batch.

It provides the norm of every record's gradient, noise in proportion to it, and the noise scale that the moments
accountant would find if that norm were a bound.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import torch
from torch import Tensor

from sordino.contract.method import Plan
from sordino.core.errors import SpecError
from sordino.core.types import Batch, Model, Rows
from sordino.privacy.calibrate import noise_multiplier
from sordino.privacy.clip import Bounded
from sordino.privacy.events import Composed, Event, GaussianEvent, Repeated, Sampled

NUMBERS = 2**24  # numbers of per-record gradients in memory at once


@dataclass(frozen=True)
class Measured(Bounded):
    """Sums with a "sensitivity" that depends on the records in them: it is not a bound on anything."""

    spread: Tensor = field(default_factory=lambda: torch.zeros(0))  # [clients, 1] or [clients, dim]


def sums_and_norms(
    weights: Tensor,
    batch: Batch,
    model: Model,
    seeds: Sequence[int],
    clip: float | None,
    layers: Sequence[float] | None = None,
) -> tuple[Rows, Tensor]:
    """Return each client's sum of (clipped) per-record gradients, and the norms of these gradients.

    Args:
        weights: Parameters [dim] or [clients, dim].
        batch: Records of all clients.
        model: The model.
        seeds: One seed per client, for randomness in the model.
        clip: Clip bound of a record's gradient, or None.
        layers: Clip bounds of each layer's part, if layers are clipped separately.

    Returns:
        Sums [clients, dim] and norms [records, parts]: one norm of the whole gradient, or one per layer if `layers` is
        given.
    """
    dim = model.layout.dim
    parts = [slice(0, dim)] if layers is None else list(model.layout.layers().values())
    device = batch.x.device
    sizes = torch.tensor(batch.sizes, device=device, dtype=torch.int64)
    owner = torch.arange(len(batch.sizes), device=device).repeat_interleave(sizes)
    place = torch.arange(len(owner), device=device) - (sizes.cumsum(0) - sizes)[owner]
    sums, norms = weights.new_zeros(len(batch.sizes), dim), weights.new_zeros(len(owner), len(parts))
    for index in torch.arange(len(owner), device=device).split(max(1, NUMBERS // max(dim, 1))):
        client = owner[index]
        if not len(client):  # all batches are empty
            break
        # treat every record as a separate client with its own seed
        places = zip(client.tolist(), place[index].tolist(), strict=True)
        drawn = [(seeds[k] + 0x9E3779B97F4A7C15 * i) % 2**63 for k, i in places]
        records = Batch(batch.x[index], batch.y[index], (1,) * len(index))
        used = weights if weights.ndim == 1 else weights.expand(len(batch.sizes), -1)[client]
        rows = model.gradients.sums(used, records, clip, seeds=drawn, layers=layers)
        first, last = int(client[0]), int(client[-1]) + 1
        belongs = torch.arange(first, last, device=device)[:, None] == client
        sums[first:last] += belongs.to(rows.dtype) @ rows
        norms[index] = torch.stack([rows[:, part].norm(dim=1) for part in parts], dim=1)
    return sums, norms


def of_clients(norms: Tensor, sizes: Sequence[int], what: Callable[[Tensor], Tensor]) -> Tensor:
    """Return a statistic of each client's norms [clients, parts]; 0 for a client without records."""
    statistics = [what(part) if len(part) else part.new_zeros(part.shape[1]) for part in norms.split(list(sizes))]
    return torch.stack(statistics) if statistics else norms.new_zeros(0, norms.shape[1])


def sigma(plan: Plan, factor: Callable[[int], float] = lambda t: 1.0) -> float:
    """Return the smallest sigma for which sampled Gaussians of multipliers sigma factor(t) cost (epsilon, delta).

    The cost is that of the whole run. We use our accountant in place of the papers' moments accountant, which would
    require a slightly larger sigma.
    """
    dearest = sorted(factor(t) for t in range(plan.rounds))[: plan.participations]
    rate = max(plan.local.rate(n) for n in plan.sizes)
    return _least(plan.epsilon, plan.delta, rate, plan.local.count(plan.smallest_client), tuple(dearest))


@lru_cache(maxsize=64)
def _least(epsilon: float, delta: float, rate: float, steps: int, factors: tuple[float, ...]) -> float:
    def run(z: float) -> Event:
        each = [GaussianEvent(z * f) for f in factors]
        return Composed(tuple(Repeated(g if rate >= 1 else Sampled(g, rate), steps) for g in each))

    return noise_multiplier(run, epsilon, delta)


def require_plain(plan: Plan) -> None:
    """Raise an error if the plan uses several views per record."""
    if plan.local.views > 1:
        raise SpecError("this method looks at the gradient of every record as it is: use views = 1.")
