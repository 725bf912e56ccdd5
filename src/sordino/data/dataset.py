"""The type that every loader returns, and the conversion of raw records to model inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sordino.core.errors import DataError
from sordino.data import canonical

Ids = NDArray[np.int64]
TASKS = ("classification", "multi-label", "regression", "next-token")
MOST_CLASSES = 100_000  # a column with larger labels does not hold classes


def as_is(x: Tensor) -> Tensor:
    """Return x unchanged."""
    return x


@dataclass(frozen=True)
class Scaled:
    """Conversion of uint8 images [n, h, w] or [n, c, h, w] to float32 [n, c, h, w]: (x / 255 - mean) / std per channel.

    The constants are public and declared in the code; every record is scaled independently.
    """

    mean: tuple[float, ...] = (0.5,)
    std: tuple[float, ...] = (0.5,)

    def __call__(self, x: Tensor) -> Tensor:
        x = x[:, None] if x.ndim == 3 else x
        shape = (1, -1, 1, 1)
        mean, std = (torch.tensor(v, device=x.device).view(shape) for v in (self.mean, self.std))
        return (x.float() / 255 - mean) / std


@dataclass(frozen=True)
class TableCode:
    """How the columns of a table became the numbers of a record; all of it is public."""

    columns: tuple[str, ...]  # the input columns, in the order of the numbers
    label: str
    schema: Mapping[str, Any] = field(default_factory=dict)  # tables of the schema file, of these columns alone
    decimal: str = "."  # decimal mark of the numbers in a text file


@dataclass(frozen=True)
class Dataset:
    """Training and test records, as every loader returns them."""

    name: str
    x_train: Tensor  # raw: images are uint8 [n, h, w] or [n, 3, h, w], text is int64 [n, positions]
    y_train: Tensor
    x_test: Tensor
    y_test: Tensor
    client_train: Ids | None = None  # natural client of every record
    client_test: Ids | None = None
    user_train: Ids | None = None  # user of every record
    user_test: Ids | None = None
    task: str = "classification"  # one of TASKS
    bounded: bool = True  # whether the columns of a table have declared bounds, or scales of a benchmark
    unit_target: bool = False  # whether a regression target has a declared range, scaled to [0, 1]
    classes: int | None = None  # declared number of classes (or of labels, or of tokens); None for regression
    names: tuple[str, ...] = ()  # names of the classes
    public: bool = False  # whether all records are public, as those of a benchmark are
    prepare: Callable[[Tensor], Tensor] = as_is  # raw to model input, each record alone, with public constants
    notes: tuple[str, ...] = ()  # remarks for the user on how the data were read
    test_from: str = ""  # description of the test records: how many, and what declares them public
    assumed: tuple[str, ...] = ()  # description of what else in the user's own data was assumed to be public
    owner_notes: tuple[str, ...] = ()  # how many rows were left out and values changed: for the owner alone
    raw: canonical.Raw | None = None  # private rows of a table, before encoding
    encoded: TableCode | None = None  # for a table: how its columns became numbers, to encode further rows in this way

    def private_rows(self) -> canonical.Raw:
        """Return all rows that count in a ledger, as they were before encoding; test records are public."""
        if self.raw is not None:
            return self.raw
        return canonical.of_arrays(self.x_train, users=self.user_train, clients=self.client_train)


def class_count(what: str, labels: NDArray[np.int64], classes: int | None) -> tuple[int, tuple[str, ...]]:
    """Return the number of classes, and a note if it was not declared.

    If it is declared, check that all labels are below it; otherwise it is read from the labels.

    Args:
        what: Name of the data in error messages.
        labels: Labels [n, ...].
        classes: Declared number of classes, or None.
    """
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
