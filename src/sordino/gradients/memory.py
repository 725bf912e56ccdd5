"""The memory format of images. On CPUs pooling is many times faster with channels last."""

from __future__ import annotations

import torch
from torch import Tensor


def is_last(x: Tensor) -> bool:
    """Return whether x [records, c, h, w] is stored with its channels last and its strides say so."""
    return x.dim() == 4 and x.stride(1) == 1 and x.is_contiguous(memory_format=torch.channels_last)


def channels_last(x: Tensor) -> Tensor:
    """Return x [records, c, h, w] stored with its channels last.

    With a single channel both formats coincide; the strides are set so that PyTorch treats it as channels last.
    """
    n, c, h, w = x.shape
    return x.contiguous(memory_format=torch.channels_last).as_strided((n, c, h, w), (c * h * w, 1, c * w, c))
