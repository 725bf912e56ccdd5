"""The coefficient of determination R2 of a regression, accumulated batch by batch."""

from __future__ import annotations

import torch
from torch import Tensor


class Explained:
    """Accumulates R2 = 1 - (squared errors) / (squared deviations of the targets from their mean).

    For several values per record it is the mean over the values, as in scikit-learn. Sums are taken around the first
    target, so that large targets lose no digits.
    """

    def __init__(self) -> None:
        self._first: Tensor | None = None  # [values]
        self._sums: Tensor | None = None  # [4, values]: records, targets, squared targets, squared errors

    def add(self, errors: Tensor, targets: Tensor) -> None:
        """Add a batch of absolute errors and targets, [n, values] in float64 each."""
        if not len(targets):
            return
        if self._first is None:
            self._first = targets[0].clone()
        shifted = targets - self._first
        sums = torch.stack([torch.ones_like(errors), shifted, shifted.square(), errors.square()]).sum(1).cpu()
        self._sums = sums if self._sums is None else self._sums + sums

    def result(self) -> float | None:
        """Return R2, or None if the targets do not vary."""
        if self._sums is None:
            return None
        count, first, second, errors = self._sums
        spread = second - first.square() / count
        if not bool((spread > 1e-12 * second).all()):
            return None
        return float((1 - errors / spread).mean())
