"""A metric of one's own: a function (predictions, targets) -> a number, or one number per record.

On public test records the function gets all records at once. On private held-out records it gets one record at a time
and must return a value in [0, 1] (others are clamped), since noise can only be set for what one record can change.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sordino.core.errors import SpecError
from sordino.tasks.metrics import NAMES

Function = Callable[[Tensor, Tensor], Any]  # predictions, targets -> a number, or one per record


@dataclass(frozen=True)
class OwnMetric:
    """The function, and the name of its values in records."""

    name: str
    function: Function

    @staticmethod
    def of(function: Function) -> OwnMetric:
        """Return the metric of a function, named as the function is; a lambda is named own_metric."""
        given = str(getattr(function, "__name__", type(function).__name__))
        name = given if given.isidentifier() else "own_metric"
        if any(name in names for names in NAMES.values()):
            raise SpecError(f"metric: your function is named {name}, as a metric of Sordino is. Rename it.")
        return OwnMetric(name, function)

    def value(self, predictions: Tensor, targets: Tensor) -> float:
        """Return the metric of public records: the function's number, or the mean of its numbers."""
        given = self._called(predictions, targets)
        if given.shape not in ((), (len(targets),)):
            raise SpecError(
                f"metric {self.name} must return one number, or one per record [{len(targets)}], not "
                f"{list(given.shape)}."
            )
        return float(given.mean())

    def of_record(self, predictions: Tensor, targets: Tensor) -> float:
        """Return the metric of one record [1, ...], in [0, 1]; a value that is not a number counts as 0."""
        given = self._called(predictions, targets)
        if given.numel() != 1:
            raise SpecError(f"metric {self.name} must return one number for one record, not {list(given.shape)}.")
        return float(given.reshape(()).nan_to_num(0.0, 1.0, 0.0).clamp(0, 1))

    def _called(self, predictions: Tensor, targets: Tensor) -> Tensor:
        try:
            with torch.no_grad():
                return torch.as_tensor(self.function(predictions, targets)).detach().cpu().double()
        except Exception as error:  # whatever the user's function raises; its text may quote records
            raise SpecError(f"metric {self.name} failed: {type(error).__name__} in your function.") from error
