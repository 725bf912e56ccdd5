"""Per-client sums of clipped gradients, of samples or of groups of samples: the entry point of this package.

    sums[k] = sum over the samples i of client k of  g_i min(1, C / |g_i|)

Abadi et al. (2016), arXiv:1607.00133, Algorithm 1, for many clients at once. |.| is the L2 norm over all trainable
parameters or, for noise calibrated to it, the L1 norm. Adding noise to sums[k] protects each sample of client k, with
sensitivity C in that norm; with groups (see `groups`), g_i is the mean gradient of a group, and each group is
protected. A gradient whose norm is not finite adds exactly zero; without a clip no norm is taken and there is no such
protection. That g_i depends on sample i alone is enforced, not left to the model: see `code`.

There are two other ways to clip. With a scale s, which may differ between clients, |g_i / s| is bounded by C, and
sums[k] / s has sensitivity C (see `scale`). With one bound per layer, each layer's part of g_i is bounded by its own
bound, and the sensitivity is the root of the sum of the squared bounds (see `clipping`).
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from sordino.core import check
from sordino.core.devices import sent
from sordino.core.errors import DataError, ModelError, SordinoError, SpecError
from sordino.core.types import Batch, SampleLoss
from sordino.core.vector import Layout
from sordino.gradients import clone, cost, half
from sordino.gradients import groups as grouping
from sordino.gradients.bookkeeping import BookKeeping
from sordino.gradients.clipping import Clip, by_layer, full_products, large_enough
from sordino.gradients.code import Code
from sordino.gradients.layers import images
from sordino.gradients.memory import channels_last
from sordino.gradients.padded import Padded, crowded, small
from sordino.gradients.persample import ENTRIES, PerSample
from sordino.gradients.plain import PassSettings, Plain
from sordino.gradients.probe import RECOMPUTED, FirstLook, look
from sordino.gradients.scale import checked, pick
from sordino.gradients.split import Split
from sordino.gradients.tape import Unsupported
from sordino.gradients.watch import Draws
from sordino.gradients.whole import clipped

PATHS = ("auto", "book-keeping", "vmap")
AGAIN, STEADY = 12, 1e-4  # repeated calls with one record, and the tolerated difference of their losses


@dataclass(frozen=True)
class Call:
    """The arguments of one call."""

    weights: Tensor
    batch: Batch
    seeds: Sequence[int] | None
    seen: FirstLook
    width: int = 1  # number of consecutive records that are clipped together
    share: Tensor | None = None  # [records], weight of each record's loss
    scale: Tensor | None = None  # [dim] or [clients, dim], divides gradients before their norm is taken
    norm: int = 2  # the norm that is clipped, 1 or 2

    @property
    def cpu(self) -> bool:
        """Whether the records are on a CPU."""
        return self.batch.x.device.type == "cpu"

    @property
    def cuda(self) -> bool:
        """Whether the records are on a CUDA device."""
        return self.batch.x.device.type == "cuda"

    @property
    def limit(self) -> int:
        """Number of records processed at a time; fewer if gradients are held, for the L1 norm or with a scale."""
        limit = cost.records(self.seen.numbers, self.cpu)
        if self.norm == 2 and self.scale is None:
            return limit
        return min(limit, self.width * max(1, cost.KEPT["cpu" if self.cpu else "cuda"] // self.weights.shape[-1]))


class CohortGradients:
    """Computes per-client sums of clipped gradients of a model.

    An object may be called from any number of threads; the model is never changed.
    """

    path: str  # "book-keeping" or "vmap"
    reason: str  # why, in one line; path and reason may change at the first batch, never after it
    compiled: bool = False  # on a GPU, compile passes whose shapes are frequent, unless they are small
    autocast: bool = False  # on a GPU, run passes in bfloat16; `half` says how, if gradients are clipped

    def __init__(self, module: nn.Module, loss: SampleLoss, layout: Layout, path: str) -> None:
        check.one_of(PATHS, path=path)
        clone.refuse_batch_statistics(module)
        self._asked, self._layout, self._code = path, layout, Code(module, loss)
        self._slow, self._plain = PerSample(self._code, layout), Plain(self._code, layout)
        self._fast: BookKeeping | None = None
        self._lock = threading.Lock()
        self._known: dict[tuple[object, ...], FirstLook] = {}  # by the shape of a sample
        self._random = self._absolute = False
        self._tried: set[tuple[object, ...]] = set()  # shapes of samples for which `_try_images` has been called
        self._refused = False
        self._recurrent = any(isinstance(part, nn.RNNBase) for part in module.modules())  # cuDNN has kernels for these
        self.path, self.reason = "vmap", "asked for"
        if path != "vmap":
            try:
                if reason := self._code.unfit():
                    raise Unsupported(reason)
                plan = clone.plan(module, layout)
                self._fast = BookKeeping(self._code, layout, plan)
                self._absolute = all(layer.absolute for layer, slots in plan.values() if slots)
                self._padded = Padded(self._fast)
                self.path, self.reason = "book-keeping", "every trainable parameter belongs to a layer with a rule"
            except Unsupported as error:
                self._retreat(str(error))

    @classmethod
    def of(cls, module: nn.Module, loss: SampleLoss, layout: Layout, path: str = "auto") -> CohortGradients:
        """Create the gradients of a model and a loss.

        Args:
            module: the model.
            loss: returns one loss per sample.
            layout: the trainable parameters and their order.
            path: "book-keeping" or "vmap", or "auto" for book-keeping if the model allows it, else vmap.

        Raises:
            ModelError: if "book-keeping" is asked for and cannot be used.
        """
        return cls(module, loss, layout, path)

    def sums(
        self,
        weights: Tensor,
        batch: Batch,
        clip: float | None,
        *,
        seeds: Sequence[int] | None = None,
        groups: Sequence[int] | None = None,
        scale: Tensor | None = None,
        layers: Sequence[float] | None = None,
        norm: int = 2,
    ) -> Tensor:
        """Return each client's sum of its samples' gradients [clients, dim], each clipped to a norm of at most `clip`.

        Args:
            weights: [dim], the same for all clients, or [clients, dim].
            batch: the records of all clients.
            clip: the clip bound; None sums without clipping.
            seeds: one seed per client, needed if the model draws random numbers (dropout).
            groups: lengths of consecutive runs of records that are clipped together: each run adds its mean gradient,
                clipped to a norm of at most `clip`.
            scale: [dim] or [clients, dim], positive. The gradient divided by the scale is clipped to a norm of at most
                `clip`; the sums themselves are not divided.
            layers: one bound for each layer of `Layout.layers`, instead of `clip`.
            norm: the norm that `clip` bounds, 2 or 1. The L1 norm cannot be combined with `scale` or `layers`, and is
                computed by vmap, whatever the path, if embeddings or recurrent layers are trained.
        """
        self._check(weights, batch, clip, seeds)
        self._check_norm(norm, clip is not None and scale is None and layers is None)
        bound, scale = self._bounds(weights, len(batch.sizes), clip, scale, layers, norm)
        if groups is not None:
            grouping.check(groups, batch.sizes)
        weights = weights.detach()
        if batch.x.shape[0] == 0 or not self._layout.slots:
            return weights.new_zeros(len(batch.sizes), self._layout.dim)
        seen = self._look(weights, batch)
        if self._random and seeds is None:
            raise SpecError("the model draws random numbers; give one seed a client, or call its eval() first.")
        call = Call(weights, batch, seeds, seen, scale=scale, norm=norm)
        if bound is None:
            share = None if groups is None else grouping.shares(groups, weights)
            return self._unclipped(replace(call, share=share), self.autocast and call.cuda)
        full_products(weights.device)
        if self._fast is not None:
            self._fast.half = self.autocast and weights.device.type in half.DEVICES
        with torch.autocast(weights.device.type, enabled=False):  # norms and sums in the same precision
            if self._fast is not None and self._fast.half and batch.x.dim() == 4 and batch.x.is_floating_point():
                self._try_images(self._fast, weights, batch)
            return self._clipped(call, bound, groups)

    def _clipped(self, call: Call, bound: Clip, groups: Sequence[int] | None) -> Tensor:
        if groups is None:
            return self._route(call, bound)
        weights, batch, seeds = call.weights, call.batch, call.seeds
        out = weights.new_zeros(len(batch.sizes), self._layout.dim)
        for part in grouping.parts(groups, batch, weights):
            part_seeds = grouping.apart(seeds, part.width - 1)
            part_call = replace(call, batch=part.batch, seeds=part_seeds, width=part.width, share=part.share)
            too_wide = self.path == "book-keeping" and part.width > part_call.limit
            out += self._wide(part_call, bound) if too_wide else self._route(part_call, bound)
        return out

    def _unclipped(self, call: Call, bfloat16: bool = False) -> Tensor:
        """Return sums without clipping by the fastest way; no per-sample quantity is needed."""
        batch, fit, book_keeping = call.batch, call.seen.fit, self.path == "book-keeping"
        quick = bfloat16 or (call.cuda and self._recurrent) or cost.plain(call.seen.numbers, batch.sizes, call.cpu)
        if fit.usable and (not book_keeping or quick):
            limit = cost.records(fit.numbers or call.seen.numbers, call.cpu)
            how = PassSettings(fit.last, self._random and not book_keeping, self._random, bfloat16, self.compiled)
            return self._plain.sums(call.weights, batch, call.seeds, limit, call.share, how)
        return self._route(call, None)

    def _wide(self, call: Call, clip: Clip) -> Tensor:
        """Clip groups too long to be held at once: each is run as a client, and its gradient [dim] is then clipped."""
        weights, batch, width = call.weights, call.batch, call.width
        out = weights.new_zeros(len(batch.sizes), self._layout.dim)
        step = max(1, ENTRIES // self._layout.dim)
        for k, units in Split(batch.sizes).units(width).slices():
            for first in range(units.start, units.stop, step):
                last = min(first + step, units.stop)
                rows = slice(first * width, last * width)
                part = Batch(batch.x[rows], batch.y[rows], (width,) * (last - first))
                seeds = None if call.seeds is None else [call.seeds[k] + i - units.start for i in range(first, last)]
                share = None if call.share is None else call.share[rows]
                client_weights = weights[k] if weights.dim() == 2 else weights
                means = self._unclipped(Call(client_weights, part, seeds, call.seen, share=share))
                out[k] += clipped(means, clip, self._layout, pick(call.scale, k), call.norm)
        return out

    def _route(self, call: Call, clip: Clip | None) -> Tensor:
        """Return sums by book-keeping if it can be used, on a GPU with padding if that pays; else by vmap."""
        weights, batch, rest = call.weights, call.batch, (call.width, call.share, call.scale)
        if self._fast is None or self.path == "vmap" or (call.norm == 1 and not self._absolute):
            return self._slow.sums(weights, batch, clip, call.seeds, *rest, call.norm)
        if call.cuda and not self._random:
            separate = weights.dim() == 2
            if separate and cost.alone(call.seen.numbers, batch.sizes):
                return self._one_by_one(call, clip)
            few = small(sum(batch.sizes), call.limit)
            tiles = self._padded.tiles(batch.sizes, weights.shape[-1], call.seen.numbers, call.width)
            pays = tiles or self._padded.pays(batch.sizes)
            if call.norm == 2 and pays and (separate or few or crowded(batch.sizes)):
                each = weights.expand(len(batch.sizes), -1) if few else weights
                return self._padded.sums(each, batch, clip, call.limit, *rest, self.compiled, call.seen.numbers)
            if len(batch.sizes) == 1 and call.norm == 2:
                return self._one_by_one(call, clip)
        return self._together(call, clip)

    def _together(self, call: Call, clip: Clip | None) -> Tensor:
        """Return sums by book-keeping for all clients at once, without padding."""
        if self._fast is None:
            raise Unsupported(self.reason)
        batch, rest = call.batch, (call.width, call.share, call.scale)
        x = channels_last(batch.x) if call.seen.last else batch.x
        flat = Batch(x, batch.y, batch.sizes)
        return self._fast.sums(call.weights, flat, clip, call.seeds, call.limit, *rest, call.norm)

    def _one_by_one(self, call: Call, clip: Clip | None) -> Tensor:
        """Process clients one by one, each with a single set of weights, for which PyTorch has kernels."""
        weights, batch = call.weights, call.batch
        out = weights.new_zeros(len(batch.sizes), self._layout.dim)
        bound = clip if clip is None else sent(torch.as_tensor(clip, dtype=out.dtype), out.device)
        for k, rows in Split(batch.sizes).slices():
            part = Batch(batch.x[rows], batch.y[rows], (rows.stop - rows.start,))
            share = None if call.share is None else call.share[rows]
            own = weights[k] if weights.dim() == 2 else weights
            client_call = replace(call, weights=own, batch=part, share=share, scale=pick(call.scale, k))
            out[k] = self._one_client(client_call, bound) if call.norm == 2 else self._together(client_call, clip)[0]
        return out

    def _one_client(self, call: Call, bound: Tensor | None) -> Tensor:
        """Return the sum [dim] of the only client, in parts of which each is recorded if the device has room for it."""
        out, batch, numbers = torch.zeros_like(call.weights), call.batch, call.seen.numbers
        limit = min(call.limit, self._padded.most(numbers, batch.x.device))
        for _, rows, sizes in Split(batch.sizes).chunks(limit, call.width):
            part = Batch(batch.x[rows], batch.y[rows], sizes)
            share = None if call.share is None else call.share[rows]
            out += self._padded.single_client(call.weights, part, bound, call.width, share, call.scale, numbers)
        return out

    def _retreat(self, reason: str) -> None:
        if self._asked == "book-keeping":
            raise ModelError(f"no book can be kept: {reason}. Use path='auto' or 'vmap'.")
        self.path, self.reason = "vmap", reason

    def _look(self, weights: Tensor, batch: Batch) -> FirstLook:
        """Probe the model once for every shape of a sample: see `probe`."""
        key = (*batch.x.shape[1:], batch.x.dtype, batch.x.device)
        if key not in self._known:
            with self._lock:
                if key not in self._known:
                    self._known[key] = self._probe(weights[0] if weights.dim() == 2 else weights, batch)
        return self._known[key]

    def _probe(self, weights: Tensor, batch: Batch) -> FirstLook:
        seen = None
        if self._fast is not None and self.path == "book-keeping":
            try:
                seen = look(self._fast, self._layout, weights, batch)
            except Unsupported as error:
                self._retreat(str(error))
        if seen is None:
            with Draws(weights.device) as draws, torch.no_grad():
                self._slow.sample_loss(weights, batch.x[0], batch.y[0])
            seen = FirstLook(False, 0, draws.seen)
            try:  # also try a backward pass
                self._slow.sums(weights, Batch(batch.x[:1], batch.y[:1], (1,)), None, (0,))
            except RuntimeError as error:
                if "torch.utils.checkpoint" in str(error):
                    raise ModelError(RECOMPUTED) from error
                raise
        self._random = self._random or seen.random
        self._check_steady(weights, batch)
        seen = replace(seen, fit=self._plain.fit(weights, batch, self.path == "book-keeping"))
        if not self._known:  # the first look
            self.reason += self._code.remark
        return seen

    def _try_images(self, book: BookKeeping, weights: Tensor, batch: Batch) -> None:
        """Find out, once for every shape of a sample, whether images may stay in bfloat16 and channels-last.

        Code between layers may need contiguous memory, or numbers of one type. Then layers return float32.
        """
        key = (*batch.x.shape[1:], batch.x.dtype, batch.x.device)
        with self._lock:
            if key in self._tried:
                return
            images.ready(batch.x.device)  # not for the first time in the middle of a pass
            book.images = not self._refused
            one = Batch(batch.x[:1], batch.y[:1], (1,))
            try:
                book.sums(weights[0] if weights.dim() == 2 else weights, one, 1.0, (0,), 1)
            except Exception:  # whatever the model raises
                book.images, self._refused = False, True
            self._tried.add(key)

    @property
    def own_code(self) -> bool:
        """Whether the model or the loss contains code that is not on the closed list of `known`."""
        return not self._code.known

    def _check_steady(self, weights: Tensor, batch: Batch) -> None:
        """Refuse code that keeps state which cannot be restored.

        Such code returns different losses for the same record when called again, or after calls with other records:
        much larger, zero or reversed ones.
        """
        if self._code.known:
            return
        book = self._fast if self.path == "book-keeping" else None
        again = self._slow.again if book is None else book.again
        x, y = batch.x[0], batch.y[0]
        repeats = [again(weights, x, y) for _ in range(AGAIN)]
        for other in _others(x):
            try:
                again(weights, other, y)
            except SordinoError:
                raise
            except Exception:  # values the model cannot process; any type of error
                continue
            repeats.append(again(weights, x, y))
        losses = torch.stack(repeats).double()
        if not torch.allclose(losses, losses[:1], rtol=STEADY, atol=STEADY, equal_nan=True):
            raise ModelError(
                "the model or its loss gives other numbers for the same record when it is called again, or after other"
                " records, so it keeps something from call to call. Let it depend on its inputs and parameters alone."
            )

    def _bounds(
        self,
        weights: Tensor,
        clients: int,
        clip: float | None,
        scale: Tensor | None,
        layers: Sequence[float] | None,
        norm: int,
    ) -> tuple[Clip | None, Tensor | None]:
        """Check and return what bounds the norms: (clip or the bounds of the layers, scale)."""
        if layers is not None:
            if clip is not None:
                raise SpecError(f"layers holds the bounds, so clip must be None, not {clip!r}.")
            if scale is not None:
                raise SpecError("scale and layers do not go together: the scale is for one clip of whole gradients.")
            return by_layer(layers, self._layout, weights), None
        if clip is not None and norm == 2:
            large_enough("clip", clip)
        if scale is None:
            return clip, None
        if clip is None:
            raise SpecError("scale says how norms are taken, but clip is None and none is; give a clip, or no scale.")
        return clip, checked(scale, weights, clients)

    @staticmethod
    def _check_norm(norm: int, alone: bool) -> None:
        if norm not in (1, 2):
            raise SpecError(f"gradients are clipped in the L1 or the L2 norm, so norm must be 1 or 2, not {norm!r}.")
        if norm == 1 and not alone:
            raise SpecError("norm=1 bounds whole gradients by one clip; give a clip, and neither scale nor layers.")

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


def _others(x: Tensor) -> list[Tensor]:
    """Return records unlike x, made from its own numbers: on a GPU an index out of range would end the process."""
    turned = x.flip(tuple(range(x.dim())))
    if not x.is_floating_point():
        return [turned, torch.zeros_like(x)]
    return [turned, x / 2] if x.device.type != "cpu" else [1e4 * x, torch.zeros_like(x), -x, x / 1e4, turned]
