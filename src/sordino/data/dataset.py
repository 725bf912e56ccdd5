"""What every loader returns, and how raw records become a model's input."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sordino.core.errors import DataError
from sordino.data import canonical

Ids = NDArray[np.int64]
TASKS = ("classification", "regression", "next-token")
MOST_CLASSES = 100_000  # more than that is a column of something else


def as_is(x: Tensor) -> Tensor:
    return x


@dataclass(frozen=True)
class Scaled:
    """uint8 pictures [n, h, w] or [n, c, h, w] -> float32 [n, c, h, w]: (x / 255 - mean) / std, a colour at a time.

    The constants are public and declared in the code; every record is scaled alone."""

    mean: tuple[float, ...] = (0.5,)
    std: tuple[float, ...] = (0.5,)

    def __call__(self, x: Tensor) -> Tensor:
        x = x[:, None] if x.ndim == 3 else x
        shape = (1, -1, 1, 1)
        mean, std = (torch.tensor(v, device=x.device).view(shape) for v in (self.mean, self.std))
        return (x.float() / 255 - mean) / std


@dataclass(frozen=True)
class Dataset:
    name: str
    x_train: Tensor  # raw: pictures stay uint8 [n, h, w] or [n, 3, h, w], text is int64 [n, positions]
    y_train: Tensor
    x_test: Tensor
    y_test: Tensor
    client_train: Ids | None = None  # natural client of every record
    client_test: Ids | None = None
    user_train: Ids | None = None
    user_test: Ids | None = None
    task: str = "classification"
    classes: int | None = None  # declared: classes, or vocabulary of next-token; None for regression
    names: tuple[str, ...] = ()  # of the classes
    public: bool = False  # a benchmark that is public already, not one's own file
    prepare: Callable[[Tensor], Tensor] = as_is  # raw -> model input, with public constants, a record at a time
    notes: tuple[str, ...] = ()  # what a user should know of how it was read
    test_from: str = ""  # the test records in words: how many, and who says that they are public
    assumed: tuple[str, ...] = ()  # what else of one's own data was taken as public, in words
    raw: canonical.Raw | None = None  # a table's rows before they were encoded, without those that are public

    def private_rows(self) -> canonical.Raw:
        """All rows that count in a ledger, as they were before any encoding; test records are public."""
        if self.raw is not None:
            return self.raw
        return canonical.of_arrays(self.x_train, users=self.user_train, clients=self.client_train)


def class_count(what: str, labels: NDArray[np.int64], classes: int | None) -> tuple[int, tuple[str, ...]]:
    """The declared number of classes, after a look that all labels are below it; and a note where none is declared."""
    rows = labels.reshape(len(labels), -1)
    bad = np.flatnonzero(rows.min(axis=1) < 0)
    if len(bad):
        raise DataError(f"{what}: label {rows[bad[0]].min()} in record {bad[0]} is negative; labels are 0, 1, 2, ...")
    high = int(rows.max())
    if classes is None:
        if high >= MOST_CLASSES:
            raise DataError(
                f"{what}: label {high} would make {high + 1} classes. Number the classes 0, 1, 2, ..., declare them, "
                "or give the target as a decimal number (regression)."
            )
        return high + 1, (f"the number of classes ({high + 1}) was read from the labels themselves: declare it",)
    bad = np.flatnonzero(rows.max(axis=1) >= classes)
    if len(bad):
        label = rows[bad[0]].max()
        raise DataError(f"{what}: label {label} in record {bad[0]} is not below the declared {classes} classes.")
    return classes, ()
