"""The geometry of a convolution: conversion of its input to rows of patches (im2col) and back (col2im).

Rows are ordered by kernel position first and channel last, so that a patch of a channels-last image consists of a few
long runs of memory. With t output positions, K = k1 k2 ... kernel positions and c channels, patches are
[records, t, K c].
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from sordino.gradients.memory import channels_last, is_last

aten = torch.ops.aten
SHORT = 32  # runs of memory with up to this many numbers are copied faster by index


@dataclass(frozen=True)
class Geometry:
    """The hyperparameters of a convolution and the size of its input."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]  # (before, after) for each dimension
    dilation: tuple[int, ...]
    groups: int
    size: tuple[int, ...]  # size of the input

    @staticmethod
    def of(module: Any, size: tuple[int, ...]) -> Geometry:
        """Return the geometry of a convolution module for inputs of this size."""
        kernel, dilation = tuple(module.kernel_size), tuple(module.dilation)
        padding = module.padding
        if padding == "valid":
            pairs = tuple((0, 0) for _ in kernel)
        elif padding == "same":
            totals = [d * (k - 1) for k, d in zip(kernel, dilation, strict=True)]
            pairs = tuple((total // 2, total - total // 2) for total in totals)
        else:
            pairs = tuple((p, p) for p in padding)
        return Geometry(kernel, tuple(module.stride), pairs, dilation, module.groups, size)

    @property
    def out(self) -> tuple[int, ...]:
        """Number of output positions along each dimension."""
        every = zip(self.size, self.padding, self.kernel, self.dilation, self.stride, strict=True)
        return tuple((s + sum(p) - d * (k - 1) - 1) // step + 1 for s, p, k, d, step in every)

    @property
    def _symmetric(self) -> bool:
        return all(before == after for before, after in self.padding)

    def _padded(self, x: Tensor) -> Tensor:
        pairs = [n for pair in reversed(self.padding) for n in pair]
        return F.pad(x, pairs) if any(pairs) else x

    def convolve(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Return the convolution by PyTorch's kernel, with one weight for all records."""
        if not self._symmetric:
            x = self._padded(x)
        y: Tensor = aten.convolution(x, like(weight, x), bias, *self._native)
        return y

    @property
    def _native(self) -> tuple[Any, ...]:
        padding = [pair[0] if self._symmetric else 0 for pair in self.padding]
        return list(self.stride), padding, list(self.dilation), False, [0] * len(self.kernel), self.groups

    def _backward(self, x: Tensor, g: Tensor, weight: Tensor, mask: list[bool]) -> list[Tensor]:
        x = x if self._symmetric else self._padded(x)
        grads: list[Tensor] = aten.convolution_backward(g, x, like(weight, x), None, *self._native, mask)
        return grads

    def pull(self, x: Tensor, g: Tensor, weight: Tensor) -> Tensor:
        """Return the gradient of the input, with one weight for all records."""
        return self._unpadded(self._backward(x, g, weight, [True, False, False])[0], not self._symmetric)

    def push(self, x: Tensor, g: Tensor, weight: Tensor) -> Tensor:
        """Return the gradient of the weight, summed over all records."""
        return self._backward(x, g, weight, [False, True, False])[1]

    def _unpadded(self, x: Tensor, padded: bool) -> Tensor:
        if padded:
            for i, (pair, size) in enumerate(zip(self.padding, self.size, strict=True)):
                x = x.narrow(2 + i, pair[0], size)
        return x

    def patches(self, x: Tensor) -> Tensor:
        """Extract the patches of x as rows: [records, c, *size] -> [records, t, K c]."""
        if x.is_cuda and x.dim() == 4:
            x = channels_last(x)  # a patch is then copied in long runs
        x = self._padded(x).movedim(1, -1)
        n, c = x.shape[0], x.shape[-1]
        run = self.kernel[-1] * c
        if x.device.type == "cpu" and self.dilation[-1] == 1 and run <= SHORT:
            flat = x.reshape(-1)
            runs = flat.as_strided((flat.numel() - run + 1, run), (1, 1))  # a run of memory at every offset
            return runs.index_select(0, self._starts(n, c)).view(n, math.prod(self.out), -1)
        for i, (k, d, step) in enumerate(zip(self.kernel, self.dilation, self.stride, strict=True)):
            x = x.unfold(1 + i, d * (k - 1) + 1, step)[..., ::d]
        x = x.movedim(1 + len(self.kernel), -1)  # [records, *out, *kernel, c]
        return x.reshape(n, math.prod(self.out), -1)

    def windows(self, x: Tensor) -> Tensor:
        """Return the sum over each patch of an image of one channel: [records, 1, h, w] -> [records, t]."""
        if max(self.dilation) > 1:
            return self.patches(x).sum(2)
        return F.avg_pool2d(self._padded(x), self.kernel, self.stride, divisor_override=1).flatten(1)

    def _starts(self, records: int, c: int) -> Tensor:
        """Return the memory offset of each run of each patch, for this many records."""
        many = starts(self, c, 1 << (records - 1).bit_length())
        return many[: records * (many.numel() >> (records - 1).bit_length())]

    def fold(self, patches: Tensor, x: Tensor) -> Tensor:
        """Apply the transpose of `patches`: add rows where they came from, giving an image like x.

        A kernel whose size is a multiple of the stride is a smaller kernel on blocks of stride x stride points, which
        takes fewer and longer additions.
        """
        c, dims = x.shape[1], len(self.kernel)
        divisible = all(k % s == 0 and d == 1 for k, s, d in zip(self.kernel, self.stride, self.dilation, strict=True))
        block = self.stride if divisible else (1,) * dims
        step = (1,) * dims if divisible else self.stride
        full = [s + sum(p) for s, p in zip(self.size, self.padding, strict=True)]
        shape = [n for f, b in zip(full, block, strict=True) for n in (-(-f // b), b)]
        y = patches.new_zeros(patches.shape[0], *shape, c)
        parts = [n for k, b in zip(self.kernel, block, strict=True) for n in (k // b, b)]
        cols = patches.view(-1, *self.out, *parts, c)  # [records, *out, (kernel blocks, block) ..., c]
        mixed = [i for d in range(dims) for i in (1 + d, 1 + dims + d)]  # out and block dimensions interleaved
        for at in product(*(range(n) for n in parts[::2])):
            area, pick = [slice(None)], [slice(None)] * (1 + dims)
            for i, d, s, o in zip(at, self.dilation, step, self.out, strict=True):
                area += [slice(i * d, i * d + (o - 1) * s + 1, s), slice(None)]
                pick += [i, slice(None)]  # type: ignore[list-item]
            y[tuple(area)] += cols[tuple(pick)].permute(0, *mixed, 1 + 2 * dims)
        y = y.view(y.shape[0], *(n * b for n, b in zip(shape[::2], shape[1::2], strict=True)), c)
        return self._unpadded(y.movedim(-1, 1), True)

    def grouped(self, patches: Tensor) -> Tensor:
        """Separate the groups of channels: [records, t, K c] -> [records groups, t, K c / groups]."""
        n, t, _ = patches.shape
        x = patches.view(n, t, math.prod(self.kernel), self.groups, -1)
        return x.permute(0, 3, 1, 2, 4).reshape(n * self.groups, t, -1)

    def tokens(self, g: Tensor) -> Tensor:
        """Return an output image as rows: [records, p, *out] -> [records, t, p]."""
        return g.movedim(1, -1).reshape(g.shape[0], -1, g.shape[1])

    def blank(self, x: Tensor, p: int) -> Tensor:
        """Return an empty output image [records, p, *out], stored channels-last, to be filled through `tokens`."""
        return x.new_empty_strided((x.shape[0], p, *self.out), self._strides(p))

    def _strides(self, p: int) -> tuple[int, ...]:
        steps = [p]
        for o in reversed(self.out):
            steps.insert(0, steps[0] * o)
        return (steps[0], 1, *steps[1:])

    def rows(self, weight: Tensor) -> Tensor:
        """Return weights as rows: [clients, p, c, *kernel] -> [clients, p, K c]."""
        return weight.movedim(2, -1).reshape(*weight.shape[:2], -1)

    def weight(self, rows: Tensor) -> Tensor:
        """Return rows as weights, the inverse of `rows`: [clients, p, K c] -> [clients, p, c, *kernel]."""
        return rows.view(*rows.shape[:2], *self.kernel, -1).movedim(-1, 2)


def like(weight: Tensor, x: Tensor) -> Tensor:
    """Return a kernel in the memory format of the images x."""
    return channels_last(weight) if is_last(x) else weight


@lru_cache(maxsize=64)
def starts(shape: Geometry, c: int, records: int) -> Tensor:
    """Return memory offsets of patch runs [records t K / last kernel size], for padded channels-last images."""
    full = [s + sum(p) for s, p in zip(shape.size, shape.padding, strict=True)]
    at = torch.arange(records).view(-1, *(1,) * (2 * len(full) - 1)) * (math.prod(full) * c)
    for i, (k, d, step, o) in enumerate(zip(shape.kernel, shape.dilation, shape.stride, shape.out, strict=True)):
        jump, dims = math.prod(full[i + 1 :]) * c, len(full)
        at = at + (torch.arange(o) * step * jump).view(-1, *(1,) * (2 * dims - 2 - i))
        if i < dims - 1:
            at = at + (torch.arange(k) * d * jump).view(-1, *(1,) * (dims - 2 - i))
    return at.reshape(-1)
