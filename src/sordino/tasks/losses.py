"""Per-sample losses."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from sordino.core.errors import SpecError
from sordino.core.types import SampleLoss
from sordino.tasks.task import CLASSIFICATION, MULTI_LABEL, REGRESSION


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


def binary_cross_entropy(predictions: Tensor, targets: Tensor) -> Tensor:
    """Return the binary cross-entropy of each record [n], averaged over its labels.

    Predictions [n, labels] are log-odds, targets [n, labels] are 0 or 1.
    """
    targets = targets.reshape(predictions.shape).to(predictions.dtype)
    return F.binary_cross_entropy_with_logits(predictions, targets, reduction="none").flatten(1).mean(dim=1)


@dataclass(frozen=True)
class WeightedCrossEntropy:
    """The cross-entropy of each record times the declared weight of its class.

    The weights are public constants. They multiply a record's loss before its gradient is clipped, so the clip bounds
    what a record contributes, as always; a weight decides which records reach the clip.
    """

    weights: tuple[float, ...]  # one per class

    def __call__(self, predictions: Tensor, targets: Tensor) -> Tensor:
        """Return the weighted loss of each record [n]."""
        weights = torch.tensor(self.weights, dtype=predictions.dtype, device=predictions.device)
        return weights[targets] * F.cross_entropy(predictions, targets, reduction="none")

    def check_outputs(self, outputs: int) -> None:
        """Raise SpecError unless there is one weight for each output of the model."""
        if len(self.weights) != outputs:
            raise SpecError(
                f"class_weights has {len(self.weights)} numbers, but the model has {outputs} outputs: give one per "
                "class."
            )


LOSSES: dict[str, SampleLoss] = {
    "cross_entropy": cross_entropy,
    "squared_error": squared_error,
    "absolute_error": absolute_error,
    "huber": huber,
    "binary_cross_entropy": binary_cross_entropy,
}


def loss_for(name: str | SampleLoss | None, task: str, weights: tuple[float, ...] | None = None) -> SampleLoss:
    """Return the loss with this name, the given function, or the usual loss of the task.

    Args:
        name: the name of a loss, a function, or None.
        task: the task of the run.
        weights: the declared weight of every class, or None.
    """
    if not (name is None or callable(name) or name in LOSSES):
        raise SpecError(f"loss must be one of {', '.join(LOSSES)} or a function, not {name!r}.")
    if weights is not None:
        if task != CLASSIFICATION or name not in (None, "cross_entropy"):
            raise SpecError(
                "class_weights multiply the cross-entropy of a classification. A loss of your own can weigh records "
                "itself, by public constants."
            )
        return WeightedCrossEntropy(weights)
    if callable(name):
        return name
    usual = {REGRESSION: "squared_error", MULTI_LABEL: "binary_cross_entropy"}
    return LOSSES[name or usual.get(task, "cross_entropy")]
