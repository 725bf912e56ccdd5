"""Conv1d, Conv2d and Conv3d as linear maps of patches.

With every patch of the input laid out as a row, a convolution is a linear map with t = output positions, d = kernel
size x input channels and p = output channels, and its per-sample gradients and norms are those of `terms.Outer`
(Rochette et al. 2019, arXiv:1912.06015; Bu et al. 2022, arXiv:2205.10683). Shared weights use PyTorch's kernels, and
patches only for the norms; per-client weights are multiplied with the patches.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from sordino.gradients import cost
from sordino.gradients.clipping import Clip, rough
from sordino.gradients.half import bounded, longest, products, total
from sordino.gradients.layers import images
from sordino.gradients.layers.base import TapedLayer
from sordino.gradients.layers.patches import Geometry
from sordino.gradients.memory import channels_last, is_last
from sordino.gradients.scale import Divisor, join
from sordino.gradients.split import Split
from sordino.gradients.tape import Op, Tape, Unsupported, Weight
from sordino.gradients.terms import Dense, Term, absolutes, folded, ghost, squares, weighted, zero


class Convolution(Op):
    """A convolution, by patches if clients have their own weights or patches are small, else by PyTorch's kernels."""

    half = image = True

    def __init__(self, tape: Tape, weight: Weight, bias: Weight | None, shape: Geometry) -> None:
        super().__init__(tape, weight, bias)
        self.weight, self.bias = tape.narrow(weight), None if bias is None else tape.narrow(bias)
        self.shape = shape
        self.patches: Tensor | None = None

    def _small(self, x: Tensor) -> bool:
        if self.shape.groups > 1 or self.tape.stacked:
            return self.shape.groups == 1
        numbers = math.prod(self.shape.out) * math.prod(self.shape.kernel) * x.shape[1]
        return x.device.type == "cpu" and numbers <= cost.PATCHES

    def forward(self, x: Tensor) -> Tensor:
        x = self._image(x)
        w, bias, shape = self.weight.value, None if self.bias is None else self.bias.value, self.shape
        if self._small(x):
            self.patches = shape.patches(x)
            self.tape.numbers += self.patches.numel()
            split, w, bias = self._per_client(w, bias)
            y = shape.blank(x, w.shape[1])
            split.linear(self.patches, shape.rows(w), bias, out=shape.tokens(y))
            return y if is_last(x) else y.contiguous()
        if not self.tape.stacked:
            return shape.convolve(x, w, bias)
        return torch.cat([
            shape.convolve(x[rows], w[k], None if bias is None else bias[k])
            for k, rows in self.tape.split.slices()
        ])  # fmt: skip

    def _per_client(self, w: Tensor, bias: Tensor | None) -> tuple[Split, Tensor, Tensor | None]:
        """Return split, weight and bias; shared weights are treated as those of one client with all records."""
        if self.tape.stacked:
            return self.tape.split, w, bias
        return Split((self.tape.split.records,)), w.unsqueeze(0), None if bias is None else bias.unsqueeze(0)

    def _image(self, x: Tensor) -> Tensor:
        return channels_last(x) if self.tape.images and x.dim() == 4 else x

    def backward(self, x: Tensor, g: Tensor, wanted: bool) -> Tensor | None:
        x, g = self._image(x), self._image(g)
        gx = self._pull(x, g) if wanted else None
        if self.bias is not None and self.bias.slot is not None:
            self.tape.note(self.bias, Dense(total(self.shape.tokens(g))))
        if self.weight.slot is not None:
            self.tape.note(self.weight, Kernel(self.shape, x, g, self.patches, self.weight.value))
        self.patches = None
        return gx

    def _pull(self, x: Tensor, g: Tensor) -> Tensor:
        shape, w = self.shape, self.weight.value
        if self.patches is not None:
            split, w, _ = self._per_client(w, None)
            return shape.fold(split.linear(shape.tokens(g), shape.rows(w).transpose(1, 2)), x)
        if not self.tape.stacked:
            return shape.pull(x, g, w)
        return torch.cat([shape.pull(x[rows], g[rows], w[k]) for k, rows in self.tape.split.slices()])


class Kernel(Term):
    """The gradients of a convolution's weight. Patches are created in chunks unless they already exist."""

    def __init__(self, shape: Geometry, x: Tensor, g: Tensor, patches: Tensor | None, weight: Tensor) -> None:
        self.shape, self.x, self.g, self.patches = shape, x, g, patches
        self.weight = weight
        self.values: Tensor | None = None  # [units, p, d] once instantiated
        self.width = 1  # records per unit: see `fold`

    @property
    def _size(self) -> tuple[int, int, int]:
        """The sizes t, d and p of the linear map."""
        d = math.prod(self.shape.kernel) * self.x.shape[1] // self.shape.groups
        return self.width * math.prod(self.shape.out), d, self.g.shape[1]

    def _chunks(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield patches and output gradients as rows, a few units at a time."""
        if self.patches is not None:
            yield self._rows(self.patches), self._rows(self.shape.tokens(self.g))
        else:
            yield from self._pieces(self.x, self.g)

    def _pieces(self, x: Tensor, g: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        t, d, _ = self._size
        step = max(1, cost.CHUNK["cpu" if x.device.type == "cpu" else "cuda"] // max(1, t * d * self.shape.groups))
        for x_part, g_part in zip(x.split(step * self.width), g.split(step * self.width), strict=True):
            yield self._rows(self.shape.patches(x_part)), self._rows(self.shape.tokens(g_part))

    def _rows(self, tokens: Tensor) -> Tensor:
        return folded(tokens, self.width) if self.width > 1 else tokens

    def _instantiate(self, a: Tensor, g: Tensor, out: Tensor | None = None) -> Tensor:
        """Return per-sample gradients [records, p, d]."""
        n, _, p = g.shape
        groups = self.shape.groups
        if groups == 1:
            if out is None or g.dtype == torch.bfloat16:
                values = products(g.transpose(1, 2), a)
                return values if out is None else out.copy_(values)
            return torch.bmm(g.transpose(1, 2), a, out=out)
        each = g.view(n, -1, groups, p // groups).permute(0, 2, 3, 1).reshape(n * groups, p // groups, -1)
        values = products(each, self.shape.grouped(a)).view(n, p, -1)
        return values if out is None else out.copy_(values)

    def squared(self) -> Tensor:
        if self.values is not None:
            return squares(self.values)
        way = cost.way(*self._size) if self.shape.groups == 1 else "hold"
        if self._direct and (way != "ghost" or self._size[0] >= images.TOKENS):
            return self._without_patches(way == "hold")
        if way == "hold":
            return self._hold()[1]
        if way == "ghost":
            return join([bounded(ghost(a, g), a, g) for a, g in self._chunks()])
        return join([bounded(squares(self._instantiate(a, g)), a, g) for a, g in self._chunks()])

    @property
    def _direct(self) -> bool:
        """Whether gradients are computed without patches."""
        return self.shape.groups == 1 and self.patches is None and images.ours(self.x, self.g)

    def _without_patches(self, hold: bool) -> Tensor:
        """Return the squared norms that are clipped, and hold the gradients if asked to."""
        values, squared = images.gradients(self.x, self.g, self.shape, self.width, hold)
        if not hold:
            return longest(squared, images.reach(self.x, self.g, self.shape, self.width), self._size[0])
        self.values = values
        self.x = self.g = squared.new_empty(0)
        return squared

    def scaled(self, by: Divisor) -> Tensor:
        return by.moved(self.shape.rows).squares(self._held)

    def absolute(self, clip: Clip) -> Tensor:
        """Return L1 norms [records] of the held gradients, so that exactly what was measured is summed."""
        return absolutes(self._held)

    @property
    def _held(self) -> Tensor:
        """The units' gradients [units, p, d], held from the first access on."""
        return self._hold()[0] if self.values is None else self.values

    def _hold(self) -> tuple[Tensor, Tensor]:
        """Hold the units' gradients, free everything else, and return the gradients and their squared norms."""
        _, d, p = self._size
        full = torch.promote_types(self.x.dtype, torch.float32)
        values, norms, at = self.x.new_empty(self.x.shape[0] // self.width, p, d, dtype=full), [], 0
        for a, g in self._chunks():
            part = self._instantiate(a, g, values[at : at + a.shape[0]])
            norms.append(squares(part))
            at += a.shape[0]
        self.values, self.patches = values, None
        self.x = self.g = values.new_empty(0)
        return values, join(norms)

    def drop(self, bad: Tensor) -> None:
        if self.values is not None:
            self.values = zero(self.values, bad)
            return
        bad = self._each(bad)
        self.x, self.g = zero(self.x, bad), zero(self.g, bad)
        self.patches = None if self.patches is None else zero(self.patches, bad)

    def sums(self, split: Split, factors: Tensor | None) -> Tensor:
        if self.values is not None:
            return self.shape.weight(split.sum(self.values, factors))
        factors = None if factors is None else self._each(factors)
        if self.patches is not None:
            g = weighted(self.shape.tokens(self.g), factors)
            return self.shape.weight(split.outer(self._rows(g), self._rows(self.patches)))
        g = weighted(self.g, factors)
        if g.dtype == torch.bfloat16 or (factors is not None and g.is_cuda and rough(torch.backends.cudnn)):
            return self.shape.weight(self._by_patches(split, g))
        stacked = self.weight.dim() > self.g.dim()
        out = g.new_zeros(split.clients, *self.weight.shape[-self.g.dim() :])
        for k, units in split.slices():
            rows = slice(units.start * self.width, units.stop * self.width)
            out[k] = self.shape.push(self.x[rows], g[rows], self.weight[k] if stacked else self.weight)
        return out

    def _by_patches(self, split: Split, g: Tensor) -> Tensor:
        """Return each client's sum of g aᵀ [clients, p, d], with the patches a created in chunks."""
        _, d, p = self._size
        direct = self._direct
        out = g.new_zeros(split.clients, p, d, dtype=torch.promote_types(g.dtype, torch.float32))
        for k, units in split.slices():
            rows = slice(units.start * self.width, units.stop * self.width)
            if direct:
                out[k] = images.added(self.x[rows], g[rows], self.shape)
                continue
            for a, b in self._pieces(self.x[rows], g[rows]):
                if g.dtype == torch.bfloat16:
                    out[k] += products(b.reshape(1, -1, p).transpose(1, 2), a.reshape(1, -1, d))[0]
                else:
                    out[k].addmm_(b.reshape(-1, p).t(), a.reshape(-1, d))
        return out

    def _each(self, units: Tensor) -> Tensor:
        """Repeat one number per unit [units] for each of its records [records]."""
        return units.repeat_interleave(self.width) if self.width > 1 else units

    def add(self, other: Term) -> Term:
        if not isinstance(other, Kernel):
            raise TypeError(f"cannot add {type(other).__name__} to a convolution's gradient")
        self.values = self._held + other._held
        return self

    def fold(self, width: int) -> Term:
        self.width = width
        return self


class Conv(TapedLayer):
    """Stand-in for nn.Conv1d, nn.Conv2d and nn.Conv3d with zero padding."""

    @classmethod
    def refuses(cls, module: nn.Module) -> str | None:
        mode = getattr(module, "padding_mode", "zeros")
        return None if mode == "zeros" else f"pads with {mode}"

    def __call__(self, x: Tensor) -> Tensor:
        module: Any = self.module
        if x.dim() != 2 + len(module.kernel_size):
            raise Unsupported(f"{type(module).__name__} is given {x.dim()} dimensions")
        shape = Geometry.of(self.module, tuple(x.shape[2:]))
        return self.tape.run(Convolution(self.tape, self.needed("weight"), self.weight("bias"), shape), x)
