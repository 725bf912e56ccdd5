"""CNN of two blocks, each two convolutions and max pooling (106,538 parameters on 3 x 32 x 32, 10 classes).

Xue et al. (2024), "Differentially Private Federated Learning with an Adaptive Noise Mechanism", Section VI.A, for
CIFAR-10: "two consecutive two-layer convolutional layers and two max pooling layers", ReLU, softmax last (here part
of the loss). A single linear layer follows. The paper gives no widths; ours are 32, 32, 64 and 64 channels of 3 x 3."""

import torch
from torch import nn

from sordino.models._pictures import check_picture

__all__ = ["cnn_cifar"]


def cnn_cifar(shape: tuple[int, ...], outputs: int) -> nn.Module:
    """Return the CNN for pictures of at least 8 x 8 pixels.

    Args:
        shape: (channels, height, width) of one record.
        outputs: number of classes.
    """
    check_picture("cnn-cifar", shape, least=8)
    body = nn.Sequential(
        nn.Conv2d(shape[0], 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(),
    )  # fmt: skip
    width = body(torch.zeros(1, *shape)).shape[1]
    return nn.Sequential(*body, nn.Linear(width, outputs))
