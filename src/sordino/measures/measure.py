"""What is measured on held-out records: values of single records, so that noise can be set for what one can change.

A measure gives every record a row of numbers; the rows are added up and released with noise. A row is either one value
in [0, 1] (accuracy, Brier score, absolute error, a metric of one's own) or a 1 in one of several cells: by class and
whether the record is right (balanced accuracy), or by class and predicted class (confusion matrix). In both cases its
L2 norm is at most 1, so a record that is added changes the sum by at most 1; one that is replaced by at most 1 for a
value in [0, 1], and by sqrt(2) for cells, which are charged as 2. A unit of several records has the mean of their rows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from sordino.core.errors import SpecError
from sordino.core.state import Snapshot
from sordino.tasks.metrics import NAMES
from sordino.tasks.own_metric import OwnMetric
from sordino.tasks.task import CLASSIFICATION, MULTI_LABEL, NEXT_TOKEN, REGRESSION

ON_HELD_OUT = {
    CLASSIFICATION: ("accuracy", "brier", "balanced_accuracy", "confusion"),
    MULTI_LABEL: ("accuracy",),
    NEXT_TOKEN: ("accuracy",),
    REGRESSION: ("mae",),
}  # the first is the default
COUNTS = "is a ratio of counts: metric = confusion releases the counts with noise, and it follows from them"
REASONS = {  # why other metrics cannot be released
    "auc": "compares every record with all others, so it is no mean of values of single records",
    "calibration_error": "is no mean of values of single records; brier, which is, measures calibration too",
    "rmse": "grows with squared errors, which have no bound",
    "r2": "divides by the spread of the private targets",
    "perplexity": "grows with losses, which have no bound",
    **dict.fromkeys(("f1", "macro_f1", "worst_class", "class_gap"), COUNTS),
    "micro_f1": "is a ratio of counts",
    "exact_match": "is not released for several labels",
}


@dataclass(frozen=True)
class Measure:
    """What is measured on every held-out record."""

    name: str = "accuracy"
    task: str = CLASSIFICATION
    classes: int = 1  # number of the model's outputs
    own: OwnMetric | None = None  # one's own function, in place of a named measure

    @property
    def cells(self) -> int:
        """The number of numbers that are released."""
        return {"balanced_accuracy": 2 * self.classes, "confusion": self.classes**2}.get(self.name, 1)

    @property
    def swing(self) -> int:
        """The number of bounds by which a replaced record changes the sum."""
        return 1 if self.cells == 1 else 2

    @property
    def spread(self) -> float:
        """The deviation of the figure's noise over that of one number, where all classes are equally frequent."""
        return 1.0 if self.cells == 1 else math.sqrt(self.classes)

    def rows(self, predictions: Tensor, targets: Tensor) -> Tensor:
        """Return the row of every record [n, cells], in float64 on the CPU."""
        if self.own is not None:
            return self._own_rows(self.own, predictions.cpu(), targets.cpu())
        if self.task == REGRESSION:
            error = (predictions.reshape(len(targets), -1) - targets.reshape(len(targets), -1)).abs().mean(dim=1)
            return error.double().nan_to_num(nan=1.0).clamp(0, 1).cpu()[:, None]
        if self.task == MULTI_LABEL:
            right = ((predictions > 0) == (targets > 0)).double()
        else:
            right = (predictions.argmax(dim=-1) == targets).double()
        if self.name == "accuracy":
            return right.reshape(len(targets), -1).mean(dim=1).cpu()[:, None]
        if self.name == "brier":
            truth = one_hot(targets, predictions.shape[1]).double()
            score = (predictions.double().softmax(1) - truth).square().sum(1) / 2
            return score.nan_to_num(nan=1.0).clamp(0, 1).cpu()[:, None]
        balanced = self.name == "balanced_accuracy"
        place = 2 * targets + right.long() if balanced else self.classes * targets + predictions.argmax(dim=-1)
        return one_hot(place, self.cells).double().cpu()

    @staticmethod
    def _own_rows(own: OwnMetric, predictions: Tensor, targets: Tensor) -> Tensor:
        held, values = Snapshot(own.function), []
        with held:
            for i in range(len(targets)):
                held.restore()  # nothing of one record is left when the next is measured
                values.append(own.of_record(predictions[i : i + 1], targets[i : i + 1]))
        return torch.tensor(values, dtype=torch.float64)[:, None]

    def figures(self, sums: Tensor, units: int) -> dict[str, Any]:
        """Return the fields of a record, by what was released [cells]; noise may move values out of their range."""
        if self.cells == 1:
            value = min(max(float(sums[0]) / units, 0.0), 1.0)
            return {"accuracy": value} if self.name == "accuracy" else {"metrics": {self.name: value}}
        table = sums.double().cpu().clamp_min(0).reshape(self.classes, -1)
        balanced = self.name == "balanced_accuracy"
        right = table[:, 1] if balanced else table.diagonal()
        known = table.sum(1) > 0
        recall = (right / table.sum(1))[known]
        metrics = {"balanced_accuracy": float(recall.mean()) if len(recall) else math.nan}
        out: dict[str, Any] = {"accuracy": min(float(right.sum()) / units, 1.0), "metrics": metrics}
        if balanced:
            return out
        f1 = (2 * right / (table.sum(0) + table.sum(1))).nan_to_num(0.0)
        metrics |= {"f1": float(f1[1])} if self.classes == 2 else {"macro_f1": float(f1.mean())}
        return out | {"confusion": [[round(v, 1) for v in row] for row in table.tolist()]}


def chosen(name: str | None, own: OwnMetric | None, task: str, classes: int, held_out: bool) -> Measure:
    """Return the measure that the user names or provides, or the usual one of the task.

    Args:
        name: the metric that the spec names, or None.
        own: the user's own function, or None.
        task: the task of the run.
        classes: the number of outputs of the model.
        held_out: whether it is for private held-out records; all metrics are exact and free on public ones.
    """
    on_held_out = ON_HELD_OUT[task]
    if name is not None and own is not None:
        raise SpecError("metric is given twice, by a name and as a function: give one of them.")
    if name is not None and name not in (*NAMES[task], *on_held_out):
        raise SpecError(f"metric = {name} is none of {task}: use one of {', '.join((*NAMES[task], 'confusion')[:20])}.")
    if name is not None and held_out and name not in on_held_out:
        raise SpecError(
            f"metric = {name} on private held-out records is refused: it {REASONS[name]}. Use metric = "
            f"{' or '.join(on_held_out)}, or name public test records (test), on which it is exact and free."
        )
    if own is not None:
        return Measure(own.name, task, classes, own)
    return Measure(name if name in on_held_out else on_held_out[0], task, classes)
