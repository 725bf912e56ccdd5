"""A look at the model before its first batch, a few records at a time: forward, and backward once.

Two sizes tell what a single one cannot. A layer that is handed 1 row for one sample and 3 for three has the samples
in its first dimension; a sequence-first model does not, whatever its length. The look also notices random numbers
drawn from the global generator and code that cannot live with channels-last images.

A clipped sum has its sensitivity only if the loss of a record is its own. Code that is not known is given every record
alone (see `code`), so that this holds whatever the look finds; the look tells whether it is what the model expects: a
record's loss beside others is compared with the same record's alone. Among others as many the kernels are the same, and
so are the numbers; between one and three records they differ by rounding. At weights a little off the given ones: where
a last layer starts from zero, every loss is the same. A model that branches on numbers it computed cannot be given all
records at once, so that it must not ask for any.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from sordino.core.errors import ModelError, SordinoError
from sordino.core.types import Batch
from sordino.core.vector import Layout
from sordino.gradients.bookkeeping import BookKeeping
from sordino.gradients.draw import Generators
from sordino.gradients.memory import channels_last
from sordino.gradients.plain import UNFIT, Fit
from sordino.gradients.split import Split
from sordino.gradients.tape import Tape, Unsupported
from sordino.gradients.watch import Calls, DecisionWatch, Draws

AMONG = 64  # records among which two are chosen
OFF = 0.1  # of a usual start: how far from the given weights losses are compared
# Of the largest loss: what the same kernels may differ by, and what those for one record and for three may. On CPUs
# 0 and 1e-6 were met; on a GPU, where products may be rounded to TF32, 0 and 2e-4.
CLOSE = {"cpu": (1e-5, 1e-3), "cuda": (1e-4, 2e-2)}
FLOOR = 1e-6  # losses this close are equal
RECOMPUTED = (
    "the model recomputes layers in its backward pass (torch.utils.checkpoint), which no per-sample gradient can be"
    " taken through; switch checkpointing off, memory is bounded by taking few records at a time."
)


@dataclass(frozen=True)
class FirstLook:
    """What the look found."""

    last: bool  # images may be channels-last
    numbers: int  # what the layers of one sample take in and give out
    random: bool  # random numbers are drawn
    fit: Fit = UNFIT  # whether the model also runs as it is, for sums without a clip


def look(book: BookKeeping, layout: Layout, weights: Tensor, batch: Batch) -> FirstLook:
    """Forward and backward with the book open; raises `Unsupported` if it cannot be kept."""
    x, y = _three(batch)
    if x.dim() == 4 and x.is_floating_point() and x.device.type == "cpu":
        try:
            return _Look(book, layout, weights, channels_last(x), y, True).seen()
        except RuntimeError:  # a view that needs the usual order of memory, most likely
            pass
    return _Look(book, layout, weights, x, y, False).seen()


def _three(batch: Batch) -> tuple[Tensor, Tensor]:
    """Two records that differ, in their targets if any do, and a third with the first one's numbers, halved or turned.

    Nothing but numbers of the first record's kind: on a GPU an index out of its range is the end of the process.
    """
    x, y = batch.x[:AMONG], batch.y[:AMONG]
    unlike, apart = ((t != t[:1]).reshape(len(t), -1).sum(1) for t in (x, y))
    other = int(((apart > 0) * (1 + unlike.max()) + unlike).argmax())
    first = x[0]
    third = first / 2 if first.is_floating_point() else first.flip(tuple(range(first.dim())))
    return torch.stack((first, x[other], third)), torch.stack((y[0], y[other], y[0]))


class _Look:
    """At the records x and y of `_three`."""

    def __init__(self, book: BookKeeping, layout: Layout, weights: Tensor, x: Tensor, y: Tensor, last: bool) -> None:
        self._book, self._layout, self._weights, self._x, self._y, self._last = book, layout, weights, x, y, last
        self._numbers, self._random = 0, False

    def seen(self) -> FirstLook:
        try:
            compared = self._compare(self._off())
        except (SordinoError, Unsupported):
            raise
        except Exception:  # weights the model has no use for; many kinds, none of ours
            compared = False
        if not compared:
            self._compare(self._weights)
        self._backward()
        return FirstLook(self._last, self._numbers, self._random)

    def _off(self) -> Tensor:
        noise = torch.randn(self._layout.dim, generator=torch.Generator().manual_seed(0)).to(self._weights)
        for part in self._layout.views(noise).values():
            part.mul_(OFF / math.sqrt(max(1, math.prod(part.shape[1:]))))
        return self._weights + noise

    def _compare(self, weights: Tensor) -> bool:
        """Whether there was anything to compare: two losses that are numbers."""
        alone = [self._watched(weights, 0), self._losses(weights, 1)]
        third = self._third(weights)
        alone += third
        others = self._watched(weights, 0, 1, 2 if third else 0)[: len(alone)]
        copies = torch.stack([self._losses(weights, i, i, i)[i] for i in range(len(alone))])
        same, close = CLOSE["cpu" if self._x.device.type == "cpu" else "cuda"]
        close = max(close, 16 * torch.finfo(weights.dtype).eps)
        if _differ(others, copies, same) or _differ(copies, torch.cat(alone), close):
            raise Unsupported("the loss of a record depends on the records beside it")
        return bool(copies.isfinite().all())

    def _third(self, weights: Tensor) -> list[Tensor]:
        """The loss of the record that is none, where an error can be caught, or where there is no second; else none."""
        if self._x.device.type != "cpu" and not (self._x.is_floating_point() and torch.equal(*self._x[:2])):
            return []
        try:
            return [self._losses(weights, 2)]
        except (SordinoError, Unsupported):
            raise
        except Exception:  # numbers the model has no use for; many kinds, none of ours
            return []

    def _watched(self, weights: Tensor, *rows: int) -> Tensor:
        """Losses, with an eye on what the model does meanwhile, which takes its time."""
        asked = DecisionWatch()
        with asked, Calls(asked), Draws(weights.device) as draws:
            losses = self._losses(weights, *rows, asked=asked)
        if draws.seen:
            raise Unsupported("the model draws random numbers outside of dropout layers")
        if asked.reason:
            raise Unsupported(asked.reason)
        return losses

    def _losses(self, weights: Tensor, *rows: int, asked: DecisionWatch | None = None) -> Tensor:
        """Of these records, each a client of its own, so that each draws what it draws alone."""
        x, y, size = self._x[list(rows)], self._y[list(rows)], len(rows)
        draw = Generators((0,) * size)
        tape = Tape(self._layout, weights, Split((1,) * size), None, draw, weights.new_zeros(1, self._layout.dim))
        with self._book.twin(x.device).guard, torch.no_grad():
            losses = self._book.together(tape, channels_last(x) if self._last else x, y, asked)
        self._random, self._numbers = self._random or draw.used, tape.numbers // size
        return losses

    def _backward(self) -> None:
        """One record, to see that it runs."""
        try:
            self._book.sums(self._weights, Batch(self._x[:1], self._y[:1], (1,)), None, (0,), 1)
        except Unsupported as error:
            if "outside of the model's forward" not in str(error):
                raise
            raise ModelError(RECOMPUTED) from error
        except RuntimeError as error:
            if "torch.utils.checkpoint" in str(error):
                raise ModelError(RECOMPUTED) from error
            if self._last:
                raise
            raise Unsupported(f"the backward pass fails: {str(error).splitlines()[0]}") from error


def _differ(a: Tensor, b: Tensor, by: float) -> bool:
    size = torch.nan_to_num(torch.stack((a, b)).double(), posinf=0.0, neginf=0.0).abs().max().item()
    return not torch.allclose(a.double(), b.double(), rtol=0.0, atol=by * size + FLOOR, equal_nan=True)
