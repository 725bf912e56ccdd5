"""The kind of prediction that a model is trained for, and the checks of targets that go with it.

    classification  one class per record, whole numbers [n]
    multi-label     any number of labels per record, 0 or 1 each [n, labels]
    next-token      one class per position, whole numbers [n, t]
    regression      decimal numbers [n] or [n, values]

The targets tell the task, except for multi-label, which has whole numbers of two dimensions as next-token has: it is
declared, by `task = "multi-label"` or by the loss `binary_cross_entropy`.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from sordino.core import check
from sordino.core.errors import DataError, SpecError

CLASSIFICATION, MULTI_LABEL, NEXT_TOKEN, REGRESSION = "classification", "multi-label", "next-token", "regression"
TASKS = (CLASSIFICATION, MULTI_LABEL, NEXT_TOKEN, REGRESSION)
LOSS = "binary_cross_entropy"  # the loss that declares multi-label


def task_for(targets: Tensor) -> str:
    """Return the task for targets: regression for floats, classification for classes [n], next-token for [n, t]."""
    if targets.is_floating_point():
        return REGRESSION
    return NEXT_TOKEN if targets.ndim > 1 else CLASSIFICATION


def task_of(declared: str | None, loss: Any, targets: Tensor) -> str:
    """Return the task of a run.

    Args:
        declared: the task that the user declares, or None.
        loss: the loss that the user names, a function, or None.
        targets: the targets of a few records; only their type and shape matter.
    """
    check.one_of((*TASKS, None), task=declared)
    if loss == LOSS and declared not in (None, MULTI_LABEL):
        raise SpecError(f"loss = {LOSS} is for task = {MULTI_LABEL}, not for {declared}.")
    task = declared or (MULTI_LABEL if loss == LOSS else task_for(targets))
    if task == MULTI_LABEL:
        if targets.ndim != 2:
            raise DataError(f"task = {MULTI_LABEL} takes targets [records, labels] of 0 and 1, not {_shape(targets)}.")
    elif task != task_for(targets):
        kind = "decimal numbers" if task == REGRESSION else "whole numbers"
        each = {CLASSIFICATION: " [records]", NEXT_TOKEN: " [records, positions]"}.get(task, "")
        raise DataError(f"task = {task} takes {kind}{each} as targets, not {targets.dtype} {_shape(targets)}.")
    return task


def check_multi_label(what: str, targets: Tensor, outputs: tuple[int, ...]) -> None:
    """Raise DataError unless the targets are 0 or 1, with one for each output of the model.

    Args:
        what: the name of the data in error messages.
        targets: the targets [n, labels].
        outputs: the shape of the model's output for one record.
    """
    if tuple(targets.shape[1:]) != outputs:
        raise DataError(
            f"{what}: a record has {list(targets.shape[1:])} labels, but the model gives {list(outputs)} outputs for "
            "a record. It must have one output per label."
        )
    bad = ((targets != 0) & (targets != 1)).any(dim=1).nonzero()
    if len(bad):
        raise DataError(f"{what}: record {int(bad[0, 0])} has a label that is neither 0 nor 1.")


def _shape(targets: Tensor) -> list[str | int]:
    return ["records", *targets.shape[1:]]
