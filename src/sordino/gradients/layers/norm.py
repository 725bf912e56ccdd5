"""LayerNorm, RMSNorm, GroupNorm and InstanceNorm: y = xhat * w + b with xhat computed from one sample alone.

The gradients dL/dw = sum g xhat and dL/db = sum g, over the positions that share w and b, are small and therefore
always instantiated. xhat is recomputed from the saved input, mean and reciprocal standard deviation, as in PyTorch's
own kernels.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor, nn

from sordino.core.errors import ModelError
from sordino.gradients.layers import images
from sordino.gradients.layers.base import TapedLayer, tokens
from sordino.gradients.memory import channels_last, is_last
from sordino.gradients.tape import Op, Tape, Unsupported, Weight
from sordino.gradients.terms import Dense

aten = torch.ops.aten


class Norm(Op):
    """A norm; shared weights are passed to the fused kernel, per-client weights are applied after it."""

    def __init__(self, tape: Tape, weight: Weight | None, bias: Weight | None) -> None:
        super().__init__(tape, weight, bias)
        self.weight, self.bias = weight, bias

    @abstractmethod
    def normalise(self, x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        """Return xhat * weight + bias and save the statistics."""

    @abstractmethod
    def pull(self, x: Tensor, g: Tensor, weight: Tensor | None) -> Tensor:
        """Return the gradient of the input."""

    @abstractmethod
    def per_sample(self, x: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gradients of w and b for each sample [records, *shape]."""

    def over(self, weight: Weight | None, x: Tensor) -> Tensor | None:
        """Return w or b of each sample's client, shaped to broadcast with x [records, 1..., *shape]."""
        if weight is None:
            return None
        rows = self.tape.split.spread(weight.value)
        return rows.view(rows.shape[0], *(1,) * (x.dim() - rows.dim()), *rows.shape[1:])

    def forward(self, x: Tensor) -> Tensor:
        if not self.tape.stacked:
            return self.normalise(x, _value(self.weight), _value(self.bias))
        y, w, b = self.normalise(x, None, None), self.over(self.weight, x), self.over(self.bias, x)
        if w is not None:
            y = y * w
        return y if b is None else y + b

    def backward(self, x: Tensor, g: Tensor, wanted: bool) -> Tensor | None:
        gx = None
        if wanted and self.tape.stacked:
            w = self.over(self.weight, x)
            gx = self.pull(x, g if w is None else g * w, None)
        elif wanted:
            gx = self.pull(x, g, _value(self.weight))
        if any(weight is not None and weight.slot for weight in (self.weight, self.bias)):
            gw, gb = self.per_sample(x, g)
            self.tape.note(self.weight, Dense(gw))
            self.tape.note(self.bias, Dense(gb))
        return gx


def _value(weight: Weight | None) -> Tensor | None:
    return None if weight is None else weight.value


class LastNorm(Norm):
    """LayerNorm over the last dimensions."""

    def __init__(
        self, tape: Tape, weight: Weight | None, bias: Weight | None, shape: tuple[int, ...], eps: float
    ) -> None:
        super().__init__(tape, weight, bias)
        self.shape, self.eps = shape, eps

    def normalise(self, x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        y, self.mean, self.rstd = torch.native_layer_norm(x, self.shape, weight, bias, self.eps)
        return y

    def pull(self, x: Tensor, g: Tensor, weight: Tensor | None) -> Tensor:
        mask = [True, False, False]
        gx: Tensor = aten.native_layer_norm_backward(g, x, self.shape, self.mean, self.rstd, weight, None, mask)[0]
        return gx

    def per_sample(self, x: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
        xhat = (x - self.mean).mul_(self.rstd)
        tail = len(self.shape)
        return tokens(xhat.mul_(g), tail).sum(1), tokens(g, tail).sum(1)


class RootNorm(LastNorm):
    """RMSNorm over the last dimensions: Zhang and Sennrich (2019), arXiv:1910.07467; xhat = x / sqrt(mean x² + eps)."""

    def normalise(self, x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        self.dims = tuple(range(-len(self.shape), 0))
        self.rstd = (x.square().mean(self.dims, keepdim=True) + self.eps).rsqrt()
        y = x * self.rstd
        return y if weight is None else y * weight

    def pull(self, x: Tensor, g: Tensor, weight: Tensor | None) -> Tensor:
        gh, xhat = g if weight is None else g * weight, x * self.rstd
        return self.rstd * (gh - xhat * (gh * xhat).mean(self.dims, keepdim=True))

    def per_sample(self, x: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
        return tokens(x * self.rstd * g, len(self.shape)).sum(1), g


class ChannelNorm(Norm):
    """GroupNorm; InstanceNorm is the case of one channel per group.  Wu and He (2018), arXiv:1803.08494.

    Images in bfloat16 are computed by kernels of their own where there are any, else in float32.
    """

    image = True

    def __init__(self, tape: Tape, weight: Weight | None, bias: Weight | None, groups: int, eps: float) -> None:
        super().__init__(tape, weight, bias)
        self.groups, self.eps = groups, eps

    def sizes(self, x: Tensor) -> tuple[int, int, int, int]:
        """Return records, channels, positions and groups, as the kernels need them."""
        return x.shape[0], x.shape[1], math.prod(x.shape[2:]), self.groups

    def over(self, weight: Weight | None, x: Tensor) -> Tensor | None:
        if weight is None:
            return None
        return self.tape.split.spread(weight.value).view(*x.shape[:2], *(1,) * (x.dim() - 2))

    def _ours(self, x: Tensor) -> bool:
        affine = self.weight is not None and self.bias is not None and not self.tape.stacked
        return affine and images.grouped(x.shape[1], self.groups) and images.ours(x)

    def forward(self, x: Tensor) -> Tensor:
        if x.dtype != torch.bfloat16:
            return super().forward(x)
        x = channels_last(x)
        if self.weight is None or self.bias is None or not self._ours(x):
            return super().forward(x.float())
        y, self.mean, self.rstd = images.group_norm(x, self.weight.value, self.bias.value, self.groups, self.eps)
        return y

    def backward(self, x: Tensor, g: Tensor, wanted: bool) -> Tensor | None:
        if x.dtype != torch.bfloat16:
            return super().backward(x, g, wanted)
        x = channels_last(x)
        if self.weight is None or not self._ours(x):
            return super().backward(x.float(), g.float(), wanted)
        g = channels_last(g)
        gx, gw, gb = images.group_norm_backward(g, x, self.mean, self.rstd, self.weight.value, self.groups)
        self.tape.note(self.weight, Dense(gw))
        self.tape.note(self.bias, Dense(gb))
        return gx

    def normalise(self, x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        y, self.mean, self.rstd = aten.native_group_norm(dense(x), weight, bias, *self.sizes(x), self.eps)
        return y  # type: ignore[no-any-return]

    def pull(self, x: Tensor, g: Tensor, weight: Tensor | None) -> Tensor:
        x = dense(x)
        g = channels_last(g) if is_last(x) else g.contiguous()
        mask = [True, False, False]
        gx: Tensor = aten.native_group_norm_backward(g, x, self.mean, self.rstd, weight, *self.sizes(x), mask)[0]
        return gx

    def per_sample(self, x: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
        each = x.shape[1] // self.groups
        mean, rstd = (s.view(-1, self.groups).repeat_interleave(each, 1) for s in (self.mean, self.rstd))
        if x.dim() == 2:
            return (x - mean) * rstd * g, g
        wide = (*mean.shape, *(1,) * (x.dim() - 2))
        gw = (x - mean.view(wide)).mul_(g).flatten(2).sum(2).mul_(rstd)
        return gw, g.flatten(2).sum(2)


def dense(x: Tensor) -> Tensor:
    """Return x as the kernels need it: contiguous, on a CPU in either of the memory formats."""
    return x if is_last(x) and not x.is_cuda else x.contiguous()


class LayerNorm(TapedLayer):
    """Stand-in for nn.LayerNorm."""

    op: type[LastNorm] = LastNorm

    def __call__(self, x: Tensor) -> Tensor:
        module: Any = self.module
        shape: tuple[int, ...] = tuple(module.normalized_shape)
        eps = torch.finfo(x.dtype).eps if module.eps is None else float(module.eps)
        return self.tape.run(self.op(self.tape, self.weight("weight"), self.weight("bias"), shape, eps), x)


class RMSNorm(LayerNorm):
    """Stand-in for nn.RMSNorm."""

    op = RootNorm


class GroupNorm(TapedLayer):
    """Stand-in for nn.GroupNorm."""

    def groups(self, x: Tensor) -> int:
        """Return the number of groups."""
        return int(self.module.num_groups)  # type: ignore[arg-type]

    def __call__(self, x: Tensor) -> Tensor:
        module: Any = self.module
        weight, bias = self.weight("weight"), self.weight("bias")
        return self.tape.run(ChannelNorm(self.tape, weight, bias, self.groups(x), float(module.eps)), x)


class InstanceNorm(GroupNorm):
    """Stand-in for nn.InstanceNorm1d, 2d and 3d, used even without trainable parameters.

    PyTorch's own backward pass misreads the gradient of a single channels-last record as channels-first, and gives
    other numbers than in a batch of two.
    """

    @classmethod
    def refuses(cls, module: nn.Module) -> str | None:
        return "keeps running statistics" if getattr(module, "track_running_stats", False) else None

    def groups(self, x: Tensor) -> int:
        kinds = (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)
        if x.dim() != 3 + [isinstance(self.module, kind) for kind in kinds].index(True):
            raise Unsupported(f"{type(self.module).__name__} is given {x.dim()} dimensions")
        if math.prod(x.shape[2:]) == 1:
            kind = type(self.module).__name__
            raise ModelError(f"{kind} is given one number a channel, which leaves none; use another norm there.")
        return int(x.shape[1])
