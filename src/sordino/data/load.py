"""Loading of datasets: a benchmark by its name, or the user's own file by its path.

A name is that of a file in data/sets (`sordino datasets` lists them). A path, relative to `data_dir`, is that of an
.npz file, a table (.csv, .tsv, both also as .gz, .parquet) or a folder of images. Nothing is fitted on the data:
scales, classes and vocabularies are declared in the code, in a schema file or by the names of folders.
"""

from __future__ import annotations

from collections.abc import Callable
from difflib import get_close_matches
from pathlib import Path

from sordino.core import plugin
from sordino.core.errors import DataError
from sordino.data import npz, sparse
from sordino.data.dataset import Dataset
from sordino.data.public import Declared, declare
from sordino.data.tables import SUFFIXES, Columns, table

__all__ = ["Columns", "Dataset", "Declared", "load"]


def load(
    name: str, data_dir: str | None = None, *, columns: Columns | None = None, declared: Declared | None = None
) -> Dataset:
    """Load a dataset.

    Args:
        name: Name of a benchmark, or path of the user's own data.
        data_dir: Folder of the data; by default the current folder for the user's own data.
        columns: Roles of the columns of a table.
        declared: Which records of the user's own data are public; those of a benchmark all are.
    """
    says = declared or Declared()
    if name in plugin.available("data.sets"):
        if columns is not None and columns != Columns():
            raise DataError(
                f"{name} has columns of its own; label, client, user, split, schema and classes are for your own files."
            )
        if says.test is not None or says.share is not None:
            raise DataError(f"{name} has public test records of its own; test and public_share are for your own files.")
        from sordino.data.find import obtain

        return obtain(plugin.load("data.sets", name), data_dir)
    folder = Path(data_dir or ".")
    data = _from_path(folder / name, columns or Columns(), None if says.test is None else folder / says.test)
    if data is not None:
        return declare(data, says)
    raise no_dataset(name, folder)


def no_dataset(name: str, folder: Path) -> DataError:
    """Return the error for a name that is neither a benchmark nor a path in the folder."""
    known = plugin.available("data.sets")
    near = get_close_matches(name, known, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return DataError(
        f"there is no dataset {name!r}.{hint} Choose one of {', '.join(known)}, or give the path of a .csv, .tsv, "
        f".parquet or .npz file or of a folder of pictures (tried {folder / name})."
    )


def _from_path(path: Path, columns: Columns, test: Path | None) -> Dataset | None:
    """Load the user's own data at `path`, or return None if there are none."""
    if _is(path, Path.is_dir) and _is(path / "train", Path.is_dir):
        from sordino.data.pictures import pictures

        return pictures(path, columns, _there(test, Path.is_dir, "the path of a folder with one folder per class"))
    if _is(path, Path.is_file) and path.name.lower().endswith(SUFFIXES):
        second = _there(test, Path.is_file, f"the path of a table like {path.name}", SUFFIXES)
        return table(path, columns, second)
    if path.suffix == ".npz" and _is(path, Path.is_file):
        if sparse.is_sparse(path):
            return sparse.read(path, columns, _there(test, Path.is_file, "the path of a sparse matrix", (".npz",)))
        if columns != Columns():
            raise DataError(f"{path.name}: columns are for tables; an .npz file has client_train and user_train.")
        return npz.read(path, _there(test, Path.is_file, "the path of an .npz file", (".npz",)))
    return None


def _there(
    test: Path | None, kind: Callable[[Path], bool], what: str, suffixes: tuple[str, ...] = ("",)
) -> Path | None:
    """Return the path of the test records, or raise an error unless it is of the same kind as the data."""
    if test is not None and not (_is(test, kind) and test.name.lower().endswith(suffixes)):
        raise DataError(f"test must be {what}; there is none at {test}.")
    return test


def _is(path: Path, kind: Callable[[Path], bool]) -> bool:
    try:
        return kind(path)
    except (OSError, ValueError):  # an impossible file name, or no permission to read the folder
        return False
