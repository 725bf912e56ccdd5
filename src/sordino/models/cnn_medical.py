"""CNN of four convolutions and two fully connected layers (192,486 parameters on 3 x 64 x 64, 6 classes).

Feng et al. (2025), "Harmonizing Differential Privacy Mechanisms for Federated Learning" (UDP-FL), Section 5.2, for
Medical MNIST: "a four-layer CNN with additional fully connected layers designed for 3-channel image classification".
The paper gives no widths; ours are 16, 32, 64 and 64 channels, with max pooling after each, and 128 units. Grey
pictures are accepted as well."""

import torch
from torch import nn

from sordino.models._pictures import check_picture

__all__ = ["cnn_medical"]


def cnn_medical(shape: tuple[int, ...], outputs: int) -> nn.Module:
    """Return the CNN for pictures of at least 16 x 16 pixels.

    Args:
        shape: (channels, height, width) of one record.
        outputs: number of classes.
    """
    check_picture("cnn-medical", shape, least=16)
    layers: list[nn.Module] = []
    last = shape[0]
    for channels in (16, 32, 64, 64):
        layers += [nn.Conv2d(last, channels, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
        last = channels
    body = nn.Sequential(*layers, nn.Flatten())
    width = body(torch.zeros(1, *shape)).shape[1]
    return nn.Sequential(*body, nn.Linear(width, 128), nn.ReLU(), nn.Linear(128, outputs))
