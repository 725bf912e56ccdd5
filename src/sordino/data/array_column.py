"""A column whose cells are arrays, such as embeddings or pictures: the only input column of its table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sordino.core.errors import DataError
from sordino.data import dense


def find(cells: Any, roles: Sequence[str]) -> str | None:
    """Return the name of the column of arrays, if a pandas table has one and no other column for the model."""
    rest = [str(c) for c in cells.columns if c not in roles]
    return rest[0] if len(rest) == 1 and len(cells) and _is_array(cells[rest[0]].iloc[0]) else None


def _is_array(cell: Any) -> bool:
    array = isinstance(cell, list | tuple | np.ndarray | Tensor) or hasattr(cell, "__array_interface__")
    return array and np.ndim(cell) > 0


def stacked(name: str, cells: Any) -> Tensor:
    """Return the arrays of a column [rows, ...]: pictures as bytes, everything else as 32-bit floats."""
    try:
        arrays = [np.array(c.tolist()) if isinstance(c, np.ndarray) else np.asarray(c) for c in cells]
        pictures = arrays[0].ndim > 1 and all(np.asarray(c).dtype == np.uint8 for c in cells)
        dense.require(f"column {name!r}", len(arrays), arrays[0].size)
        table = np.stack(arrays).astype(np.uint8 if pictures else np.float32)
    except (ValueError, TypeError) as error:
        raise DataError(f"column {name!r}: its arrays must hold numbers and have one shape.") from error
    bad = np.flatnonzero(~np.isfinite(table.reshape(len(table), -1)).all(axis=1))
    if len(bad):
        raise DataError(f"column {name!r}, row {int(bad[0]) + 1}: a number is nan or infinite. Clean it.")
    return torch.from_numpy(table)
