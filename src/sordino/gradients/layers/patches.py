"""The geometry of a convolution: patches of its input as rows (im2col), and rows back to an input (col2im).

Rows are ordered kernel position first, channel last, so that a patch of a channels-last image is a few long runs
of memory. Positions are t, kernel positions K = k1 k2 ..., channels c: patches are [records, t, K c].
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

aten = torch.ops.aten


@dataclass(frozen=True)
class Geometry:
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]  # (before, after) of each dimension
    dilation: tuple[int, ...]
    groups: int
    size: tuple[int, ...]  # of the input

    @staticmethod
    def of(module: Any, size: tuple[int, ...]) -> Geometry:
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
        """Output positions along each dimension."""
        every = zip(self.size, self.padding, self.kernel, self.dilation, self.stride, strict=True)
        return tuple((s + sum(p) - d * (k - 1) - 1) // step + 1 for s, p, k, d, step in every)

    @property
    def _symmetric(self) -> bool:
        return all(before == after for before, after in self.padding)

    def _padded(self, x: Tensor) -> Tensor:
        pairs = [n for pair in reversed(self.padding) for n in pair]
        return F.pad(x, pairs) if any(pairs) else x

    def convolve(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """PyTorch's own kernel, one weight for all records."""
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
        """The gradient of the input, one weight for all records."""
        return self._unpadded(self._backward(x, g, weight, [True, False, False])[0], not self._symmetric)

    def push(self, x: Tensor, g: Tensor, weight: Tensor) -> Tensor:
        """The gradient of the weight, summed over all records."""
        return self._backward(x, g, weight, [False, True, False])[1]

    def _unpadded(self, x: Tensor, padded: bool) -> Tensor:
        if padded:
            for i, (pair, size) in enumerate(zip(self.padding, self.size, strict=True)):
                x = x.narrow(2 + i, pair[0], size)
        return x

    def patches(self, x: Tensor) -> Tensor:
        """[records, c, *size] -> [records, t, K c]."""
        x = self._padded(x).movedim(1, -1)
        for i, (k, d, step) in enumerate(zip(self.kernel, self.dilation, self.stride, strict=True)):
            x = x.unfold(1 + i, d * (k - 1) + 1, step)[..., ::d]
        dims = len(self.kernel)  # [records, *out, c, *kernel]
        x = x.movedim(1 + dims, -1)
        return x.reshape(x.shape[0], math.prod(self.out), -1)

    def fold(self, patches: Tensor, x: Tensor) -> Tensor:
        """The transpose of `patches`: rows added up where they came from, as an image like x."""
        c, dims = x.shape[1], len(self.kernel)
        cols = patches.view(-1, *self.out, *self.kernel, c)
        full = [s + sum(p) for s, p in zip(self.size, self.padding, strict=True)]
        y = cols.new_zeros(cols.shape[0], *full, c)
        for at in product(*(range(k) for k in self.kernel)):
            area = [slice(None)]
            for i, d, step, o in zip(at, self.dilation, self.stride, self.out, strict=True):
                area.append(slice(i * d, i * d + (o - 1) * step + 1, step))
            y[tuple(area)] += cols[(slice(None),) * (1 + dims) + at]
        return self._unpadded(y.movedim(-1, 1), True)

    def grouped(self, patches: Tensor) -> Tensor:
        """[records, t, K c] -> [records groups, t, K c / groups]."""
        n, t, _ = patches.shape
        x = patches.view(n, t, math.prod(self.kernel), self.groups, -1)
        return x.permute(0, 3, 1, 2, 4).reshape(n * self.groups, t, -1)

    def tokens(self, g: Tensor) -> Tensor:
        """An output image as rows: [records, p, *out] -> [records, t, p]."""
        return g.movedim(1, -1).reshape(g.shape[0], -1, g.shape[1])

    def image(self, rows: Tensor) -> Tensor:
        """Rows as an output image: [records, t, p] -> [records, p, *out]."""
        return rows.view(rows.shape[0], *self.out, rows.shape[-1]).movedim(-1, 1)

    def rows(self, weight: Tensor) -> Tensor:
        """Weights as rows: [clients, p, c, *kernel] -> [clients, p, K c]."""
        return weight.movedim(2, -1).reshape(*weight.shape[:2], -1)

    def weight(self, rows: Tensor) -> Tensor:
        """And back: [clients, p, K c] -> [clients, p, c, *kernel]."""
        return rows.view(*rows.shape[:2], *self.kernel, -1).movedim(-1, 2)


def like(weight: Tensor, x: Tensor) -> Tensor:
    """A kernel in the memory order of the images it meets."""
    last = x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last)
    return weight.contiguous(memory_format=torch.channels_last) if last else weight
