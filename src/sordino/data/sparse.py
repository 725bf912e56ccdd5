"""Loading of a sparse matrix that scipy.sparse.save_npz wrote.

Its columns are named by their numbers, from 0. The label, the client and the user of a row are columns of the matrix,
or arrays in .npy files beside it:

    dataset = "words.npz"
    label_column = "labels.npy"     # or "0": the first column of the matrix
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from sordino.core.errors import DataError
from sordino.data.dataset import Dataset
from sordino.data.dense import dense
from sordino.data.npz import arrays
from sordino.data.tables import Columns, of_cells

PARTS = ("format", "shape", "data")


def is_sparse(path: Path) -> bool:
    """Return whether an .npz file holds a sparse matrix."""
    try:
        with path.open("rb") as handle:
            file = np.load(handle, allow_pickle=False)
            return isinstance(file, np.lib.npyio.NpzFile) and set(PARTS) <= set(file.files)
    except Exception:  # reading it as a plain .npz file says what is wrong
        return False


def read(path: Path, columns: Columns, test: Path | None = None) -> Dataset:
    """Read a sparse matrix and its labels; `test` is a second matrix, whose rows are public."""
    if columns.schema is not None or columns.split is not None or columns.windows is not None:
        raise DataError(f"{path.name} is a sparse matrix: schema, split_column and window are for tables.")
    if test is not None and any(name.endswith(".npy") for name in columns.named()):
        raise DataError(f"{path.name}: with test, the label must be a column of both matrices, by its number.")
    more = None if test is None else (test.name, _cells(test, columns))
    data = of_cells(path.name, _cells(path, columns), columns, {}, more)
    return replace(data, notes=tuple(note for note in data.notes if "schema" not in note))


def _cells(path: Path, columns: Columns) -> Any:
    """Return the matrix as a pandas table whose columns are named "0", "1", ..., and the .npy files by their names."""
    import pandas as pd
    from scipy import sparse

    kinds = {str(name): array for name, array in arrays(path).items()}
    try:
        matrix = sparse.load_npz(path)
    except (ValueError, KeyError, OSError, AttributeError, IndexError) as error:
        raise DataError(f"cannot read {path}: {(str(error) or type(error).__name__).splitlines()[0]}") from error
    if kinds["data"].dtype.kind not in "fiub" or len(matrix.shape) != 2:
        raise DataError(f"{path}: a sparse matrix of numbers is needed, not of {kinds['data'].dtype}.")
    if not matrix.shape[0]:
        raise DataError(f"{path} has no rows.")
    cells = pd.DataFrame(dense(path.name, matrix))
    cells.columns = pd.Index([str(c) for c in range(cells.shape[1])])
    beside = {name: _beside(path, name, len(cells)) for name in columns.named() if name.endswith(".npy")}
    return pd.concat([cells, pd.DataFrame(beside)], axis=1)


def _beside(path: Path, name: str, rows: int) -> Any:
    """Return the array of a .npy file in the folder of the matrix."""
    if Path(name).name != name:
        raise DataError(f"{name}: give the name of a .npy file in the folder of {path.name}, without a path.")
    try:
        with (path.parent / name).open("rb") as handle:
            values = np.load(handle, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise DataError(f"cannot read {path.parent / name}: {str(error).splitlines()[0]}") from error
    if not isinstance(values, np.ndarray) or values.shape != (rows,):
        raise DataError(f"{path.parent / name} must hold one value for each of the {rows} rows of {path.name}.")
    return values
