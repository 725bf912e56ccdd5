"""The state of one call: a forward pass, a backward pass for output gradients, and what layers record meanwhile.

Book-keeping (Bu et al. 2022, arXiv:2210.00038): every layer with trainable parameters is a `Step` of the autograd
graph, which passes the `Term`s of its parameters to the `Tape` when its output gradient arrives. Autograd never sees a
weight, so it computes no weight gradients. The weights come from the vector passed to the call, and nothing of a call
is stored on the module.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from sordino.core.vector import Layout
from sordino.gradients.clipping import Clip, factors_l1, layered, shrink
from sordino.gradients.draw import Generators
from sordino.gradients.half import narrow
from sordino.gradients.scale import Scale
from sordino.gradients.split import Split
from sordino.gradients.terms import Term


class Unsupported(Exception):  # noqa: N818 (not an error: the call moves to the other path)
    """Book-keeping cannot be used for this model; the message is the reason."""


@dataclass(frozen=True)
class Weight:
    """A parameter in the form in which a layer uses it."""

    value: Tensor  # [*shape], or [clients, *shape] if clients have their own weights
    slot: str | None  # name in the layout; None for a frozen parameter


class Tape:
    """The state of one call in one thread."""

    def __init__(
        self,
        layout: Layout,
        weights: Tensor,
        split: Split,
        clip: Clip | None,
        draw: Generators,
        out: Tensor,
        pure: bool = False,
        width: int = 1,
        scale: Tensor | None = None,
        norm: int = 2,
        half: bool = False,
        images: bool = False,
    ) -> None:
        self.split, self.stacked, self.draw = split, weights.dim() == 2, draw
        self._width, self._units = width, split.units(width)  # records that are clipped together
        self.anchor = weights.new_zeros((), requires_grad=True)  # makes every step part of the autograd graph
        self.numbers = 0  # inputs and outputs of all steps of this call
        self._values = layout.views(weights)
        self._clip, self._pure, self._norm = clip, pure, norm  # pure: control flow does not depend on values
        # see `half`; a scaled or an L1 norm is that of float32 numbers
        self._half = half and norm == 2 and scale is None and weights.dtype == torch.float32
        self.images = images and self._half  # images stay in bfloat16 between layers, with channels last
        self._sums = layout.views(out)  # results are added to these
        self._uses: Counter[str] = Counter()
        self._open: dict[str, Term] = {}  # terms of parameters used more than once
        self._terms: list[tuple[str, Term]] = []
        self._scale = None if scale is None else Scale(scale, layout, self._units)
        self._layers = layout.layer_of() if layered(clip) else {}  # layer of each slot; empty for a single bound
        # norms [units] of each layer, squared for L2
        self._lengths = [weights.new_zeros(self._units.records)] * (1 + max(self._layers.values(), default=0))

    def weight(self, slot: str | None, frozen: Tensor | None) -> Weight | None:
        """Return a trainable parameter by its slot, or a frozen one; None if the layer has neither."""
        if slot is not None:
            return Weight(self._values[slot], slot)
        if frozen is None:
            return None
        return Weight(frozen.expand(self.split.clients, *frozen.shape) if self.stacked else frozen, None)

    def run(self, op: Op, x: Tensor) -> Tensor:
        """Apply one layer to x, which must be the flat batch."""
        if x.shape[0] != self.split.records:
            raise Unsupported(
                f"a {type(op).__name__.lower()} layer is given {x.shape[0]} rows for {self.split.records} samples"
            )
        self._uses.update(weight.slot for weight in op.weights if weight is not None and weight.slot)
        image = self.images and op.image and x.dim() == 4
        if self._half and x.is_floating_point():
            x = narrow(x) if op.half or image else x.float()
        if image:
            x = x.contiguous(memory_format=torch.channels_last)
        y: Tensor = Step.apply(self.anchor, x, op)  # type: ignore[no-untyped-call]
        self.numbers += x.numel() + y.numel()
        if image:
            return narrow(y)
        return y.float() if self._half else y

    def narrow(self, weight: Weight) -> Weight:
        """Return a parameter as a layer that computes in bfloat16 uses it, if this call does."""
        return Weight(narrow(weight.value), weight.slot) if self._half else weight

    def note(self, weight: Weight | None, term: Term) -> None:
        """Record what a layer adds to the gradient of one of its parameters."""
        if weight is None or weight.slot is None:
            return
        slot = weight.slot
        if self._clip is None:
            self._sums[slot].add_(term.sums(self.split, None))
            return
        if self._width > 1:
            term = term.fold(self._width)
        if self._uses[slot] > 1:
            self._open[slot] = self._open[slot].add(term) if slot in self._open else term
        else:
            self._close(slot, term, self._clip)

    def _close(self, slot: str, term: Term, clip: Clip) -> None:
        if self._norm == 1:
            length = term.absolute(clip)
        else:
            length = term.squared() if self._scale is None else term.scaled(self._scale.of(slot))
        layer = self._layers.get(slot, 0)
        self._lengths[layer] = self._lengths[layer] + length
        self._terms.append((slot, term))

    def close(self) -> None:
        """Add each client's sum of clipped gradients to out; without a clip `note` has already done so."""
        if self._clip is None:
            return
        for slot, term in self._open.items():
            self._close(slot, term, self._clip)
        if self._norm == 1:
            each = [factors_l1(self._lengths[0], self._clip, self.anchor.dtype)]
        else:
            each = shrink(self._lengths, self._clip, self._scale)
        bad = each[0] == 0
        any_bad = self._pure or bool(bad.any())
        while self._terms:
            slot, term = self._terms.pop()
            if any_bad:
                term.drop(bad)
            self._sums[slot].add_(term.sums(self._units, each[self._layers.get(slot, 0)]))


class Op(ABC):
    """One layer in one call. `forward` and `backward` run without autograd."""

    half: ClassVar[bool] = False  # whether the layer may compute in bfloat16
    image: ClassVar[bool] = False  # whether its inputs and outputs may be images in bfloat16

    def __init__(self, tape: Tape, *weights: Weight | None) -> None:
        self.tape, self.weights = tape, weights

    @abstractmethod
    def forward(self, x: Tensor) -> Tensor:
        """Return the output of the layer."""

    @abstractmethod
    def backward(self, x: Tensor, g: Tensor, wanted: bool) -> Tensor | None:
        """Record the terms of the parameters; return the gradient of the input if it is wanted."""


class Step(torch.autograd.Function):
    """An `Op` in the autograd graph."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, x: Tensor, op: Op) -> Tensor:
        ctx.op = op
        ctx.save_for_backward(x)
        with torch.autocast(x.device.type, enabled=False):
            return op.forward(x.detach())

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, Tensor | None, None]:
        (x,) = ctx.saved_tensors
        op: Op = ctx.op
        gx = op.backward(x.detach(), grads[0], ctx.needs_input_grad[1])
        return None, gx if gx is None else gx.to(x.dtype), None
