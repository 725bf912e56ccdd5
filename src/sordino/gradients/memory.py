"""The order of an image in memory. On CPUs pooling is many times faster with the channels last."""

from __future__ import annotations

import torch
from torch import Tensor


def is_last(x: Tensor) -> bool:
    """Whether x [records, c, h, w] lies in memory with its channels last, and says so."""
    return x.dim() == 4 and x.stride(1) == 1 and x.is_contiguous(memory_format=torch.channels_last)


def channels_last(x: Tensor) -> Tensor:
    """x [records, c, h, w] with its channels last in memory.

    One channel is last and first at the same time; its strides are set so that PyTorch takes it for last.
    """
    n, c, h, w = x.shape
    return x.contiguous(memory_format=torch.channels_last).as_strided((n, c, h, w), (c * h * w, 1, c * w, c))
