"""A-priori bounds on the float32 error of a clipped sum.

A record adds c_i = f_i G_i: its gradient, computed from the output of the backward pass, times its clip factor. The
result is sum c_i + error. For the noise to cover the error, the error must have a bound that depends on the clip alone.
Adding n vectors in any order changes the result by at most gamma_n sum |c_i| (`core.floats`), so the bound depends on
what is added:

    held      G_i is held in memory, its norm was computed from exactly the held numbers, and these are multiplied by
              f_i and added: at most gamma n C. This is the vmap path, biases and norm layers, and whatever `cost.way`
              holds.
    one token G_i = g aᵀ is never formed. The norm of |g| |a|ᵀ, too, is the product of the norms: again gamma n C.
    guarded   G_i = sum_t g_t a_tᵀ is never formed, and tokens may cancel: the error grows with S_i = sum_t |g_t| |a_t|,
              which may be far larger than |G_i|. But the norm that is clipped contains k² S_i² (`terms.ghost`), so
              f_i S_i <= C / k: at most gamma n C / k. This bound is rarely small.
    neither   Tokens may cancel and nothing bounds S_i, or the sum is computed by a kernel whose operations are not
              known: there is no a-priori bound.

The norm itself is computed in float32: f_i G_i may exceed C by the error of the norm, beyond the margin of `clipping`,
and this is included in the bound. Assumptions: products and sums consist of float32 additions and multiplications in
some order (no TF32: see `clipping`); torch.sum adds a row of any length in chains of at most `CHAIN` additions; the
clip is not so small that underflow matters (`LEAST`). Not covered: the arithmetic before the sum. A record's numbers
are assumed not to depend on the other records in the batch, which libraries guarantee at best for a fixed batch shape.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from sordino.core import check
from sordino.core.floats import ROUNDOFF, gamma, up
from sordino.core.vector import Layout
from sordino.gradients import clone, cost
from sordino.gradients.clipping import MARGIN
from sordino.gradients.layers import embedding, norm, recurrent
from sordino.gradients.layers.conv import Conv
from sordino.gradients.layers.linear import Linear
from sordino.gradients.tape import Unsupported
from sordino.gradients.terms import LOST

CHAIN = 1024  # sequential additions in torch.sum, which sums in cascades on a CPU and in blocks on a GPU
LEAST = 2.0**-20  # smallest clip for which there is a bound
TINY = 2.0**-40  # relative to the clip: upper bound on what underflow loses, per record and number
WORTH = 0.05  # relative to the clip: a larger error would cost more noise than the proof is worth
UNIT = ROUNDOFF[torch.float32]


@dataclass(frozen=True)
class FloatError:
    """A bound on the float32 error of a clipped sum.

    Two neighbouring sums are at most clip (1 + 2 factor) apart; `factor` is None if there is no such bound.
    """

    factor: float | None
    reason: str


@dataclass(frozen=True)
class SumShape:
    """How the gradients of one parameter are added."""

    tokens: int = 1  # additions per record
    guard: float = 1.0  # k of the guard; 1 if none is needed


def float_error(
    module: nn.Module,
    layout: Layout,
    sample: Tensor,
    records: int,
    *,
    clip: float,
    path: str,
    width: int = 1,
    scaled: bool = False,
    compiled: bool = False,
    half: bool = False,
) -> FloatError:
    """Bound the error of a clipped sum over the records of a client.

    Args:
        module: the model.
        layout: its trainable parameters.
        sample: [1, ...], any record; only its shape matters.
        records: the largest number of records, or of groups of `width` records, in a sum.
        clip: the clip bound.
        path: "book-keeping" or "vmap", as in `CohortGradients.path`.
        width: number of records that are clipped together.
        scaled: whether gradients are divided by a scale before their norm is taken.
        compiled: whether steps may be compiled.
        half: whether passes may be computed in bfloat16.
    """
    check.count(records=records, width=width)
    check.positive(clip=clip)
    check.one_of(("book-keeping", "vmap"), path=path)
    if not layout.slots:
        return FloatError(0.0, "nothing is trained")
    if clip < LEAST:
        return FloatError(None, f"the clip is below {LEAST:.2g}, where float32 begins to lose small numbers")
    if compiled:
        return FloatError(None, "a compiled step may compute what is summed again, in another order")
    if half:
        return FloatError(None, "passes may be in bfloat16, whose sums over tokens have no useful bound")
    try:
        sums = [SumShape()] if path == "vmap" else _sums(module, layout, sample, width, scaled)
    except Unsupported as error:
        return FloatError(None, str(error))
    # products and sums of a record's tokens, the clip factor, and adding the parts of a long batch
    worst = max(gamma(records * each.tokens + 3) / each.guard for each in sums)
    # norms computed too small: for one token two sums of squares are multiplied; then come a sum and a square root
    length = max(0.0, gamma(2 * CHAIN + len(layout.slots) + 4) / 2 + 4 * UNIT - MARGIN)
    if scaled:
        length += gamma(max(max(slot.shape, default=1) for slot in layout.slots))
    lost = records * math.sqrt(layout.dim) * TINY
    factor = up(length / 2 + records * worst * (1 + length) + lost)
    if factor > WORTH:
        text = f"float32 may move a sum of {records} records by {factor:.2g} of the clip; add up fewer at a time"
        return FloatError(None, text)
    return FloatError(factor, f"float32 moves a sum of {records} records by at most {factor:.2g} of the clip")


def _sums(module: nn.Module, layout: Layout, sample: Tensor, width: int, scaled: bool) -> list[SumShape]:
    plan = clone.plan(module, layout)
    sums, parts = [], dict(module.named_modules())
    seen = _Shapes(module, [path for path, (_, slots) in plan.items() if slots], sample)
    for path, (layer, slots) in plan.items():
        for name, slot in slots.items():
            shape = next(s.shape for s in layout.slots if s.name == slot)
            tokens, uses = width * seen.tokens[path], seen.uses[path]
            if tokens == 0 or name.startswith("bias") or issubclass(layer, norm.LayerNorm | norm.GroupNorm):
                sums.append(SumShape())  # unused, or small and held
            elif issubclass(layer, Linear | recurrent.TapedRecurrent):
                sums.append(_product(slot, tokens, shape[1], shape[0], scaled))
            elif issubclass(layer, Conv):
                sums.append(_kernel(slot, parts[path], tokens, uses, shape, seen.patches[path], scaled))
            elif issubclass(layer, embedding.Embedding):
                sums.append(_table(tokens, shape[1]))
            else:
                raise Unsupported(f"nothing is known of the sums of {layer.__name__} layers")
    return sums


def _product(slot: str, t: int, d: int, p: int, scaled: bool) -> SumShape:
    """Return how a linear map is summed: see `terms.Outer`."""
    way = cost.way(t, d, p)
    if t == 1 or scaled or way == "hold":
        return SumShape()
    if way == "discard":
        raise Unsupported(
            f"the gradients of {slot} are formed for their norm and again for the sum, and {t} tokens may cancel"
        )
    return SumShape(t, _guard(d + p + t))


def _guard(operations: int) -> float:
    """Return k of `terms.ghost`, reduced because S is computed in float32 as well."""
    return 0.99 * math.sqrt(UNIT * (operations + LOST))


def _kernel(slot: str, part: Any, t: int, uses: int, shape: tuple[int, ...], patches: int, scaled: bool) -> SumShape:
    """Return how a convolution is summed: see `layers.conv.Kernel`."""
    if part.groups > 1 or uses > 1 or scaled:
        return SumShape()  # held
    d, p = math.prod(shape[1:]), shape[0]
    if cost.way(t, d, p) == "ghost" and patches > cost.PATCHES:
        raise Unsupported(f"the gradients of {slot} are added up by PyTorch's kernel for convolutions")
    return _product(slot, t, d, p, scaled)


def _table(t: int, d: int) -> SumShape:
    """Return how an embedding is summed: see `terms.Lookup`."""
    if t == 1 or t > cost.LOOKUP_GRAM:  # long sequences are summed and held row by row
        return SumShape()
    return SumShape(t, _guard(d + t))


class _Shapes:
    """Counts the tokens of one record that each layer receives over all its uses."""

    def __init__(self, module: nn.Module, paths: list[str], sample: Tensor) -> None:
        self.tokens: Counter[str] = Counter()
        self.uses: Counter[str] = Counter()
        self.patches: Counter[str] = Counter()  # entries of a convolution's patches
        twin = clone.private(module, sample.device)
        parts = dict(twin.named_modules())
        for path in paths:
            parts[path].register_forward_hook(self._hook(path))
        with torch.random.fork_rng([sample.device] if sample.is_cuda else []), torch.no_grad():
            twin(sample)

    def _hook(self, path: str) -> Any:
        def note(part: Any, args: Any, out: Any) -> None:
            x = args[0]
            if isinstance(part, nn.RNNBase):
                tokens = x.shape[1] if part.batch_first else x.shape[0]
            elif isinstance(part, nn.Embedding):
                tokens = x.numel()
            elif isinstance(part, nn.Linear):
                tokens = x.numel() // part.in_features
            else:
                tokens = math.prod(out.shape[2:])
            if hasattr(part, "kernel_size"):
                self.patches[path] += tokens * math.prod(part.kernel_size) * part.in_channels
            self.tokens[path] += tokens
            self.uses[path] += 1

        return note
