"""Sparse matrices as dense ones, if they are small enough: gradients of single records need dense records."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sordino.core.errors import DataError

MOST_BYTES = 4 * 2**30  # largest dense table


def require(what: str, rows: int, slots: int) -> None:
    """Raise DataError if a table of 32-bit numbers would not fit into MOST_BYTES; `what` names it."""
    needed = 4 * rows * slots
    if needed > MOST_BYTES:
        raise DataError(
            f"{what}: {rows:,} records of {slots:,} numbers need {needed / 2**30:,.1f} GiB of memory as a dense table, "
            f"more than {MOST_BYTES / 2**30:g} GiB. Use fewer records or columns (text: fewer buckets)."
        )


def is_sparse(value: Any) -> bool:
    """Return whether a value is a sparse matrix or array of scipy, or a sparse tensor."""
    if isinstance(value, Tensor):
        return value.layout is not torch.strided
    return type(value).__module__.startswith("scipy.sparse") and hasattr(value, "toarray")


def dense(what: str, matrix: Any) -> Any:
    """Return a sparse matrix as a dense array or tensor, after checking how much memory it needs."""
    if len(matrix.shape) != 2:
        raise DataError(f"{what}: a sparse matrix has two axes, records and columns, not {len(matrix.shape)}.")
    require(what, *matrix.shape)
    if isinstance(matrix, Tensor):
        return matrix.to_dense()
    return matrix.astype("float32").toarray() if matrix.dtype.kind == "f" else matrix.toarray()
