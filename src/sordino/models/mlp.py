"""Multilayer perceptron with two hidden layers of 200 units (199,210 parameters on 28 x 28 pictures, 10 classes).

McMahan et al. (2017), arXiv:1602.05629, Section 3: the "MNIST 2NN" with ReLU, with the same number of parameters."""

import math

from torch import nn

__all__ = ["mlp"]

HIDDEN = 200


def mlp(shape: tuple[int, ...], outputs: int) -> nn.Module:
    """Return the network.

    Args:
        shape: shape of one record, without the batch dimension; records are flattened.
        outputs: number of classes or predicted values.
    """
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(math.prod(shape), HIDDEN), nn.ReLU(),
        nn.Linear(HIDDEN, HIDDEN), nn.ReLU(),
        nn.Linear(HIDDEN, outputs),
    )  # fmt: skip
