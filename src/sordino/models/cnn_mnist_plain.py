"""CNN of two convolutions and two fully connected layers, no pooling (20,522 parameters on 28 x 28, 10 classes).

Xue et al. (2024), "Differentially Private Federated Learning with an Adaptive Noise Mechanism", Section VI.A, for
MNIST and FMNIST: "two 2D convolutional layers and two fully connected layer, where we use ReLU". The paper gives no
widths and names no pooling (it does for CIFAR-10); ours halves the picture by a stride of 2 in both convolutions."""

import torch
from torch import nn

from sordino.models._pictures import check_picture

__all__ = ["cnn_mnist_plain"]


def cnn_mnist_plain(shape: tuple[int, ...], outputs: int) -> nn.Module:
    """Return the CNN for pictures of at least 16 x 16 pixels.

    Args:
        shape: (channels, height, width) of one record.
        outputs: number of classes.
    """
    check_picture("cnn-mnist-plain", shape, least=16)
    body = nn.Sequential(
        nn.Conv2d(shape[0], 8, 5, stride=2), nn.ReLU(),
        nn.Conv2d(8, 16, 5, stride=2), nn.ReLU(), nn.Flatten(),
    )  # fmt: skip
    width = body(torch.zeros(1, *shape)).shape[1]
    return nn.Sequential(*body, nn.Linear(width, 64), nn.ReLU(), nn.Linear(64, outputs))
