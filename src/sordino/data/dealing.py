"""Checks that all partitions of records into clients share."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sordino.core import check
from sordino.core.errors import DataError


def enough(records: int, clients: int, minimum: int) -> None:
    """Raise an error unless there are `minimum` records for every client."""
    check.count(clients=clients, minimum=minimum)
    if clients * minimum > records:
        each = "a record" if minimum == 1 else f"{minimum} records"
        raise DataError(f"cannot give each of {clients} clients {each}: there are {records} records.")


def classes_of(labels: Any, law: str) -> NDArray[np.int64]:
    """Return labels as whole numbers [n], or raise an error if a partition by label does not apply to them.

    `law` names the partition in the error message.
    """
    classes = np.asarray(labels)
    if classes.dtype.kind == "f":
        raise DataError(f"{law} splits by label, but the targets are decimal numbers: use iid, quantity or natural.")
    if classes.ndim != 1:
        raise DataError(f"{law} splits by label, but the targets are sequences: use iid, quantity or natural.")
    if not len(classes):
        raise DataError(f"{law}: there are no records.")
    return classes.astype(np.int64)
