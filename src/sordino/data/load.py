"""Files -> arrays: a benchmark by its name, or one's own file by its path.

A name is a file of data/sets (`sordino datasets` lists them); a path is an .npz file, a table (.csv, .csv.gz, .parquet)
or a folder of pictures, looked for below `data_dir`.  Nothing is fitted on the data: scales, classes and vocabularies
are declared in the code, in a schema file or by the names of folders."""

from __future__ import annotations

from collections.abc import Callable
from difflib import get_close_matches
from pathlib import Path

from sordino.core import plugin
from sordino.core.errors import DataError
from sordino.data import npz
from sordino.data.dataset import Dataset
from sordino.data.tables import SUFFIXES, Columns, table

__all__ = ["Columns", "Dataset", "load"]


def load(name: str, data_dir: str | None = None, *, columns: Columns | None = None) -> Dataset:
    if name in plugin.available("data.sets"):
        if columns is not None and columns != Columns():
            raise DataError(
                f"{name} has columns of its own; label, client, user, split and schema are for one's own file."
            )
        from sordino.data.find import obtain

        return obtain(plugin.load("data.sets", name), data_dir)
    path = Path(data_dir or ".") / name
    if _is(path, Path.is_dir) and _is(path / "train", Path.is_dir):
        from sordino.data.pictures import pictures

        return pictures(path, columns or Columns())
    if _is(path, Path.is_file) and path.name.lower().endswith(SUFFIXES):
        return table(path, columns or Columns())
    if path.suffix == ".npz" and _is(path, Path.is_file):
        if columns is not None and columns != Columns():
            raise DataError(f"{path.name}: columns are for tables; an .npz file has client_train and user_train.")
        return npz.read(path)
    known = plugin.available("data.sets")
    near = get_close_matches(name, known, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    raise DataError(
        f"no dataset {name!r}:{hint} there are {', '.join(known)}, or the path of an .npz, .csv, .csv.gz or .parquet "
        f"file or of a folder of pictures (tried {path})."
    )


def _is(path: Path, kind: Callable[[Path], bool]) -> bool:
    try:
        return kind(path)
    except (OSError, ValueError):  # a name that no file can have, a folder that may not be looked into
        return False
