"""CNN of the federated averaging paper (1,663,370 parameters on 28 x 28 pictures and 10 classes).

McMahan et al. (2017), arXiv:1602.05629, Section 3: two 5 x 5 convolutions of 32 and 64 channels, each followed by
2 x 2 max pooling, and a fully connected layer of 512 units with ReLU. The number of parameters is the same. Li et al.
(2025), arXiv:2503.12958 (FedSDP), train "a CNN" on FEMNIST without describing it; this is the one most often used with
LEAF's FEMNIST (Caldas et al. 2018, arXiv:1812.01097)."""

import torch
from torch import nn

from sordino.models._pictures import check_picture

__all__ = ["cnn_femnist"]


def cnn_femnist(shape: tuple[int, ...], outputs: int) -> nn.Module:
    """Return the CNN for pictures of at least 8 x 8 pixels.

    Args:
        shape: (channels, height, width) of one record.
        outputs: number of classes.
    """
    check_picture("cnn-femnist", shape, least=8)
    body = nn.Sequential(
        nn.Conv2d(shape[0], 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
    )  # fmt: skip
    width = body(torch.zeros(1, *shape)).shape[1]
    return nn.Sequential(*body, nn.Linear(width, 512), nn.ReLU(), nn.Linear(512, outputs))
