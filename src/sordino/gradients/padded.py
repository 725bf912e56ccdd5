"""Many clients on a GPU: pad every client to one size, trace the whole step once, compile it.

Ragged batches would mean a loop over clients; padded ones are batched products of fixed shapes. The step is then a
pure function of tensors: torch.fx traces it, forward, backward, norms and sums together, and torch.compile fuses
it. Where that fails, or gives other numbers, the same function runs as it is.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from sordino.core.types import Batch
from sordino.gradients.bookkeeping import BookKeeping

ROUND = 8  # sizes are rounded up to a multiple, so that few shapes occur
WASTE = 2.0  # padded records a record, beyond which padding does not pay
SHAPES = 16  # shapes compiled at most
TOLERANCE = 1e-3  # relative difference beyond which a compiled step is not trusted

Step = Callable[..., Tensor]  # weights, x, y, alive[, clip] -> [clients, dim]


def padding(sizes: tuple[int, ...], device: torch.device) -> tuple[Tensor, Tensor]:
    """(index, alive) [clients x size]: which record stands where, and whether it is one. Record 0 fills up."""
    size = -(-max(sizes) // ROUND) * ROUND
    each = torch.tensor(sizes)
    place = torch.arange(size).expand(len(sizes), size)
    alive = place < each.unsqueeze(1)
    index = torch.where(alive, place + (each.cumsum(0) - each).unsqueeze(1), 0)
    return index.reshape(-1).to(device), alive.reshape(-1).to(device)


class Padded:
    """Compiled steps, by shape. `backend` None leaves them uncompiled."""

    def __init__(self, book: BookKeeping, backend: str | None = "inductor") -> None:
        self._book, self._backend = book, backend
        self._steps: dict[tuple[object, ...], Step] = {}
        self._lock = threading.Lock()

    def pays(self, sizes: tuple[int, ...]) -> bool:
        return max(sizes) * len(sizes) <= WASTE * sum(sizes) + ROUND * len(sizes)

    def sums(self, weights: Tensor, batch: Batch, clip: float | None, limit: int) -> Tensor:
        """At most about `limit` records at a time, in parts of as many clients each."""
        size = -(-max(batch.sizes) // ROUND) * ROUND
        count = max(1, min(len(batch.sizes), limit // size))
        parts = -(-len(batch.sizes) // count)
        count = -(-len(batch.sizes) // parts)
        index, alive = padding(batch.sizes, weights.device)
        bound = None if clip is None else weights.new_tensor(clip)
        out = []
        for first in range(0, len(batch.sizes), count):
            own = weights[first : first + count]
            rows = slice(first * size, first * size + own.shape[0] * size)
            inputs = (own, batch.x[index[rows]], batch.y[index[rows]], alive[rows].to(weights.dtype), bound)
            out.append(self._step(inputs)(*(t for t in inputs if t is not None)))
        return torch.cat(out) if len(out) > 1 else out[0]

    def _step(self, inputs: tuple[Tensor | None, ...]) -> Step:
        key = tuple((t.shape, t.dtype, t.device) if t is not None else None for t in inputs)
        if key not in self._steps:
            with self._lock:
                if key not in self._steps:
                    self._steps[key] = self._compile(tuple(t for t in inputs if t is not None))
        return self._steps[key]

    def _plain(self, *inputs: Tensor) -> Tensor:
        weights, x, y, alive = inputs[:4]
        return self._book.pure(weights, x, y, alive, inputs[4] if len(inputs) > 4 else None)

    def _compile(self, inputs: tuple[Tensor, ...]) -> Step:
        if self._backend is None or len(self._steps) >= SHAPES:
            return self._plain
        try:
            graph = make_fx(self._plain)(*inputs)
            step: Step = torch.compile(graph, backend=self._backend, dynamic=False)
            got, expected = step(*inputs), self._plain(*inputs)
        except Exception as error:  # a missing compiler, an operation it does not know: many kinds, none of ours
            warnings.warn(f"no compiled step ({type(error).__name__}: {error}); running it as it is.", stacklevel=2)
            self._backend = None
            return self._plain
        finite = torch.nan_to_num(got - expected, nan=0.0)
        return step if finite.norm() <= TOLERANCE * torch.nan_to_num(expected).norm() else self._plain
