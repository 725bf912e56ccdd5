"""A look at the model before its first batch: one sample, then two, forward only.

Two sizes tell what a single one cannot. A layer that is handed 1 row for one sample and 2 for two has the samples
in its first dimension; a sequence-first model does not, whatever its length. The look also notices random numbers
drawn from the global generator and code that cannot live with channels-last images.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from sordino.core.types import Batch
from sordino.core.vector import Layout
from sordino.gradients.bookkeeping import BookKeeping
from sordino.gradients.draw import Draw
from sordino.gradients.memory import channels_last
from sordino.gradients.plain import UNFIT, Fit
from sordino.gradients.split import Split
from sordino.gradients.tape import Tape, Unsupported


@dataclass(frozen=True)
class Seen:
    """What the look found."""

    last: bool  # images may be channels-last
    numbers: int  # what the layers of one sample take in and give out
    random: bool  # random numbers are drawn
    fit: Fit = UNFIT  # whether the model also runs as it is, for sums without a clip


def look(book: BookKeeping, layout: Layout, weights: Tensor, batch: Batch) -> Seen:
    """Forward with the book open; raises `Unsupported` if it cannot be kept."""
    if batch.x.dim() == 4 and batch.x.is_floating_point() and batch.x.device.type == "cpu":
        try:
            return _forward(book, layout, weights, batch, True)
        except RuntimeError:  # a view that needs the usual order of memory, most likely
            pass
    return _forward(book, layout, weights, batch, False)


def _forward(book: BookKeeping, layout: Layout, weights: Tensor, batch: Batch, last: bool) -> Seen:
    numbers, random = 0, False
    for size in (1, 2):
        pick = torch.arange(size, device=batch.x.device) % batch.x.shape[0]
        x, draw = batch.x[pick], Draw((0,))
        tape = Tape(layout, weights, Split((size,)), None, draw, weights.new_zeros(1, layout.dim))
        with Draws(weights.device) as draws, torch.no_grad():
            book.forward(tape, channels_last(x) if last else x, batch.y[pick])
        if draws.seen:
            raise Unsupported("the model draws random numbers outside of dropout layers")
        random = random or draw.used
        numbers = tape.numbers // size
    return Seen(last, numbers, random)


class Draws(TorchDispatchMode):
    """Notices whether torch's global random generator is read. Use as a context; leaves its state as it was.

    An operation that could draw must run and the generator must move: attention without dropout is of the first
    kind only, and another thread may cause the second.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._device, self._could, self.seen = device, False, False

    def _state(self) -> Tensor:
        return torch.cuda.get_rng_state(self._device) if self._device.type == "cuda" else torch.get_rng_state()

    def __enter__(self) -> Self:
        self._before = self._state()
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        self.seen = self._could and not torch.equal(self._before, self._state())
        if self.seen and self._device.type == "cuda":
            torch.cuda.set_rng_state(self._before, self._device)
        elif self.seen:
            torch.set_rng_state(self._before)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        self._could = self._could or torch.Tag.nondeterministic_seeded in func.tags
        return func(*args, **(kwargs or {}))
