"""Metrics of a model on test records, accumulated batch by batch, also for the worst class and client.

    classification  accuracy, worst_class, class_gap
    next-token      accuracy, perplexity = exp(mean loss of a token)
    regression      rmse, mae

If every record comes with the number of its client, there are also worst_client, client_gap and client_std (over
clients, each counted once) of the accuracy, the perplexity or the rmse, respectively. A gap is the difference between
best and worst, never negative. Sums are float64 and counts are integers, so the division into batches does not matter;
no prediction is kept. A record with a prediction that is not finite counts as wrong, with an infinite loss and error.
None of this is private: it is meant for public test data.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from sordino.core import check
from sordino.core.errors import DataError

__all__ = ["Meter"]

TASKS = ("classification", "next-token", "regression")


def task_for(targets: Tensor) -> str:
    """Return the task for targets: regression for floats, classification for classes [n], next-token for [n, t]."""
    if targets.is_floating_point():
        return "regression"
    return "next-token" if targets.ndim > 1 else "classification"


class Meter:
    """Accumulates metrics over batches.

    Args:
        task: "classification", "next-token" or "regression".
        classes: number of classes; None takes the number from the predictions.
        clients: whether every record comes with the number of its client.
    """

    def __init__(self, task: str, classes: int | None = None, clients: bool = False) -> None:
        check.one_of(TASKS, task=task)
        self._task, self._classes, self._clients = task, classes, clients
        self._total = torch.zeros(3, dtype=torch.float64)  # number of items, and the two sums of `_tokens` or `_errors`
        self._by_class: Tensor | None = None  # [2, classes]: records, and correct ones
        self._by_client: dict[int, Tensor] = {}  # client number -> sums as in _total

    @torch.no_grad()
    def add(self, predictions: Tensor, targets: Tensor, client_ids: Tensor | Sequence[int] | None = None) -> None:
        """Add one batch; client_ids has one number per record, negative for records without a client."""
        owners = self._owners(len(targets), client_ids)
        predictions, targets = predictions.detach(), targets.detach()
        targets = targets if targets.is_floating_point() else targets.long()
        sums = (self._errors if self._task == "regression" else self._tokens)(predictions, targets)  # [n, 3]
        if not len(sums):
            return
        self._total += sums.sum(0)
        if owners is not None:
            known = owners >= 0  # negative: the record belongs to no client
            ids, place = owners[known].unique(return_inverse=True)
            grouped = sums.new_zeros(len(ids), 3).index_add_(0, place, sums[known.to(sums.device)])
            for i, row in zip(ids.tolist(), grouped, strict=True):
                self._by_client[i] = self._by_client[i] + row if i in self._by_client else row

    def result(self) -> dict[str, float]:
        """Return the metrics by name; empty if no record was added."""
        count = float(self._total[0])
        if not count:
            return {}
        if self._task == "regression":
            out = {"rmse": self._figure(self._total), "mae": float(self._total[2]) / count}
        elif self._task == "next-token":
            out = {"accuracy": float(self._total[1]) / count, "perplexity": self._figure(self._total)}
        else:
            out = {"accuracy": self._figure(self._total)} | self._class_figures()
        if self._by_client:
            each = [self._figure(row) for row in self._by_client.values()]
            best, worst = (max, min) if self._task == "classification" else (min, max)
            out |= {"worst_client": worst(each), "client_gap": _gap(best(each), worst(each)), "client_std": _std(each)}
        return out

    def _figure(self, sums: Tensor) -> float:
        """Return the metric by which clients are compared: accuracy, perplexity or rmse of these sums."""
        count, first, second = sums.tolist()
        if self._task == "classification":
            return float(first / count)
        if self._task == "regression":
            return math.sqrt(first / count)
        mean = second / count
        return math.exp(mean) if mean < 700 else math.inf

    def _class_figures(self) -> dict[str, float]:
        if self._by_class is None:
            return {}
        records, right = self._by_class.double()
        each = (right / records)[records > 0].tolist()
        return {"worst_class": min(each), "class_gap": max(each) - min(each)}

    def _tokens(self, predictions: Tensor, targets: Tensor) -> Tensor:
        """Return tokens, correct tokens and their loss [n, 3]; a token is a record, or a position of a sequence."""
        shape = (*targets.shape, predictions.shape[-1] if predictions.ndim else 0)
        if targets.ndim != 1 + (self._task == "next-token") or predictions.shape != shape:
            raise DataError(
                f"{self._task} takes predictions {'[n, t, classes]' if targets.ndim > 1 else '[n, classes]'} for "
                f"targets of one dimension less, not {list(predictions.shape)} and {list(targets.shape)}."
            )
        classes = self._classes or shape[-1]
        if targets.is_floating_point():
            raise DataError(f"{self._task} takes whole numbers as targets, not {targets.dtype}.")
        if targets.numel() and not (targets.min() >= 0 and targets.max() < min(classes, shape[-1])):
            raise DataError(f"targets run from {targets.min()} to {targets.max()}; there are {classes} classes.")
        finite = predictions.isfinite().all(-1)
        right = (predictions.argmax(-1) == targets) & finite
        if self._task == "classification":
            counts = torch.stack([targets.bincount(minlength=classes), targets[right].bincount(minlength=classes)])
            self._by_class = counts.cpu() if self._by_class is None else self._by_class + counts.cpu()
        loss = -predictions.double().log_softmax(-1).gather(-1, targets.unsqueeze(-1)).squeeze(-1)
        loss = torch.where(finite, loss, torch.inf)
        per_token = torch.stack([torch.ones_like(loss), right.double(), loss], -1)
        return per_token.reshape(len(targets), -1, 3).sum(1).cpu()

    def _errors(self, predictions: Tensor, targets: Tensor) -> Tensor:
        """Return the number of values, their squared errors and their absolute errors [n, 3]."""
        if predictions.numel() != targets.numel() or len(predictions) != len(targets):
            raise DataError(
                f"regression takes as many predictions as targets, not {list(predictions.shape)} for "
                f"{list(targets.shape)}."
            )
        error = (predictions.double().reshape(targets.shape) - targets.double()).abs()
        error = error.reshape(len(targets), max(1, error[:1].numel()))
        error = torch.where(error.isfinite(), error, torch.inf)
        return torch.stack([torch.ones_like(error), error.square(), error], -1).sum(1).cpu()

    def _owners(self, records: int, client_ids: Tensor | Sequence[int] | None) -> Tensor | None:
        if (client_ids is not None) != self._clients:
            raise DataError(f"clients={self._clients}, but client numbers were {'not ' if self._clients else ''}given.")
        if client_ids is None:
            return None
        owners = torch.as_tensor(client_ids).detach().cpu()
        if owners.shape != (records,) or (records and owners.is_floating_point()):
            raise DataError(f"client_ids must hold one whole number for each of {records} records.")
        return owners


def _gap(best: float, worst: float) -> float:
    return math.inf if math.isinf(worst) else abs(best - worst)


def _std(values: list[float]) -> float:
    """Return the population standard deviation; infinite if any value is."""
    if any(math.isinf(v) for v in values):
        return math.inf
    mean = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((v - mean) ** 2 for v in values) / len(values))
