"""Metrics of a model on test records, accumulated batch by batch, also for the worst class and client.

    classification  accuracy, balanced_accuracy, f1 (two classes) or macro_f1, auc, brier, calibration_error,
                    worst_class, class_gap; and the confusion matrix
    multi-label     accuracy (of single labels), micro_f1, macro_f1, auc, exact_match
    next-token      accuracy, perplexity = exp(mean loss of a token)
    regression      rmse, mae, r2

If every record comes with the number of its client, there are also worst_client, client_gap and client_std (over
clients, each counted once) of the accuracy, the perplexity or the rmse, respectively. A gap is the difference between
best and worst, never negative. Sums are float64 and counts are integers, so the division into batches does not matter.
A record with a prediction that is not finite counts as wrong, with an infinite loss and error. `class_scores` defines
the metrics of classes and labels. None of this is private: it is meant for public test data.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from sordino.core import check
from sordino.core.errors import DataError
from sordino.tasks.class_scores import ClassScores, LabelScores
from sordino.tasks.explained import Explained
from sordino.tasks.task import CLASSIFICATION, MULTI_LABEL, NEXT_TOKEN, REGRESSION, TASKS

__all__ = ["Meter"]

NAMES = {  # the metrics of every task, the ones that are shown first in front
    CLASSIFICATION: (
        "accuracy", "auc", "balanced_accuracy", "f1", "macro_f1", "brier", "calibration_error", "worst_class",
        "class_gap",
    ),
    MULTI_LABEL: ("accuracy", "auc", "micro_f1", "macro_f1", "exact_match"),
    NEXT_TOKEN: ("accuracy", "perplexity"),
    REGRESSION: ("rmse", "r2", "mae"),
}  # fmt: skip
HIGH = (CLASSIFICATION, MULTI_LABEL)  # tasks whose clients are compared by a metric of which more is better


class Meter:
    """Accumulates metrics over batches.

    Args:
        task: "classification", "multi-label", "next-token" or "regression".
        classes: number of classes; None takes the number from the predictions.
        clients: whether every record comes with the number of its client.
    """

    def __init__(self, task: str, classes: int | None = None, clients: bool = False) -> None:
        check.one_of(TASKS, task=task)
        self._task, self._classes, self._clients = task, classes, clients
        self._total = torch.zeros(3, dtype=torch.float64)  # number of items, and the two sums of `_tokens` or `_errors`
        self._scores: ClassScores | LabelScores | None = None
        self._explained = Explained()
        self._by_client: dict[int, Tensor] = {}  # client number -> sums as in _total

    @torch.no_grad()
    def add(self, predictions: Tensor, targets: Tensor, client_ids: Tensor | Sequence[int] | None = None) -> None:
        """Add one batch; client_ids has one number per record, negative for records without a client."""
        owners = self._owners(len(targets), client_ids)
        predictions, targets = predictions.detach(), targets.detach()
        targets = targets if targets.is_floating_point() else targets.long()
        by_task = {REGRESSION: self._errors, MULTI_LABEL: self._labels}
        sums = by_task.get(self._task, self._tokens)(predictions, targets)  # [n, 3]
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
        if self._task == REGRESSION:
            out = {"rmse": self._figure(self._total), "mae": float(self._total[2]) / count}
            if (r2 := self._explained.result()) is not None:
                out["r2"] = r2
        elif self._task == NEXT_TOKEN:
            out = {"accuracy": float(self._total[1]) / count, "perplexity": self._figure(self._total)}
        else:
            out = {"accuracy": self._figure(self._total)} | (self._scores.result() if self._scores else {})
        if self._by_client:
            each = [self._figure(row) for row in self._by_client.values()]
            best, worst = (max, min) if self._task in HIGH else (min, max)
            out |= {"worst_client": worst(each), "client_gap": _gap(best(each), worst(each)), "client_std": _std(each)}
        return out

    def clients(self) -> dict[int, tuple[float, int]]:
        """Return the figure by which clients are compared, and the number of values it was computed from, by client."""
        return {i: (self._figure(row), int(row[0])) for i, row in sorted(self._by_client.items())}

    def compared(self) -> str:
        """Return the name of the figure by which clients are compared."""
        return {REGRESSION: "rmse", NEXT_TOKEN: "perplexity"}.get(self._task, "accuracy")

    def confusion(self) -> list[list[int]] | None:
        """Return the number of records by class and predicted class; None for other tasks and for many classes."""
        return self._scores.confusion() if isinstance(self._scores, ClassScores) else None

    def _figure(self, sums: Tensor) -> float:
        """Return the metric by which clients are compared: accuracy, perplexity or rmse of these sums."""
        count, first, second = sums.tolist()
        if self._task in HIGH:
            return float(first / count)
        if self._task == REGRESSION:
            return math.sqrt(first / count)
        mean = second / count
        return math.exp(mean) if mean < 700 else math.inf

    def _tokens(self, predictions: Tensor, targets: Tensor) -> Tensor:
        """Return tokens, correct tokens and their loss [n, 3]; a token is a record, or a position of a sequence."""
        shape = (*targets.shape, predictions.shape[-1] if predictions.ndim else 0)
        if targets.ndim != 1 + (self._task == NEXT_TOKEN) or predictions.shape != shape:
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
        guess = predictions.argmax(-1)
        right = (guess == targets) & finite
        log_probabilities = predictions.double().log_softmax(-1)
        if self._task == CLASSIFICATION and len(targets):
            if not isinstance(self._scores, ClassScores):
                self._scores = ClassScores(max(classes, shape[-1]))
            self._scores.add(log_probabilities, guess, targets, finite)
        loss = -log_probabilities.gather(-1, targets.unsqueeze(-1)).squeeze(-1)
        loss = torch.where(finite, loss, torch.inf)
        per_token = torch.stack([torch.ones_like(loss), right.double(), loss], -1)
        return per_token.reshape(len(targets), -1, 3).sum(1).cpu()

    def _labels(self, predictions: Tensor, targets: Tensor) -> Tensor:
        """Return labels, correct labels and zero [n, 3]."""
        if targets.ndim != 2 or predictions.shape != targets.shape:
            raise DataError(
                f"multi-label takes predictions and targets [n, labels], not {list(predictions.shape)} and "
                f"{list(targets.shape)}."
            )
        if not bool(((targets == 0) | (targets == 1)).all()):
            raise DataError("multi-label takes targets of 0 and 1 only.")
        if not isinstance(self._scores, LabelScores) and len(targets):
            self._scores = LabelScores(targets.shape[1])
        if isinstance(self._scores, LabelScores):
            self._scores.add(predictions, targets)
        right = ((predictions > 0) == (targets > 0)) & predictions.isfinite()
        return torch.stack([torch.ones_like(right), right, torch.zeros_like(right)], -1).double().sum(1).cpu()

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
        self._explained.add(error, targets.double().reshape(error.shape))
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
