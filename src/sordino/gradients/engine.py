"""Per-client sums of clipped gradients, of samples or of groups of them: the one door to this package.

    sums[k] = sum over the samples i of client k of  g_i min(1, C / |g_i|)

Abadi et al. (2016), arXiv:1607.00133, Algorithm 1, for many clients at once; |.| is the L2 norm over all trainable
parameters, or, for noise that is made for it, the L1 norm. Whoever adds noise to sums[k] protects each sample of client
k, with sensitivity C in that norm; with groups (see `groups`) g_i is the mean gradient of a group, and each group is
protected. What has a norm that is not finite adds exactly zero; without a clip there is no norm and no such protection.
That g_i depends on sample i alone is not left to the model: see `code`.

Two other balls to clip to. With a scale s, which each client may have of its own, |g_i / s| is bounded by C, and
sums[k] / s has sensitivity C (see `scale`). With one bound a layer each layer's part of g_i is bounded by its own, and
the sensitivity is the root of the sum of their squares (see `clipping`).
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from sordino.core import check
from sordino.core.errors import DataError, ModelError, SordinoError, SpecError
from sordino.core.types import Batch, SampleLoss
from sordino.core.vector import Layout
from sordino.gradients import clone, cost
from sordino.gradients import groups as grouping
from sordino.gradients.bookkeeping import BookKeeping
from sordino.gradients.clipping import Clip, by_layer, full_products, large_enough
from sordino.gradients.code import Code
from sordino.gradients.memory import channels_last
from sordino.gradients.padded import Padded, small
from sordino.gradients.persample import ENTRIES, PerSample
from sordino.gradients.plain import PassSettings, Plain
from sordino.gradients.probe import RECOMPUTED, FirstLook, look
from sordino.gradients.scale import checked, pick
from sordino.gradients.split import Split
from sordino.gradients.tape import Unsupported
from sordino.gradients.watch import Draws
from sordino.gradients.whole import clipped

PATHS = ("auto", "book-keeping", "vmap")
AGAIN, STEADY = 12, 1e-4  # calls with one record, and by what their losses may differ


@dataclass(frozen=True)
class Call:
    """What is summed."""

    weights: Tensor
    batch: Batch
    seeds: Sequence[int] | None
    seen: FirstLook
    width: int = 1  # so many records are clipped as one
    share: Tensor | None = None  # [records], what a record counts for
    scale: Tensor | None = None  # [dim] or [clients, dim], what gradients are divided by before their norm is taken
    norm: int = 2  # which is clipped

    @property
    def cpu(self) -> bool:
        return self.batch.x.device.type == "cpu"

    @property
    def cuda(self) -> bool:
        return self.batch.x.device.type == "cuda"

    @property
    def limit(self) -> int:
        """Records at a time; fewer where gradients are held, in the L1 norm and with a scale."""
        limit = cost.records(self.seen.numbers, self.cpu)
        if self.norm == 2 and self.scale is None:
            return limit
        return min(limit, self.width * max(1, cost.KEPT["cpu" if self.cpu else "cuda"] // self.weights.shape[-1]))


class CohortGradients:
    """Made once from a model, then called from as many threads as one likes; the model is never changed."""

    path: str  # "book-keeping" or "vmap"
    reason: str  # why, in one line; both may still change at the first batch, never after it
    compiled: bool = False  # on a GPU, passes whose shapes come often, unless they are small
    autocast: bool = False  # on a GPU, passes in bfloat16, the sums as ever; never where gradients are clipped

    def __init__(self, module: nn.Module, loss: SampleLoss, layout: Layout, path: str) -> None:
        check.one_of(PATHS, path=path)
        clone.refuse_batch_statistics(module)
        self._asked, self._layout, self._code = path, layout, Code(module, loss)
        self._slow, self._plain = PerSample(self._code, layout), Plain(self._code, layout)
        self._fast: BookKeeping | None = None
        self._lock = threading.Lock()
        self._known: dict[tuple[object, ...], FirstLook] = {}  # by the shape of a sample
        self._random = self._absolute = False
        self._recurrent = any(isinstance(part, nn.RNNBase) for part in module.modules())  # cuDNN has kernels for it
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
        """path: "auto" takes book-keeping where it can; naming one insists on it."""
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
        """Each client's sum of its samples' gradients [clients, dim], each of norm at most clip.

        weights are [dim], the same for all clients, or [clients, dim]; clip None sums without clipping; seeds has
        one number a client and is needed if the model draws random numbers (dropout). groups are the lengths of
        consecutive runs of records that count as one: each adds its mean gradient, of norm at most clip.

        scale, [dim] or [clients, dim] and positive: what has a norm of at most clip is the gradient divided by it, the
        sums stay as they are. layers, instead of clip: bounds of the layers of `Layout.layers`, one for each.
        norm: the one that clip bounds, 2 or 1. The L1 norm goes with neither scale nor layers, and is taken by vmap,
        whatever the path, where embeddings or recurrent layers are trained.
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
        with torch.autocast(weights.device.type, enabled=False):  # norms and sums of one precision
            return self._clipped(call, bound, groups)

    def _clipped(self, call: Call, bound: Clip, groups: Sequence[int] | None) -> Tensor:
        if groups is None:
            return self._route(call, bound)
        weights, batch, seeds = call.weights, call.batch, call.seeds
        out = weights.new_zeros(len(batch.sizes), self._layout.dim)
        for part in grouping.parts(groups, batch, weights):
            own = grouping.apart(seeds, part.width - 1)
            whole = replace(call, batch=part.batch, seeds=own, width=part.width, share=part.share)
            too_wide = self.path == "book-keeping" and part.width > whole.limit
            out += self._wide(whole, bound) if too_wide else self._route(whole, bound)
        return out

    def _unclipped(self, call: Call, bfloat16: bool = False) -> Tensor:
        """Whichever way is quickest; nothing of one sample is needed."""
        batch, fit, kept = call.batch, call.seen.fit, self.path == "book-keeping"
        quick = bfloat16 or (call.cuda and self._recurrent) or cost.plain(call.seen.numbers, batch.sizes, call.cpu)
        if fit.usable and (not kept or quick):
            limit = cost.records(fit.numbers or call.seen.numbers, call.cpu)
            how = PassSettings(fit.last, self._random and not kept, self._random, bfloat16, self.compiled)
            return self._plain.sums(call.weights, batch, call.seeds, limit, call.share, how)
        return self._route(call, None)

    def _wide(self, call: Call, clip: Clip) -> Tensor:
        """Groups too long to be held at once: each a client, its whole gradient [dim] first, then its norm."""
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
                own = weights[k] if weights.dim() == 2 else weights
                means = self._unclipped(Call(own, part, seeds, call.seen, share=share))
                out[k] += clipped(means, clip, self._layout, pick(call.scale, k), call.norm)
        return out

    def _route(self, call: Call, clip: Clip | None) -> Tensor:
        """By the book where one is kept, on a GPU padded if that pays; else by vmap."""
        weights, batch, rest = call.weights, call.batch, (call.width, call.share, call.scale)
        if self._fast is None or self.path == "vmap" or (call.norm == 1 and not self._absolute):
            return self._slow.sums(weights, batch, clip, call.seeds, *rest, call.norm)
        if call.cuda and not self._random:
            own = weights.dim() == 2
            if own and cost.alone(call.seen.numbers, batch.sizes):
                return self._one_by_one(call, clip)
            if call.norm == 2 and self._padded.pays(batch.sizes) and (own or small(sum(batch.sizes), call.limit)):
                stacked = weights.expand(len(batch.sizes), -1)
                return self._padded.sums(stacked, batch, clip, call.limit, *rest, self.compiled)
        x = channels_last(batch.x) if call.seen.last else batch.x
        return self._fast.sums(weights, Batch(x, batch.y, batch.sizes), clip, call.seeds, call.limit, *rest, call.norm)

    def _one_by_one(self, call: Call, clip: Clip | None) -> Tensor:
        """Client after client, each with one set of weights, for which PyTorch has kernels."""
        out = torch.zeros_like(call.weights)
        bound = clip if clip is None else torch.as_tensor(clip, dtype=out.dtype, device=out.device)
        for k, rows in Split(call.batch.sizes).slices():
            part = Batch(call.batch.x[rows], call.batch.y[rows], (rows.stop - rows.start,))
            share = None if call.share is None else call.share[rows]
            own = replace(call, weights=call.weights[k], batch=part, share=share, scale=pick(call.scale, k))
            if call.norm == 2 and self._padded.fits(len(part.y), call.limit):
                out[k] = self._padded.one(own.weights, part, bound, own.width, share, own.scale)
            else:
                out[k] = self._route(own, clip)[0]
        return out

    def _retreat(self, reason: str) -> None:
        if self._asked == "book-keeping":
            raise ModelError(f"no book can be kept: {reason}. Use path='auto' or 'vmap'.")
        self.path, self.reason = "vmap", reason

    def _look(self, weights: Tensor, batch: Batch) -> FirstLook:
        """Once for every shape of a sample: see `probe`."""
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
                self._slow.one(weights, batch.x[0], batch.y[0])
            seen = FirstLook(False, 0, draws.seen)
            try:  # a backward pass, too
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

    @property
    def own_code(self) -> bool:
        """Whether the model or the loss is anything but a module or a function of the closed list."""
        return not self._code.known

    def _check_steady(self, weights: Tensor, batch: Batch) -> None:
        """Refuse code that keeps something where it cannot be put back: the same record gives other losses, when it is
        called again, or after others have come by that are much larger, zero or turned round."""
        if self._code.known:
            return
        book = self._fast if self.path == "book-keeping" else None
        again = self._slow.again if book is None else book.again
        x, y = batch.x[0], batch.y[0]
        found = [again(weights, x, y) for _ in range(AGAIN)]
        for other in _others(x):
            try:
                again(weights, other, y)
            except SordinoError:
                raise
            except Exception:  # numbers the model has no use for; many kinds, none of ours
                continue
            found.append(again(weights, x, y))
        losses = torch.stack(found).double()
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
        """What bounds the norms, checked: (clip or the layers' bounds, scale)."""
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
    """Return records unlike x, made of its numbers: on a GPU an index out of its range is the end of the process."""
    turned = x.flip(tuple(range(x.dim())))
    if not x.is_floating_point():
        return [turned, torch.zeros_like(x)]
    return [turned, x / 2] if x.device.type != "cpu" else [1e4 * x, torch.zeros_like(x), -x, x / 1e4, turned]
