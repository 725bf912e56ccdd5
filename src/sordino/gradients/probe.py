"""Probe the model on a few records before its first batch: several forward passes and one backward pass.

Two batch sizes reveal what one cannot. A layer that receives 1 row for one sample and 3 rows for three has the samples
in its first dimension; a layer of a sequence-first model does not, whatever the length. The probe also detects random
numbers drawn from the global generator and code that does not work with channels-last images.

A clipped sum has its stated sensitivity only if a record's loss depends on that record alone. Code that is not on the
closed list is given every record separately (see `code`), so this holds whatever the probe finds. The probe tests
whether this is what the model expects: a record's loss in a batch with others is compared with its loss alone. In
batches of the same size the kernels are the same and so are the numbers; between one and three records they differ by
rounding. Losses are compared at weights slightly off the given ones, because all losses are equal if the last layer
starts at zero. A model that branches on computed values cannot be given all records at once, so it must not read any.
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

AMONG = 64  # records from which two are chosen
OFF = 0.1  # perturbation of the given weights, relative to a usual initialisation
# Tolerances relative to the largest loss: between runs of the same kernels, and between kernels for one and for three
# records. Differences observed: 0 and 1e-6 on CPUs; 0 and 2e-4 on a GPU, where products may be rounded to TF32.
CLOSE = {"cpu": (1e-5, 1e-3), "cuda": (1e-4, 2e-2)}
FLOOR = 1e-6  # losses this close count as equal
RECOMPUTED = (
    "the model recomputes layers in its backward pass (torch.utils.checkpoint), which no per-sample gradient can be"
    " taken through; switch checkpointing off, memory is bounded by taking few records at a time."
)


@dataclass(frozen=True)
class FirstLook:
    """The result of the probe."""

    last: bool  # images may be channels-last
    numbers: int  # inputs and outputs of all layers for one sample
    random: bool  # the model draws random numbers
    fit: Fit = UNFIT  # whether the model also runs on ordinary batches, for sums without clipping


def look(book: BookKeeping, layout: Layout, weights: Tensor, batch: Batch) -> FirstLook:
    """Run the model forward and backward with book-keeping; raise `Unsupported` if it cannot be used."""
    x, y = _three(batch)
    if x.dim() == 4 and x.is_floating_point() and x.device.type == "cpu":
        try:
            return _Look(book, layout, weights, channels_last(x), y, True).seen()
        except RuntimeError:  # most likely a view that needs contiguous memory
            pass
    return _Look(book, layout, weights, x, y, False).seen()


def _three(batch: Batch) -> tuple[Tensor, Tensor]:
    """Return two records that differ, in their targets if possible, and a third: the first one halved or reversed.

    The third contains only numbers like those of the first: on a GPU an index out of range would end the process.
    """
    x, y = batch.x[:AMONG], batch.y[:AMONG]
    unlike, apart = ((t != t[:1]).reshape(len(t), -1).sum(1) for t in (x, y))
    other = int(((apart > 0) * (1 + unlike.max()) + unlike).argmax())
    first = x[0]
    third = first / 2 if first.is_floating_point() else first.flip(tuple(range(first.dim())))
    return torch.stack((first, x[other], third)), torch.stack((y[0], y[other], y[0]))


class _Look:
    """A probe of the model with the records x and y of `_three`."""

    def __init__(self, book: BookKeeping, layout: Layout, weights: Tensor, x: Tensor, y: Tensor, last: bool) -> None:
        self._book, self._layout, self._weights, self._x, self._y, self._last = book, layout, weights, x, y, last
        self._numbers, self._random = 0, False

    def seen(self) -> FirstLook:
        """Run the probe and return its result."""
        try:
            compared = self._compare(self._off())
        except (SordinoError, Unsupported):
            raise
        except Exception:  # weights the model cannot process; any type of error
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
        """Compare losses; return whether all of them are finite, so that the comparison means something."""
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
        """Return the loss of the made-up record if errors can be caught or there is no second record; else nothing."""
        if self._x.device.type != "cpu" and not (self._x.is_floating_point() and torch.equal(*self._x[:2])):
            return []
        try:
            return [self._losses(weights, 2)]
        except (SordinoError, Unsupported):
            raise
        except Exception:  # values the model cannot process; any type of error
            return []

    def _watched(self, weights: Tensor, *rows: int) -> Tensor:
        """Return losses while watching what the model does, which is slow."""
        asked = DecisionWatch()
        with asked, Calls(asked), Draws(weights.device) as draws:
            losses = self._losses(weights, *rows, asked=asked)
        if draws.seen:
            raise Unsupported("the model draws random numbers outside of dropout layers")
        if asked.reason:
            raise Unsupported(asked.reason)
        return losses

    def _losses(self, weights: Tensor, *rows: int, asked: DecisionWatch | None = None) -> Tensor:
        """Return the losses of these records.

        Each record is a separate client, so that it draws the same random numbers as alone.
        """
        x, y, size = self._x[list(rows)], self._y[list(rows)], len(rows)
        draw = Generators((0,) * size)
        tape = Tape(self._layout, weights, Split((1,) * size), None, draw, weights.new_zeros(1, self._layout.dim))
        with self._book.twin(x.device).guard, torch.no_grad():
            losses = self._book.together(tape, channels_last(x) if self._last else x, y, asked)
        self._random, self._numbers = self._random or draw.used, tape.numbers // size
        return losses

    def _backward(self) -> None:
        """Run the backward pass of one record, to see that it works."""
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
