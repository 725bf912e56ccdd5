"""A layer's contribution to per-sample gradients, in the form whose norm and sum are cheapest to compute.

For a linear map the gradient of sample i is a sum of outer products over its tokens (positions, time steps),

    G_i = sum_t g_it a_itᵀ,        a: the input, g: the gradient of the output,

and there are two ways to compute its norm: instantiate G_i, which takes p d numbers per sample, or use the two Gram
matrices and never form it (Li et al. 2021, arXiv:2110.05679, eq. 3; Goodfellow 2015, arXiv:1510.01799 for one
token):

    |G_i|² = sum_ts <a_it, a_is> <g_it, g_is>.

The clipped sum is then a weighted sum of the G_i, or one product with scaled g (Bu et al. 2022,
arXiv:2210.00038, "book-keeping": no second backward pass). `Outer` chooses the cheaper way for each layer.

If tokens cancel, the G_i computed by a product is not exactly the one whose norm was taken, and the running sum over
all samples loses digits to tokens far longer than their sum. Therefore either G_i is held, and exactly what was
measured is summed, or the norm includes a guard that grows with the lengths of the tokens (`ghost`).

For the L1 norm and with a scale there is no such short cut: G_i is held. With one token this is not needed:
|g aᵀ|_1 = |g|_1 |a|_1.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor

from sordino.gradients import cost
from sordino.gradients.clipping import Clip
from sordino.gradients.half import bounded, narrow, products
from sordino.gradients.scale import Divisor, largest
from sordino.gradients.split import Split

LOST = 32  # additions in a tree-shaped sum, and a few more
SQUARED = 1 << 24  # entries squared at a time, to bound the memory
ADDED = {"cpu": 1 << 17, "cuda": SQUARED}  # entries added in float64 at a time; on a CPU few enough for the cache
LONG = 2.0**64  # longer inputs (L1: than this times the clip) count as not finite: `Outer.absolute`


class Term(ABC):
    """The gradients of one parameter, one for every sample of the flat batch."""

    @abstractmethod
    def squared(self) -> Tensor:
        """Return squared norms [records]; either this or `scaled` is called, once."""

    @abstractmethod
    def scaled(self, by: Divisor) -> Tensor:
        """Return squared norms [records] of the gradients divided by a scale."""

    def absolute(self, clip: Clip) -> Tensor:
        """Return L1 norms [records] in float64; called instead of `squared`, see `TapedLayer.absolute`."""
        raise TypeError(f"no L1 norm of {type(self).__name__}")

    @abstractmethod
    def drop(self, bad: Tensor) -> None:
        """Set the gradients of the samples marked in bad [records] to exactly zero."""

    @abstractmethod
    def sums(self, split: Split, factors: Tensor | None) -> Tensor:
        """Return each client's weighted sum [clients, *shape of the parameter]."""

    @abstractmethod
    def add(self, other: Term) -> Term:
        """Return the sum of both terms, for a parameter that is used more than once."""

    @abstractmethod
    def fold(self, width: int) -> Term:
        """Return the sums over every `width` consecutive samples, as samples; must be called before other methods."""


def zero(x: Tensor, bad: Tensor) -> Tensor:
    """Return x [records, ...] with the rows marked in bad [records] set to zero."""
    return x.masked_fill(bad.view(-1, *(1,) * (x.dim() - 1)), 0)


class Dense(Term):
    """Instantiated per-sample gradients [records, *shape]."""

    def __init__(self, values: Tensor) -> None:
        self.values = values

    def squared(self) -> Tensor:
        return squares(self.values)

    def scaled(self, by: Divisor) -> Tensor:
        return by.squares(self.values)

    def absolute(self, clip: Clip) -> Tensor:
        return absolutes(self.values)

    def drop(self, bad: Tensor) -> None:
        self.values = zero(self.values, bad)

    def sums(self, split: Split, factors: Tensor | None) -> Tensor:
        return split.sum(self.values, factors)

    def add(self, other: Term) -> Term:
        if not isinstance(other, Dense):
            raise TypeError(f"cannot add {type(other).__name__} to per-sample gradients")
        return Dense(self.values + other.values)

    def fold(self, width: int) -> Term:
        return Dense(self.values.reshape(-1, width, *self.values.shape[1:]).sum(1))


class Outer(Term):
    """Gradients sum_t g_t a_tᵀ from a [records, t, d] and g [records, t, p]; the parameter is [p, d]."""

    def __init__(self, a: Tensor, g: Tensor) -> None:
        self.a, self.g = a, g
        self.values: Tensor | None = None  # [records, p, d] once instantiated; a and g are then freed

    def squared(self) -> Tensor:
        way = cost.way(self.a.shape[1], self.a.shape[2], self.g.shape[2])
        if way == "ghost":
            return bounded(ghost(self.a, self.g), self.a, self.g)
        values = outer(self.a, self.g)
        if way == "hold":
            self._hold(values)
            return squares(values)
        return bounded(squares(values), self.a, self.g)

    def _hold(self, values: Tensor) -> None:
        self.values, self.a, self.g = values, values.new_empty(0), values.new_empty(0)

    def scaled(self, by: Divisor) -> Tensor:
        """Return squared norms [records] of the gradients divided by a scale.

        Several tokens are instantiated: Gram matrices cannot be used, since the scale stands between their two sides.
        One token needs no instantiation.
        """
        if self.a.shape[1] == 1:
            a, g = self.a.squeeze(1), self.g.squeeze(1)
            return torch.where(largest(a).squeeze(1) <= LONG, by.outer(a, g), torch.inf)
        values = outer(self.a, self.g)
        self._hold(values)
        return by.squares(values)

    def absolute(self, clip: Clip) -> Tensor:
        """Return L1 norms [records] in float64.

        Several tokens are instantiated and held, so that exactly what was measured is summed.

        One token: `sums` multiplies g by its factor first, and |g|_1 is then at most C / |a|_1. If that is so small
        that float32 has few digits left for it, multiplying by a would amplify the error, so the sample is dropped.
        """
        if self.a.shape[1] > 1:
            self._hold(outer(self.a, self.g))
        if self.values is not None:
            return absolutes(self.values)
        a = absolutes(self.a)
        return torch.where(a <= LONG * clip, a, torch.inf) * absolutes(self.g)

    def drop(self, bad: Tensor) -> None:
        if self.values is not None:
            self.values = zero(self.values, bad)
        else:
            self.a, self.g = zero(self.a, bad), zero(self.g, bad)

    def sums(self, split: Split, factors: Tensor | None) -> Tensor:
        if self.values is not None:
            return split.sum(self.values, factors)
        return split.outer(weighted(self.g, factors), self.a)

    def add(self, other: Term) -> Term:
        if not isinstance(other, Outer):
            raise TypeError(f"cannot add {type(other).__name__} to outer products")
        return Outer(torch.cat((self.a, other.a), 1), torch.cat((self.g, other.g), 1))

    def fold(self, width: int) -> Term:
        return Outer(folded(self.a, width), folded(self.g, width))


class Lookup(Term):
    """Gradients of table rows: g [records, t, d] belongs to row index [records, t] of a parameter [rows, d]."""

    def __init__(self, index: Tensor, g: Tensor, rows: int) -> None:
        self.index, self.g, self.rows = index, g, rows
        self.held: tuple[Tensor, Tensor, Tensor] | None = None  # see `_hold`; g is then freed

    @property
    def _long(self) -> bool:
        return self.g.shape[1] > cost.LOOKUP_GRAM

    def squared(self) -> Tensor:
        return self._by_row(squares) if self._long else self._gram(self.g)

    def scaled(self, by: Divisor) -> Tensor:
        """Return squared norms [records] of the gradients divided by a scale.

        Tokens of the same row are divided by the same numbers, so they may be divided before they are added.
        """
        if self._long:
            return self._by_row(lambda values: squares(by.entries(*self._hold()[:2], values)))
        return self._gram(by.tokens(self.index, self.g))

    def _gram(self, g: Tensor) -> Tensor:
        """Return squared norms [records] from the Gram matrix of the tokens, with a guard as in `ghost`."""
        (_, t, d), info = g.shape, torch.finfo(g.dtype)
        same = self.index.unsqueeze(2) == self.index.unsqueeze(1)  # [records, t, t]
        gg = torch.bmm(g, g.transpose(1, 2))
        length = (gg.diagonal(dim1=1, dim2=2) + d * info.tiny).sqrt().sum(1)
        guard = info.eps / 2 * (d + t + LOST) * length.square() + d * t * t * info.tiny
        return (gg * same).sum((1, 2)).clamp(min=0) + guard

    def _by_row(self, norms: Callable[[Tensor], Tensor]) -> Tensor:
        samples, _, values = self._hold()
        return values.new_zeros(len(self.index)).index_add_(0, samples, norms(values))

    def _hold(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return (samples, rows, values) for long sequences: tokens of the same row of the same sample are added."""
        if self.held is None:
            sample = torch.arange(len(self.index), device=self.g.device).unsqueeze(1)
            keys, place = torch.unique(sample * self.rows + self.index, return_inverse=True)
            self.held = keys // self.rows, keys % self.rows, table(place, self.g, keys.numel())
            self.g = self.g[:0]
        return self.held

    def drop(self, bad: Tensor) -> None:
        if self.held is not None:
            samples, rows, values = self.held
            self.held = samples, rows, zero(values, bad[samples])
        else:
            self.g = zero(self.g, bad)

    def sums(self, split: Split, factors: Tensor | None) -> Tensor:
        owner = split.owner(self.g.device)
        if self.held is not None:
            samples, rows, g = self.held
            g = g if factors is None else g * factors[samples].unsqueeze(1)
            index = rows + self.rows * owner[samples]
        else:
            g = self.g if factors is None else self.g * factors.view(-1, 1, 1)
            index = self.index + self.rows * owner.unsqueeze(1)
        return table(index, g, split.clients * self.rows).view(split.clients, self.rows, -1)

    def add(self, other: Term) -> Term:
        if not isinstance(other, Lookup):
            raise TypeError(f"cannot add {type(other).__name__} to table rows")
        index, g = torch.cat((self.index, other.index), 1), torch.cat((self.g, other.g), 1)
        return Lookup(index, g, self.rows)

    def fold(self, width: int) -> Term:
        return Lookup(folded(self.index, width), folded(self.g, width), self.rows)


def outer(a: Tensor, g: Tensor) -> Tensor:
    """Return sum_t g_t a_tᵀ [records, p, d], in float32 also for bfloat16 numbers."""
    return products(g.transpose(1, 2), a)


def weighted(g: Tensor, factors: Tensor | None) -> Tensor:
    """Return g [records, ...] times one factor per record; bfloat16 numbers are rounded to bfloat16 again."""
    if factors is None:
        return g
    scaled = g * factors.view(-1, *(1,) * (g.dim() - 1))
    return narrow(scaled) if g.dtype == torch.bfloat16 else scaled


def folded(x: Tensor, width: int) -> Tensor:
    """Merge `width` samples into one with all their tokens: [records, t, ...] -> [records / width, width t, ...]."""
    return x.reshape(x.shape[0] // width, width * x.shape[1], *x.shape[2:])


def table(index: Tensor, g: Tensor, rows: int) -> Tensor:
    """Add g by index: [..., t], [..., t, d] -> [rows, d]; deterministic, also on CUDA."""
    y: Tensor = torch.ops.aten.embedding_dense_backward(g, index, rows, -1, False)
    return y


def squares(values: Tensor) -> Tensor:
    """Return the sum of squares of each sample: [records, ...] -> [records].

    vector_norm is not used: on a CPU it adds a long float32 row sequentially, and its result is too small, by 6e-4 for
    ten million numbers, so that a clipped gradient would exceed its bound. torch.sum adds in a tree.
    """
    rows = values.flatten(1)
    if rows.dtype == torch.bfloat16:
        rows = rows.float()
    if rows.numel() <= SQUARED or rows.shape[0] < 2:
        return rows.square().sum(1)
    return torch.cat([part.square().sum(1) for part in rows.split(max(1, SQUARED // rows.shape[1]))])


def absolutes(values: Tensor) -> Tensor:
    """Return the sum of magnitudes of each sample in float64: [records, ...] -> [records]."""
    rows = values.flatten(1)
    step = ADDED["cpu" if rows.device.type == "cpu" else "cuda"] // max(1, rows.shape[1])
    return torch.cat([part.abs().sum(1, dtype=torch.float64) for part in rows.split(max(1, step))])


def ghost(a: Tensor, g: Tensor) -> Tensor:
    """Return |sum_t g_t a_tᵀ|² [records] from Gram matrices, plus a guard so that no norm is underestimated.

    A sum of k products is off by at most k eps / 2 times the sum of their magnitudes, and that sum is at most
    S² = (sum_t |a_t| |g_t|)²; if tokens cancel it is far larger than the result. Underflow loses at most k times the
    smallest number of the type.
    """
    (_, t, d), p, info = a.shape, g.shape[2], torch.finfo(torch.promote_types(a.dtype, torch.float32))
    if t == 1:
        return (squares(a) + d * info.tiny) * (squares(g) + p * info.tiny)
    aa, gg = products(a, a.transpose(1, 2)), products(g, g.transpose(1, 2))
    each = (aa.diagonal(dim1=1, dim2=2) + d * info.tiny).sqrt(), (gg.diagonal(dim1=1, dim2=2) + p * info.tiny).sqrt()
    lost = math.sqrt(d * info.tiny) * each[1].sum(1), math.sqrt(p * info.tiny) * each[0].sum(1)
    unit = info.eps if a.dtype == torch.bfloat16 else info.eps / 2  # matrix units may cut off instead of rounding
    guard = unit * (d + p + t + LOST) * (each[0] * each[1]).sum(1).square()
    return aa.mul_(gg).sum((1, 2)).clamp(min=0) + guard + lost[0].square() + lost[1].square()
