"""Local training that is not private by itself: shuffled mini-batches, one optimiser a client.

The client-level methods clip what comes out of it as a whole.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from sordino.core.rng import Ints, RowStream, flat
from sordino.core.types import Batch, Model, Rows, Vector
from sordino.methods import optimizers
from sordino.methods.base import Local

NONE = np.empty(0, dtype=np.int64)


def sgd(start: Vector, data: Batch, model: Model, local: Local, rng: RowStream) -> Rows:
    """Train every client from `start`; what each has moved by, [clients, dim]."""
    step = optimizers.make(local)
    weights: Tensor = start
    for number, batch in enumerate(_batches(data, local, rng)):
        sums = model.gradients.sums(weights, batch, None, seeds=rng.at("model", number).integers())
        sizes = torch.tensor(batch.sizes, device=start.device, dtype=start.dtype)[:, None]
        moved = step(sums / sizes.clamp_min(1))
        if 0 in batch.sizes:  # a client that has done all its steps waits for the others
            moved = torch.where(sizes > 0, moved, 0.0)
        weights = weights - moved
    return (weights - start).expand(len(data.sizes), -1)


def _batches(data: Batch, local: Local, rng: RowStream) -> Iterator[Batch]:
    """Shuffled passes over each client's records, in batches of its batch size."""
    if all(local.rate(n) >= 1 for n in data.sizes):
        for _ in range(max((local.count(n) for n in data.sizes), default=0)):
            yield data
        return
    widths = [max(1, round(local.expected_batch(n))) for n in data.sizes]
    counts = [local.count(n) if n else 0 for n in data.sizes]
    per_pass = [max(1, -(-n // w)) for n, w in zip(data.sizes, widths, strict=True)]
    orders: dict[int, list[Ints]] = {}
    for number in range(max(counts, default=0)):
        chosen = []
        for k, (width, count) in enumerate(zip(widths, counts, strict=True)):
            turn, part = divmod(number, per_pass[k])
            if turn not in orders:
                orders[turn] = rng.at("shuffle", turn).permutations(data.sizes)
            chosen.append(orders[turn][k][part * width : (part + 1) * width] if number < count else NONE)
        yield data.pick(*flat(chosen, data.sizes, data.x.device))
