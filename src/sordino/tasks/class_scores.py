"""Metrics of classes and labels, accumulated batch by batch.

Classes: balanced accuracy, F1, area under the ROC curve, confusion matrix, Brier score and calibration error. Labels of
a multi-label task: micro and macro F1, mean area, exact matches. The definitions are those of scikit-learn; a class
that no record has is left out of means over classes. Scores are held until the end, since the area is exact; both the
area and the confusion matrix are left out above MOST classes.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sordino.tasks.area import area, mean_area

MOST = 30  # largest number of classes or labels with an area and a confusion matrix
BINS = 15  # equal bins of the confidence for the calibration error


class ClassScores:
    """Metrics of classification.

    Args:
        classes: number of classes.
    """

    def __init__(self, classes: int) -> None:
        self.classes = classes
        self.counts = torch.zeros(3, classes, dtype=torch.int64)  # records, correct ones, and predicted ones by class
        self.matrix = torch.zeros(classes, classes, dtype=torch.int64) if classes <= MOST else None
        self.bins = torch.zeros(3, BINS, dtype=torch.float64)  # records, correct ones and summed confidence by bin
        self.brier = 0.0
        self.scores: list[tuple[Tensor, Tensor]] = []  # scores [n, classes] (two classes: [n, 1]) and targets [n]

    def add(self, log_probabilities: Tensor, guess: Tensor, targets: Tensor, finite: Tensor) -> None:
        """Add a batch: log probabilities [n, classes], then [n] each; a record that is not finite counts as wrong."""
        log_p, guess, targets, finite = (t.cpu() for t in (log_probabilities, guess, targets, finite))
        right = (guess == targets) & finite
        for row, some in zip(self.counts, (targets, targets[right], guess[finite]), strict=True):
            row += some.bincount(minlength=self.classes)
        p = torch.where(finite[:, None], log_p, 0.0).exp()  # 1 for every class: as wrong as can be
        truth = torch.nn.functional.one_hot(targets, p.shape[1]).double()
        self.brier += float(torch.where(finite, (p - truth).square().sum(1) / 2, 1.0).sum())
        confidence = p.amax(1)
        bins = (confidence * BINS).ceil().long().clamp(1, BINS) - 1
        for row, some in zip(self.bins, (torch.ones_like(confidence), right.double(), confidence), strict=True):
            row.index_add_(0, bins, some)
        if self.matrix is not None:
            places = targets[finite] * self.classes + guess[finite]
            self.matrix += places.bincount(minlength=self.classes**2).reshape(self.classes, self.classes)
            scores = log_p[:, 1:] - log_p[:, :1] if p.shape[1] == 2 else log_p
            worst = torch.where(truth[:, -scores.shape[1] :] > 0, -torch.inf, torch.inf)
            self.scores.append((torch.where(finite[:, None], scores, worst), targets))

    def result(self) -> dict[str, float]:
        """Return the metrics by name."""
        records, right, predicted = self.counts.double()
        each = (right / records)[records > 0]
        f1 = 2 * right / (records + predicted)
        name, value = ("f1", f1[1]) if self.classes == 2 else ("macro_f1", f1[records + predicted > 0].mean())
        count = float(records.sum())
        out = {
            "balanced_accuracy": float(each.mean()),
            name: float(value.nan_to_num(0.0)),
            "brier": self.brier / count,
            "calibration_error": float((self.bins[1] - self.bins[2]).abs().sum()) / count,
            "worst_class": float(each.min()),
            "class_gap": float(each.max() - each.min()),
        }
        if (auc := self._area()) is not None:
            out["auc"] = auc
        return out

    def confusion(self) -> list[list[int]] | None:
        """Return the number of records by class (rows) and predicted class (columns); None for many classes."""
        return None if self.matrix is None else self.matrix.tolist()

    def _area(self) -> float | None:
        if not self.scores:
            return None
        scores, targets = (torch.cat(parts) for parts in zip(*self.scores, strict=True))
        if scores.shape[1] == 1:
            return area(scores[:, 0], targets == 1)
        return mean_area(scores, torch.nn.functional.one_hot(targets, scores.shape[1]) > 0)


class LabelScores:
    """Metrics of a multi-label task; a label is predicted where its output is above 0.

    Args:
        labels: number of labels.
    """

    def __init__(self, labels: int) -> None:
        self.labels = labels
        self.counts = torch.zeros(3, labels, dtype=torch.int64)  # true positives, predicted and actual ones by label
        self.records = self.matches = 0
        self.scores: list[tuple[Tensor, Tensor]] = []  # outputs and targets [n, labels]

    def add(self, outputs: Tensor, targets: Tensor) -> None:
        """Add a batch of outputs and targets [n, labels]; an output that is not finite counts as wrong."""
        outputs, actual = outputs.cpu().double(), targets.cpu() > 0
        outputs = torch.where(outputs.isfinite(), outputs, torch.where(actual, -torch.inf, torch.inf))
        predicted = outputs > 0
        self.counts += torch.stack([(predicted & actual).sum(0), predicted.sum(0), actual.sum(0)])
        self.records, self.matches = self.records + len(outputs), self.matches + int((predicted == actual).all(1).sum())
        if self.labels <= MOST:
            self.scores.append((outputs, actual))

    def result(self) -> dict[str, float]:
        """Return the metrics by name."""
        both, predicted, actual = self.counts.double()
        each = (2 * both / (predicted + actual)).nan_to_num(0.0)
        out = {
            "micro_f1": float((2 * both.sum() / (predicted + actual).sum()).nan_to_num(0.0)),
            "macro_f1": float(each.mean()),
            "exact_match": self.matches / self.records,
        }
        auc = mean_area(*(torch.cat(parts) for parts in zip(*self.scores, strict=True))) if self.scores else None
        return out if auc is None else out | {"auc": auc}
