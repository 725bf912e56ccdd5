"""CNN of two convolutions and two fully connected layers (21,840 parameters on 28 x 28, 10 classes).

Feng et al. (2025), "Harmonizing Differential Privacy Mechanisms for Federated Learning" (UDP-FL), Section 5.2: "a
two-layer CNN with ReLU activation, max pooling, and two fully connected layers". The paper gives no widths; ours are
10 and 20 channels of 5 x 5 and 50 units, small because the noise grows with the number of parameters."""

import torch
from torch import nn

from sordino.models._pictures import check_picture

__all__ = ["cnn_mnist"]


def cnn_mnist(shape: tuple[int, ...], outputs: int) -> nn.Module:
    """Return the CNN for pictures of at least 16 x 16 pixels.

    Args:
        shape: (channels, height, width) of one record.
        outputs: number of classes.
    """
    check_picture("cnn-mnist", shape, least=16)
    body = nn.Sequential(
        nn.Conv2d(shape[0], 10, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(10, 20, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
    )  # fmt: skip
    width = body(torch.zeros(1, *shape)).shape[1]
    return nn.Sequential(*body, nn.Linear(width, 50), nn.ReLU(), nn.Linear(50, outputs))
