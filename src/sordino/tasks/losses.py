"""Per-sample losses and the metric that goes with each."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from sordino.core.errors import SpecError
from sordino.core.types import SampleLoss


def cross_entropy(predictions: Tensor, targets: Tensor) -> Tensor:
    """One class a record [n], or one a position [n, t] with predictions [n, t, classes]."""
    if predictions.ndim == 3:
        return F.cross_entropy(predictions.transpose(1, 2), targets, reduction="none").mean(dim=1)
    return F.cross_entropy(predictions, targets, reduction="none")


def squared_error(predictions: Tensor, targets: Tensor) -> Tensor:
    difference = predictions.reshape(len(targets), -1) - targets.reshape(len(targets), -1)
    return difference.square().mean(dim=1)


def absolute_error(predictions: Tensor, targets: Tensor) -> Tensor:
    difference = predictions.reshape(len(targets), -1) - targets.reshape(len(targets), -1)
    return difference.abs().mean(dim=1)


def huber(predictions: Tensor, targets: Tensor) -> Tensor:
    """Half the square up to an error of 1, linear beyond.  Huber (1964), doi:10.1214/aoms/1177703732."""
    difference = (predictions.reshape(len(targets), -1) - targets.reshape(len(targets), -1)).abs()
    return torch.where(difference < 1, difference.square() / 2, difference - 0.5).mean(dim=1)


LOSSES: dict[str, SampleLoss] = {
    "cross_entropy": cross_entropy,
    "squared_error": squared_error,
    "absolute_error": absolute_error,
    "huber": huber,
}


def loss_for(name: str | SampleLoss | None, targets: Tensor) -> SampleLoss:
    """By name, or a function of one's own; by default what the targets call for."""
    if name is None:
        return squared_error if targets.is_floating_point() else cross_entropy
    if callable(name):
        return name
    if name not in LOSSES:
        raise SpecError(f"loss must be one of {', '.join(LOSSES)} or a function, not {name!r}.")
    return LOSSES[name]


@torch.no_grad()
def accuracy(predictions: Tensor, targets: Tensor) -> Tensor:
    """Right or wrong, a record [n]."""
    right = (predictions.argmax(dim=-1) == targets).float()
    return right if right.ndim == 1 else right.flatten(1).mean(dim=1)
