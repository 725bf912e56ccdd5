"""Small CNN of the DP-SGD literature (26,010 parameters on 28 x 28 pictures).

Papernot et al. (2021), arXiv:2007.14191, Table 1 (tanh)."""

import torch
from torch import nn

from sordino.core.errors import ModelError

__all__ = ["cnn"]


def cnn(shape: tuple[int, ...], outputs: int) -> nn.Module:
    """Return the CNN for pictures of at least 16 x 16 pixels.

    Args:
        shape: (channels, height, width) of one record.
        outputs: number of classes.
    """
    if len(shape) != 3 or min(shape[1:]) < 16:
        raise ModelError(f"the cnn needs pictures (channels, height, width) of 16 x 16 or more, not {shape}.")
    body = nn.Sequential(
        nn.Conv2d(shape[0], 16, 8, stride=2, padding=2), nn.Tanh(), nn.MaxPool2d(2, 1),
        nn.Conv2d(16, 32, 4, stride=2), nn.Tanh(), nn.MaxPool2d(2, 1), nn.Flatten(),
    )  # fmt: skip
    width = body(torch.zeros(1, *shape)).shape[1]
    return nn.Sequential(*body, nn.Linear(width, 32), nn.ReLU(), nn.Linear(32, outputs))
