"""One's own table (.csv, .csv.gz, .parquet) -> Dataset.  See schema.py for how columns are declared."""

from __future__ import annotations

import gzip
import hashlib
import importlib.util
import re
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sordino.core import check
from sordino.core.errors import DataError
from sordino.core.rng import Stream
from sordino.data import canonical, splits
from sordino.data import schema as schemas
from sordino.data.dataset import Dataset, Ids, class_count
from sordino.data.schema import Category, Classes, Column, Number

SUFFIXES = (".csv", ".csv.gz", ".parquet")


@dataclass(frozen=True)
class Columns:
    """What the columns of one's own table are, and how its test part is found."""

    label: str | None = None
    client: str | None = None  # whose value is the client
    user: str | None = None
    split: str | None = None  # whose value "test" marks the test records
    schema: str | None = None  # path of a TOML file
    test_share: float = 0.1  # held out by a fixed draw, a record at a time, where there is no split
    image_size: int | None = None  # side in pixels that a folder's pictures are scaled to

    def __post_init__(self) -> None:
        check.below_one(test_share=self.test_share)
        if self.image_size is not None:
            check.count(image_size=self.image_size)
        named = [c for c in (self.label, self.client, self.user, self.split) if c is not None]
        if self.label is not None and named.count(self.label) > 1:
            raise DataError(f"column {self.label!r} is the label and cannot be the client, user or split as well.")


def table(path: Path, columns: Columns) -> Dataset:
    cells = read(path)
    if columns.label is None:
        raise DataError(f"{path.name}: say which column is the label; there are {_some(cells.columns)}.")
    declared = {} if columns.schema is None else schemas.read(_beside(path, columns.schema))
    roles = [c for c in (columns.label, columns.client, columns.user, columns.split) if c is not None]
    for name in (*roles, *declared):
        if name not in cells.columns:
            raise DataError(f"{path.name} has no column {name!r}; there are {_some(cells.columns)}.")
    test = test_rows(path.name, len(cells), None if columns.split is None else cells[columns.split], columns.test_share)
    y, task, classes, names, notes = _target(path.name, columns.label, cells[columns.label], declared)
    x, more = _inputs(path.name, cells, declared, roles)
    client = None if columns.client is None else numbered(columns.client, cells[columns.client])
    user = None if columns.user is None else fixed_ids(columns.user, cells[columns.user])
    keep, out = torch.from_numpy(~test), torch.from_numpy(test)
    return Dataset(
        path.name, x[keep], y[keep], x[out], y[out],
        client_train=None if client is None else client[~test],
        client_test=None if client is None else client[test],
        user_train=None if user is None else user[~test],
        task=task, classes=classes, names=names, notes=(*notes, *more),
        raw=canonical.of_table(cells, columns.label, columns.split, columns.user, columns.client,
                               [c for c in declared if c not in roles]),
    )  # fmt: skip


def _beside(path: Path, schema: str) -> Path:
    """The schema as named, else the one of that name beside the table."""
    near = path.parent / schema
    return near if near.is_file() and not Path(schema).is_file() else Path(schema)


def read(path: Path) -> Any:
    """A pandas table. Cells of a .csv file stay text, so that nothing is guessed from the data."""
    try:
        cells = _parquet(path) if path.suffix.lower() == ".parquet" else _csv(path)
    except DataError:
        raise
    except UnicodeDecodeError as error:
        raise DataError(f"cannot read {path}: it is not UTF-8 text (byte {error.start}). Save it as UTF-8.") from error
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"cannot read {path}: it is damaged or cut short ({str(error) or 'end of file'}).") from error
    except Exception as error:  # the parsers raise many kinds
        raise DataError(f"cannot read {path}: {(str(error) or type(error).__name__).splitlines()[0]}") from error
    repeated = [str(c) for c in cells.columns[cells.columns.duplicated()]]
    if repeated:
        raise DataError(f"{path}: column {repeated[0]!r} stands twice. Rename one of them.")
    if not len(cells):
        raise DataError(f"{path} has no rows.")
    return cells


def _csv(path: Path) -> Any:
    import pandas as pd

    try:
        raw = pd.read_csv(path, header=None, dtype=str, keep_default_na=False, encoding="utf-8-sig")
    except pd.errors.EmptyDataError as error:
        raise DataError(f"{path} is empty.") from error
    cells = raw.iloc[1:].reset_index(drop=True)
    cells.columns = pd.Index([str(c).strip() for c in raw.iloc[0]])
    return cells


def _parquet(path: Path) -> Any:
    if importlib.util.find_spec("pyarrow") is None:
        raise DataError(f'{path.name} needs pyarrow, which is not installed; try: pip install "sordino[files]".')
    found = importlib.import_module("pyarrow.parquet").read_table(path)
    found.validate(full=True)  # text that is not UTF-8 would show only when it is read
    names = [str(n) for n in found.column_names]
    if len(set(names)) < len(names):
        raise DataError(f"{path}: column {next(n for n in names if names.count(n) > 1)!r} stands twice. Rename one.")
    return found.to_pandas(ignore_metadata=True)


def test_rows(what: str, rows: int, split: Any, share: float) -> NDArray[np.bool_]:
    """Which rows are test records: those marked, or a fixed draw in which each row stands for itself alone."""
    if split is not None:
        found = schemas.words(str(split.name), split)
        odd = next((i for i, word in enumerate(found) if word not in ("train", "test")), None)
        if odd is not None:
            raise DataError(
                f"{what}: column {str(split.name)!r}, row {odd + 1}: {found[odd]!r} is neither 'train' nor 'test'."
            )
        test = np.array([word == "test" for word in found])
        if not test.any() or test.all():
            rows_with = "every" if test.all() else "no"
            raise DataError(
                f"{what}: {rows_with} row has 'test' in column {str(split.name)!r}; both parts need records."
            )
        return test
    if rows < 2:
        raise DataError(f"{what} has one record; training and testing need one each.")
    test = np.zeros(rows, dtype=np.bool_)
    test[splits.tuning(rows, share, Stream.research(0).at("test"))[1]] = True
    if not test.any() or test.all():
        test[-1] = not test[-1]
    return test


def _target(
    what: str, name: str, cells: Any, declared: dict[str, Column]
) -> tuple[Tensor, str, int | None, tuple[str, ...], tuple[str, ...]]:
    column = declared.get(name)
    if isinstance(column, Category):
        found = column.index(schemas.words(name, cells, column.values))
        odd = np.flatnonzero(found == len(column.values))
        if len(odd):
            row = int(odd[0])
            raise DataError(
                f"column {name!r}, row {row + 1}: {cells.iloc[row]!r} is not among the declared label values."
            )
        return torch.from_numpy(found), "classification", len(column.values), column.values, ()
    if isinstance(column, Number):
        unit = column.unit(schemas.numbers(name, cells))
        return torch.from_numpy(unit.astype(np.float32)), "regression", None, (), ()
    if column is None and cells.dtype.kind not in "iufb":
        _text_label(name, cells)
    values = schemas.numbers(name, cells)
    text = cells.dtype.kind not in "iufb" and any("." in str(c) or "e" in str(c).lower() for c in cells)
    if column is None and (cells.dtype.kind == "f" or text):
        return torch.from_numpy(values.astype(np.float32)), "regression", None, (), ()
    if not np.array_equal(values, np.floor(values)) or np.abs(values).max() > 2**53:
        raise DataError(f"column {name!r}: labels must be whole numbers 0, 1, 2, ...; or declare min and max.")
    y = values.astype(np.int64)
    classes, notes = class_count(f"{what}, column {name!r}", y, column.count if isinstance(column, Classes) else None)
    return torch.from_numpy(y), "classification", classes, (), notes


def _text_label(name: str, cells: Any) -> None:
    import pandas as pd

    bad = np.flatnonzero(pd.to_numeric(cells, errors="coerce").isna().to_numpy())
    if len(bad) and str(cells.iloc[int(bad[0])]).strip():
        row = int(bad[0])
        raise DataError(
            f"column {name!r}, row {row + 1}: {cells.iloc[row]!r} is not a number. Declare the labels in a schema "
            f'file: [{name}] with values = ["...", "..."].'
        )


def _inputs(what: str, cells: Any, declared: dict[str, Column], roles: list[str]) -> tuple[Tensor, tuple[str, ...]]:
    rest = [str(c) for c in cells.columns if c not in roles]
    if not declared:
        if not rest:
            raise DataError(f"{what} has no column left for the model beside {', '.join(roles)}.")
        values = np.stack([schemas.numbers(c, cells[c]) for c in rest], axis=1)
        if np.abs(values).max() > np.finfo(np.float32).max:
            raise DataError(f"{what}: a number is too large for a 32-bit float. Declare min and max in a schema file.")
        note = "columns went in as they are: declare their bounds in a schema file to have them scaled"
        return torch.from_numpy(values.astype(np.float32)), (note,)
    used = {name: column for name, column in declared.items() if name not in roles}
    if not used:
        raise DataError(f"{what}: the schema declares no column for the model.")
    left = [c for c in rest if c not in used]
    return schemas.encode(cells, used), (f"columns not in the schema are left out: {_some(left)}",) if left else ()


def numbered(name: str, cells: Any) -> Ids:
    """Clients by name -> 0, 1, 2, ... in the order of their names (numbers in their own order)."""
    found = schemas.words(name, cells)
    whole = all(re.fullmatch(r"-?[0-9]{1,18}", v) for v in found)
    values = np.array(found, dtype=np.int64 if whole else np.str_)
    return np.unique(values, return_inverse=True)[1].astype(np.int64)


def fixed_ids(name: str, cells: Any) -> Ids:
    """Users by name -> 40-bit numbers that depend on each user's own name alone, whoever else is in the table.

    Two users who share a number are protected as one."""
    values = schemas.words(name, cells)
    known = {v: int.from_bytes(hashlib.blake2b(v.encode(), digest_size=5).digest(), "little") for v in set(values)}
    return np.array([known[v] for v in values], dtype=np.int64)


def _some(names: Any) -> str:
    shown = [str(n) for n in names]
    return ", ".join(shown[:12]) + (f" and {len(shown) - 12} more" if len(shown) > 12 else "")
