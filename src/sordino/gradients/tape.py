"""One call: one forward pass, one backward pass for output gradients, and the book kept meanwhile.

Book-keeping (Bu et al. 2022, arXiv:2210.00038): every layer with trainable parameters is a `Step` of the
autograd graph that hands its parameters' `Term`s to the `Tape` as its output gradient comes by. Autograd never
sees a weight, so it computes no weight gradient. The weights come from the call's own vector, and nothing of a
call is kept on the module.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sordino.core.vector import Layout
from sordino.gradients.clipping import Clip, factors_l1, layered, shrink
from sordino.gradients.draw import Generators
from sordino.gradients.scale import Scale
from sordino.gradients.split import Split
from sordino.gradients.terms import Term


class Unsupported(Exception):  # noqa: N818 (not an error: the call moves to the other path)
    """The book cannot be kept for this model; the message is the reason."""


@dataclass(frozen=True)
class Weight:
    """A parameter as a layer uses it."""

    value: Tensor  # [*shape], or [clients, *shape] where clients have their own
    slot: str | None  # its name in the layout; None for a frozen parameter


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
    ) -> None:
        self.split, self.stacked, self.draw = split, weights.dim() == 2, draw
        self._width, self._units = width, split.units(width)  # so many records are clipped as one
        self.anchor = weights.new_zeros((), requires_grad=True)  # makes every step part of the graph
        self.numbers = 0  # what the steps of this call take in and give out
        self._values = layout.views(weights)
        self._clip, self._pure, self._norm = clip, pure, norm  # pure: no number decides what is computed
        self._sums = layout.views(out)  # to be added to
        self._uses: Counter[str] = Counter()
        self._open: dict[str, Term] = {}  # of parameters used more than once
        self._terms: list[tuple[str, Term]] = []
        self._scale = None if scale is None else Scale(scale, layout, self._units)
        self._layers = layout.layer_of() if layered(clip) else {}  # by slot; all are one where there is one bound
        # norms, squared unless they are L1
        self._lengths = [weights.new_zeros(self._units.records)] * (1 + max(self._layers.values(), default=0))

    def weight(self, slot: str | None, frozen: Tensor | None) -> Weight | None:
        """A trainable parameter by its slot, or a frozen one as it is; None if the layer has neither."""
        if slot is not None:
            return Weight(self._values[slot], slot)
        if frozen is None:
            return None
        return Weight(frozen.expand(self.split.clients, *frozen.shape) if self.stacked else frozen, None)

    def run(self, op: Op, x: Tensor) -> Tensor:
        """x through one layer; x must be the flat batch."""
        if x.shape[0] != self.split.records:
            raise Unsupported(
                f"a {type(op).__name__.lower()} layer is given {x.shape[0]} rows for {self.split.records} samples"
            )
        self._uses.update(weight.slot for weight in op.weights if weight is not None and weight.slot)
        y: Tensor = Step.apply(self.anchor, x, op)  # type: ignore[no-untyped-call]
        self.numbers += x.numel() + y.numel()
        return y

    def note(self, weight: Weight | None, term: Term) -> None:
        """Enter what a layer adds to the gradient of one of its parameters."""
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
        """Add every client's sum of clipped gradients to out; without a clip `note` has done it."""
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

    def __init__(self, tape: Tape, *weights: Weight | None) -> None:
        self.tape, self.weights = tape, weights

    @abstractmethod
    def forward(self, x: Tensor) -> Tensor:
        """What the layer computes."""

    @abstractmethod
    def backward(self, x: Tensor, g: Tensor, wanted: bool) -> Tensor | None:
        """Note the terms; return the gradient of the input if it is wanted."""


class Step(torch.autograd.Function):
    """An `Op` in the autograd graph."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, x: Tensor, op: Op) -> Tensor:
        ctx.op = op
        ctx.save_for_backward(x)
        return op.forward(x.detach())

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, Tensor | None, None]:
        (x,) = ctx.saved_tensors
        op: Op = ctx.op
        return None, op.backward(x.detach(), grads[0], ctx.needs_input_grad[1]), None
