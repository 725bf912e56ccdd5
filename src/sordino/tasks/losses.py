"""Per-sample losses, and per-sample accuracy."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from sordino.core.errors import SpecError
from sordino.core.types import SampleLoss


def cross_entropy(predictions: Tensor, targets: Tensor) -> Tensor:
    """Return the cross-entropy of each record [n].

    Targets are one class per record [n] with predictions [n, classes], or one class per position [n, t] with
    predictions [n, t, classes]; the loss of a record is then the mean over positions.
    """
    if predictions.ndim == 3:
        return F.cross_entropy(predictions.transpose(1, 2), targets, reduction="none").mean(dim=1)
    return F.cross_entropy(predictions, targets, reduction="none")


def squared_error(predictions: Tensor, targets: Tensor) -> Tensor:
    """Return the squared error of each record [n], averaged over its values."""
    difference = predictions.reshape(len(targets), -1) - targets.reshape(len(targets), -1)
    return difference.square().mean(dim=1)


def absolute_error(predictions: Tensor, targets: Tensor) -> Tensor:
    """Return the absolute error of each record [n], averaged over its values."""
    difference = predictions.reshape(len(targets), -1) - targets.reshape(len(targets), -1)
    return difference.abs().mean(dim=1)


def huber(predictions: Tensor, targets: Tensor) -> Tensor:
    """Return the Huber loss of each record [n], averaged over its values.

    Half the square up to an error of 1, linear beyond.  Huber (1964), doi:10.1214/aoms/1177703732.
    """
    difference = (predictions.reshape(len(targets), -1) - targets.reshape(len(targets), -1)).abs()
    return torch.where(difference < 1, difference.square() / 2, difference - 0.5).mean(dim=1)


LOSSES: dict[str, SampleLoss] = {
    "cross_entropy": cross_entropy,
    "squared_error": squared_error,
    "absolute_error": absolute_error,
    "huber": huber,
}


def loss_for(name: str | SampleLoss | None, targets: Tensor) -> SampleLoss:
    """Return the loss with this name, or the given function.

    The default is squared error for floating-point targets and cross-entropy for integers.
    """
    if name is None:
        return squared_error if targets.is_floating_point() else cross_entropy
    if callable(name):
        return name
    if name not in LOSSES:
        raise SpecError(f"loss must be one of {', '.join(LOSSES)} or a function, not {name!r}.")
    return LOSSES[name]


@torch.no_grad()
def accuracy(predictions: Tensor, targets: Tensor) -> Tensor:
    """Return 1 for each correctly classified record and 0 for others [n]; for sequences, the share of positions."""
    right = (predictions.argmax(dim=-1) == targets).float()
    return right if right.ndim == 1 else right.flatten(1).mean(dim=1)
