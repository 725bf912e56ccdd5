"""Per-client sums of per-sample clipped gradients: the one door to this package.

    sums[k] = sum over the samples i of client k of  g_i min(1, C / |g_i|)

Abadi et al. (2016), arXiv:1607.00133, Algorithm 1, for many clients at once; |.| is the L2 norm over all trainable
parameters. Whoever adds noise to sums[k] protects each sample of client k, with sensitivity C. A sample whose
gradient norm is not finite adds exactly zero; without a clip there is no norm and no such protection.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from sordino.core import check
from sordino.core.errors import DataError, ModelError, SpecError
from sordino.core.types import Batch, SampleLoss
from sordino.core.vector import Layout
from sordino.gradients import clone, cost
from sordino.gradients.bookkeeping import BookKeeping
from sordino.gradients.draw import Draw
from sordino.gradients.memory import channels_last
from sordino.gradients.padded import Padded
from sordino.gradients.persample import PerSample
from sordino.gradients.probe import Draws, Seen
from sordino.gradients.split import Split
from sordino.gradients.tape import Tape, Unsupported

PATHS = ("auto", "book-keeping", "vmap")


class Gradients:
    """Made once from a model, then called from as many threads as one likes; the model is never changed."""

    path: str  # "book-keeping" or "vmap"
    reason: str  # why, in one line; both may still change at the first batch, never after it

    def __init__(self, module: nn.Module, loss: SampleLoss, layout: Layout, path: str) -> None:
        check.one_of(PATHS, path=path)
        clone.refuse_batch_statistics(module)
        self._asked, self._layout = path, layout
        self._slow = PerSample(module, loss, layout)
        self._fast: BookKeeping | None = None
        self._lock = threading.Lock()
        self._known: dict[tuple[object, ...], Seen] = {}  # by the shape of a sample
        self._random = False
        self.path, self.reason = "vmap", "asked for"
        if path != "vmap":
            try:
                self._fast = BookKeeping(module, loss, layout, clone.plan(module, layout))
                self._padded = Padded(self._fast)
                self.path, self.reason = "book-keeping", "every trainable parameter belongs to a layer with a rule"
            except Unsupported as error:
                self._retreat(str(error))

    @classmethod
    def of(cls, module: nn.Module, loss: SampleLoss, layout: Layout, path: str = "auto") -> Gradients:
        """path: "auto" takes book-keeping where it can; naming one insists on it."""
        return cls(module, loss, layout, path)

    def sums(self, weights: Tensor, batch: Batch, clip: float | None, *, seeds: Sequence[int] | None = None) -> Tensor:
        """Each client's sum of its samples' gradients [clients, dim], each of norm at most clip.

        weights are [dim], the same for all clients, or [clients, dim]; clip None sums without clipping; seeds has
        one number a client and is needed if the model draws random numbers (dropout).
        """
        self._check(weights, batch, clip, seeds)
        weights = weights.detach()
        if batch.x.shape[0] == 0 or not self._layout.slots:
            return weights.new_zeros(len(batch.sizes), self._layout.dim)
        seen = self._look(weights, batch)
        if self._random and seeds is None:
            raise SpecError("the model draws random numbers; give one seed a client, or call its eval() first.")
        if self._fast is None or self.path == "vmap":
            return self._slow.sums(weights, batch, clip, seeds)
        x = channels_last(batch.x) if seen.last else batch.x
        limit = cost.records(seen.numbers, x.device.type == "cpu")
        if x.device.type == "cuda" and weights.dim() == 2 and not self._random and self._padded.pays(batch.sizes):
            return self._padded.sums(weights, batch, clip, limit)
        return self._fast.sums(weights, Batch(x, batch.y, batch.sizes), clip, seeds, limit)

    def _retreat(self, reason: str) -> None:
        if self._asked == "book-keeping":
            raise ModelError(f"no book can be kept: {reason}. Use path='auto' or 'vmap'.")
        self.path, self.reason = "vmap", reason

    def _look(self, weights: Tensor, batch: Batch) -> Seen:
        """Once for every shape of a sample: see `probe`."""
        key = (*batch.x.shape[1:], batch.x.dtype, batch.x.device)
        if key not in self._known:
            with self._lock:
                if key not in self._known:
                    self._known[key] = self._probe(weights[0] if weights.dim() == 2 else weights, batch)
        return self._known[key]

    def _probe(self, weights: Tensor, batch: Batch) -> Seen:
        if self._fast is not None and self.path == "book-keeping":
            try:
                images = batch.x.dim() == 4 and batch.x.is_floating_point() and batch.x.device.type == "cpu"
                return self._try_orders(self._fast, weights, batch, images)
            except Unsupported as error:
                self._retreat(str(error))
        with Draws(weights.device) as draws, torch.no_grad():
            self._slow.one(weights, batch.x[0], batch.y[0])
        self._random = self._random or draws.seen
        return Seen(False, 0)

    def _try_orders(self, fast: BookKeeping, weights: Tensor, batch: Batch, last: bool) -> Seen:
        if last:
            try:
                return self._forward(fast, weights, batch, True)
            except RuntimeError:  # a view that needs the usual order of memory, most likely
                pass
        return self._forward(fast, weights, batch, False)

    def _forward(self, fast: BookKeeping, weights: Tensor, batch: Batch, last: bool) -> Seen:
        numbers = 0
        for size in (1, 2):
            pick = torch.arange(size, device=batch.x.device) % batch.x.shape[0]
            x, draw = batch.x[pick], Draw((0,))
            tape = Tape(self._layout, weights, Split((size,)), None, draw, weights.new_zeros(1, self._layout.dim))
            with Draws(weights.device) as draws, torch.no_grad():
                fast.forward(tape, channels_last(x) if last else x, batch.y[pick])
            if draws.seen:
                raise Unsupported("the model draws random numbers outside of dropout layers")
            self._random = self._random or draw.used
            numbers = tape.numbers // size
        return Seen(last, numbers)

    def _check(self, weights: Tensor, batch: Batch, clip: float | None, seeds: Sequence[int] | None) -> None:
        clients, dim = len(batch.sizes), self._layout.dim
        if clip is not None:
            check.positive(clip=clip)
        if tuple(weights.shape) not in ((dim,), (clients, dim)):
            raise SpecError(f"weights must be [{dim}] or [{clients}, {dim}], not {list(weights.shape)}.")
        if sum(batch.sizes) != batch.x.shape[0] or batch.x.shape[0] != batch.y.shape[0]:
            raise DataError(
                f"sizes add up to {sum(batch.sizes)} records, but x has {batch.x.shape[0]} and y {batch.y.shape[0]}."
            )
        if seeds is not None and len(seeds) != clients:
            raise SpecError(f"seeds must hold one number for each of {clients} clients, not {len(seeds)}.")
