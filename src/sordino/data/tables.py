"""Loading of the user's own table (.csv, .csv.gz, .parquet); see schema.py for how to declare columns.

Rows are test records only if the owner says so, by a split column or by a second table; see public.py.
"""

from __future__ import annotations

import gzip
import hashlib
import importlib.util
import json
import re
import zlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sordino.core import check
from sordino.core.errors import DataError
from sordino.data import canonical
from sordino.data import schema as schemas
from sordino.data.dataset import Dataset, Ids, TableCode, class_count
from sordino.data.schema import Category, Classes, Column, Number

SUFFIXES = (".csv", ".csv.gz", ".parquet")


@dataclass(frozen=True)
class Columns:
    """Names of the columns of a table by their role, and other options for reading the user's own data."""

    label: str | None = None
    client: str | None = None  # column that names the client of a row
    user: str | None = None  # column that names the user of a row
    split: str | None = None  # column whose value "test" marks the test records
    schema: str | None = None  # path of a TOML file
    image_size: int | None = None  # side in pixels to which the images of a folder are scaled

    def __post_init__(self) -> None:
        if self.image_size is not None:
            check.count(image_size=self.image_size)
        named = [c for c in (self.label, self.client, self.user, self.split) if c is not None]
        if self.label is not None and named.count(self.label) > 1:
            raise DataError(f"column {self.label!r} is the label and cannot be the client, user or split as well.")


@dataclass(frozen=True)
class Parsed:
    """The rows of one table, encoded."""

    x: Tensor
    y: Tensor
    task: str
    classes: int | None
    names: tuple[str, ...]
    counted: tuple[str, ...]  # a note if the number of classes was read from the labels
    notes: tuple[str, ...]
    clients: list[str] | None  # client of every row
    users: Ids | None  # user of every row


def table(path: Path, columns: Columns, test: Path | None = None) -> Dataset:
    """Load a table; `test` is a second table with the same columns, whose rows are public."""
    cells = read(path)
    if columns.label is None:
        raise DataError(f"{path.name}: say which column is the label; there are {_some(cells.columns)}.")
    written = {} if columns.schema is None else schemas.entries(_beside(path, columns.schema))
    declared = schemas.columns(written, str(columns.schema))
    roles = [c for c in (columns.label, columns.client, columns.user, columns.split) if c is not None]
    for name in (*roles, *declared):
        if name not in cells.columns:
            raise DataError(f"{path.name} has no column {name!r}; there are {_some(cells.columns)}.")
    if columns.split is not None and test is not None:
        raise DataError(f"{path.name} has test rows by its column {columns.split!r}: drop split_column or test.")
    parts, out, words = [_parsed(path.name, cells, columns, declared, roles)], np.zeros(len(cells), np.bool_), ""
    if columns.split is not None:
        out = marked_rows(path.name, cells[columns.split])
        words = f"the {out.sum():,} rows with {columns.split} = test"
    if test is not None:
        more = _same_columns(path.name, test.name, cells, read(test), declared, roles)
        parts.append(_like(parts[0], _parsed(test.name, more, columns, declared, roles), test.name))
        out = np.concatenate([out, np.ones(len(more), np.bool_)])
        words = f"the {len(more):,} rows of the test table"
    x, y = torch.cat([p.x for p in parts]), torch.cat([p.y for p in parts])
    keep, shown = torch.from_numpy(~out), torch.from_numpy(out)
    named = [p.clients for p in parts if p.clients is not None]  # a test table need not name them
    client = np.full(len(out), -1) if named else None
    if client is not None:
        client[: sum(map(len, named))] = numbered([name for each in named for name in each])
    user = None if any(p.users is None for p in parts) else np.concatenate([p.users for p in parts])
    first = parts[0]
    counted = ("the number of classes",) if first.counted else ()
    if columns.label not in declared:  # a single label with a decimal point makes it a regression
        counted = ("whether the label is a class or a number", *counted)
    return Dataset(
        path.name, x[keep], y[keep], x[shown], y[shown],
        client_train=None if client is None else client[~out],
        client_test=None if client is None or len(named) < len(parts) else client[out],
        user_train=first.users if user is None or first.users is None else user[~out],
        user_test=None if user is None else user[out],
        task=first.task, classes=None if first.classes is None else max(p.classes or 0 for p in parts),
        names=first.names, notes=(*first.counted, *first.notes), test_from=words,
        assumed=(*(("the bounds and categories of the schema",) if declared else ()), *counted,
                 *(() if declared else ("the names of the columns",))),
        encoded=_code(cells, columns.label, written, roles),
        raw=canonical.of_table(cells[~out[: len(cells)]], columns.label, columns.split, columns.user, columns.client,
                               [c for c in declared if c not in roles]),
    )  # fmt: skip


def _parsed(what: str, cells: Any, columns: Columns, declared: dict[str, Column], roles: list[str]) -> Parsed:
    y, task, classes, names, counted = _target(what, str(columns.label), cells[columns.label], declared)
    x, notes = _inputs(what, cells, declared, roles)
    clients, users = (c if c in cells.columns else None for c in (columns.client, columns.user))
    return Parsed(
        x, y, task, classes, names, counted, notes,
        None if clients is None else schemas.words(clients, cells[clients]),
        None if users is None else fixed_ids(users, cells[users]),
    )  # fmt: skip


def _same_columns(what: str, test: str, cells: Any, more: Any, declared: dict[str, Column], roles: list[str]) -> Any:
    """Return the rows of the second table with the columns of the first; clients and users may be missing."""
    used = [c for c in cells.columns if c == roles[0] or c in declared or (not declared and c not in roles)]
    missing = [str(c) for c in used if c not in more.columns]
    if missing:
        raise DataError(f"{test} has no column {missing[0]!r}, which {what} has; there are {_some(more.columns)}.")
    return more[[c for c in cells.columns if c in more.columns and (c in used or c in roles)]]


def _like(first: Parsed, other: Parsed, what: str) -> Parsed:
    """Return the other rows with the same kind of label as the first; whole numbers are accepted as decimal ones."""
    if first.task == "classification" and other.task != first.task:
        raise DataError(
            f"{what}: its labels are decimal numbers, but those of the dataset are classes; use one kind for both."
        )
    return replace(other, y=other.y.to(first.y.dtype), task=first.task)


def _beside(path: Path, schema: str) -> Path:
    """Return the path of the schema: as given or, if there is no such file, relative to the folder of the table."""
    near = path.parent / schema
    return near if near.is_file() and not Path(schema).is_file() else Path(schema)


def read(path: Path) -> Any:
    """Read a pandas table; cells of a .csv file stay text, so that no type is inferred from the data."""
    try:
        cells = _parquet(path) if path.suffix.lower() == ".parquet" else _csv(path)
    except DataError:
        raise
    except UnicodeDecodeError as error:
        raise DataError(f"cannot read {path}: it is not UTF-8 text (byte {error.start}). Save it as UTF-8.") from error
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"cannot read {path}: it is damaged or cut short ({str(error) or 'end of file'}).") from error
    except Exception as error:  # the parsers raise many kinds of errors
        raise DataError(f"cannot read {path}: {(str(error) or type(error).__name__).splitlines()[0]}") from error
    repeated = [str(c) for c in cells.columns[cells.columns.duplicated()]]
    if repeated:
        raise DataError(f"{path}: column {repeated[0]!r} appears twice. Rename one of them.")
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
    arrow_table = importlib.import_module("pyarrow.parquet").read_table(path)
    arrow_table.validate(full=True)  # otherwise text that is not UTF-8 would fail only when used
    names = [str(n) for n in arrow_table.column_names]
    if len(set(names)) < len(names):
        raise DataError(f"{path}: column {next(n for n in names if names.count(n) > 1)!r} appears twice. Rename one.")
    return arrow_table.to_pandas(ignore_metadata=True)


def marked_rows(what: str, split: Any) -> NDArray[np.bool_]:
    """Return which rows the split column marks as test records."""
    marks = schemas.words(str(split.name), split)
    odd = next((i for i, word in enumerate(marks) if word not in ("train", "test")), None)
    if odd is not None:
        raise DataError(
            f"{what}: column {str(split.name)!r}, row {odd + 1}: {marks[odd]!r} is neither 'train' nor 'test'."
        )
    test = np.array([word == "test" for word in marks])
    if not test.any() or test.all():
        rows_with = "every" if test.all() else "no"
        raise DataError(f"{what}: {rows_with} row has 'test' in column {str(split.name)!r}; both parts need records.")
    return test


def _target(
    what: str, name: str, cells: Any, declared: dict[str, Column]
) -> tuple[Tensor, str, int | None, tuple[str, ...], tuple[str, ...]]:
    column = declared.get(name)
    if isinstance(column, Category):
        labels = column.index(schemas.words(name, cells, column.values))
        odd = np.flatnonzero(labels == len(column.values))
        if len(odd):
            row = int(odd[0])
            raise DataError(
                f"column {name!r}, row {row + 1}: {cells.iloc[row]!r} is not among the declared label values."
            )
        return torch.from_numpy(labels), "classification", len(column.values), column.values, ()
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
            raise DataError(f"{what} has no column left for the model besides {', '.join(roles)}.")
        values = np.stack([schemas.numbers(c, cells[c]) for c in rest], axis=1)
        if np.abs(values).max() > np.finfo(np.float32).max:
            raise DataError(f"{what}: a number is too large for a 32-bit float. Declare min and max in a schema file.")
        note = "columns were used as they are: declare their bounds in a schema file to have them scaled"
        return torch.from_numpy(values.astype(np.float32)), (note,)
    used = {name: column for name, column in declared.items() if name not in roles}
    if not used:
        raise DataError(f"{what}: the schema declares no column for the model.")
    left = [c for c in rest if c not in used]
    return schemas.encode(cells, used), (f"columns not in the schema are left out: {_some(left)}",) if left else ()


def _code(cells: Any, label: str, written: dict[str, Any], roles: list[str]) -> TableCode:
    """Return how the rows were encoded: without a schema, the names of the columns are all that is needed."""
    inputs = tuple(str(c) for c in (written or cells.columns) if c not in roles)
    plain = json.loads(json.dumps(written, default=str))  # a date becomes text, as in a category
    return TableCode(inputs, label, {c: v for c, v in plain.items() if c in (*inputs, label)})


def features(what: str, cells: Any, code: TableCode) -> Tensor:
    """Encode the rows of another table as those of the run were; further columns are ignored.

    Args:
        what: the name of the table in error messages.
        cells: the rows, as a pandas table.
        code: how the columns became numbers.

    Raises:
        DataError: if columns are missing, or a cell cannot be encoded.
    """
    missing = [c for c in code.columns if c not in cells.columns]
    if missing:
        many = "columns" if len(missing) > 1 else "column"
        raise DataError(
            f"{what} lacks the {many} {_some(missing)}, which the model needs; there are {_some(cells.columns)}."
        )
    declared = schemas.columns({c: v for c, v in code.schema.items() if c in code.columns}, "the schema of the run")
    return _inputs(what, cells[list(code.columns)], declared, [])[0]


def labels(what: str, cells: Any, code: TableCode, names: tuple[str, ...] = ()) -> tuple[Tensor, str]:
    """Return the labels of the rows of another table, and the task that they are for; numbers are not scaled.

    `names` are the names of the classes of the run, in the order of their numbers."""
    if code.label not in cells.columns:
        raise DataError(f"{what} lacks the label column {code.label!r}; there are {_some(cells.columns)}.")
    column = schemas.columns({c: v for c, v in code.schema.items() if c == code.label}, "the schema of the run")
    if isinstance(column.get(code.label), Number):
        values = schemas.numbers(code.label, cells[code.label])
        return torch.tensor(values), "regression"
    if names:
        column = {code.label: Category(names)}
    y, task, *_ = _target(what, code.label, cells[code.label], column)
    return y, task


def numbered(names: list[str]) -> Ids:
    """Number the clients 0, 1, 2, ... in the order of their names (by value if all of them are whole numbers)."""
    integers = all(re.fullmatch(r"-?[0-9]{1,18}", v) for v in names)
    values = np.array(names, dtype=np.int64 if integers else np.str_)
    return np.unique(values, return_inverse=True)[1].astype(np.int64)


def fixed_ids(name: str, cells: Any) -> Ids:
    """Return a 40-bit number for the user of each row, which depends only on that user's name.

    It does not depend on who else is in the table. Two users who share a number are protected as one.
    """
    values = schemas.words(name, cells)
    known = {v: int.from_bytes(hashlib.blake2b(v.encode(), digest_size=5).digest(), "little") for v in set(values)}
    return np.array([known[v] for v in values], dtype=np.int64)


def _some(names: Any) -> str:
    shown = [str(n) for n in names]
    return ", ".join(shown[:12]) + (f" and {len(shown) - 12} more" if len(shown) > 12 else "")
