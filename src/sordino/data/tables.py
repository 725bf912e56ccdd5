"""Loading of the user's own table (.csv, .tsv, both also as .gz, .parquet); see schema.py for how to declare columns.

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
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sordino.core import check
from sordino.core.errors import DataError
from sordino.data import array_column, canonical, text_tables
from sordino.data import schema as schemas
from sordino.data.dataset import Dataset, Ids, TableCode
from sordino.data.hashed_text import Text
from sordino.data.labels import SET, Target, target
from sordino.data.schema import DROP, Category, Column, Number
from sordino.data.treatment import owner_notes, treat
from sordino.data.windows import Windows

SUFFIXES = (*text_tables.SUFFIXES, ".parquet")
SCHEMA_NOTE = (
    "columns outside the schema are left out; private/notes.txt names them, and says how many values are changed"
)


@dataclass(frozen=True)
class Columns:
    """Names of the columns of a table by their role, and other options for reading the user's own data."""

    label: str | None = None
    client: str | None = None  # column that names the client of a row
    user: str | None = None  # column that names the user of a row
    split: str | None = None  # column whose value "test" marks the test records
    schema: str | None = None  # path of a TOML file
    image_size: int | None = None  # side in pixels to which the images of a folder are scaled
    classes: tuple[str, ...] | None = None  # labels in the order of the class numbers
    decimal: str = "."  # decimal mark of the numbers of a text table
    windows: Windows | None = None  # how time series are cut into records

    def __post_init__(self) -> None:
        if self.image_size is not None:
            check.count(image_size=self.image_size)
        text_tables.check_decimal(self.decimal)
        if self.label is not None and self.named().count(self.label) > 1:
            raise DataError(f"column {self.label!r} is the label and cannot be the client, user, split or time too.")

    def named(self) -> list[str]:
        """Return the columns that have a role, the label first."""
        time = None if self.windows is None else self.windows.time
        return [c for c in (self.label, self.client, self.user, self.split, time) if c is not None]


@dataclass(frozen=True)
class Parsed:
    """The rows of one table, encoded."""

    x: Tensor
    target: Target
    notes: tuple[str, ...]
    owner_notes: tuple[str, ...]  # how many rows are left out and values changed, for the owner alone
    dropped: NDArray[np.bool_]  # rows that are left out
    clients: list[str] | None  # client of every row
    users: Ids | None  # user of every row


def table(path: Path, columns: Columns, test: Path | None = None) -> Dataset:
    """Load a table; `test` is a second table with the same columns, whose rows are public."""
    written = {} if columns.schema is None else schemas.entries(_beside(path, columns.schema))
    more = None if test is None else (test.name, read(test))
    return of_cells(path.name, read(path), columns, written, more)


def of_cells(
    what: str,
    cells: Any,
    columns: Columns,
    written: dict[str, Any],
    test: tuple[str, Any] | None = None,
    label: Column | None = None,
) -> Dataset:
    """Return the dataset of a pandas table.

    Args:
        what: Name of the table in messages.
        cells: The table.
        columns: Roles of its columns.
        written: Its schema, as it is written.
        test: Name and cells of a second table, whose rows are public.
        label: Declaration of the label that comes with the table; the schema goes before it.
    """
    if columns.label is None:
        raise DataError(f"{what}: say which column is the label; there are {_some(cells.columns)}.")
    declared, roles = schemas.columns(written, str(columns.schema)), columns.named()
    for name in (*roles, *declared):
        require_column(what, name, cells.columns)
    if columns.split is not None and test is not None:
        raise DataError(f"{what} has test rows by its column {columns.split!r}: drop split_column or test.")
    label = _declared_label(columns, declared) or label
    parts, tables = [_parsed(what, cells, columns, declared, roles, label)], [cells]
    first, out, words = parts[0], np.zeros(len(cells), np.bool_), ""
    if columns.split is not None:
        out = marked_rows(what, cells[columns.split])
        words = f"the {(out & ~first.dropped).sum():,} rows with {columns.split} = test"
    if test is not None:
        more = _same_columns(what, test[0], cells, test[1], declared, roles)
        label = Category(first.target.names) if SET in first.target.assumed else label
        parts.append(_like(first, _parsed(test[0], more, columns, declared, roles, label), test[0]))
        tables.append(more)
        out = np.concatenate([out, np.ones(len(more), np.bool_)])
        words = f"the {(~parts[1].dropped).sum():,} rows of the test table"
    of_first = ~(out[: len(cells)] | first.dropped)
    if not of_first.any():
        raise DataError(f"{what}: no row is left to train on, since every one lacks a value.")
    rows = _joined(parts, out)
    if columns.windows is not None:
        there = [cells[~p.dropped] for p, cells in zip(parts, tables, strict=True)]
        rows = _windowed(columns.windows, rows, there, first.target.task)
    keep, shown = torch.from_numpy(~rows.test), torch.from_numpy(rows.test)
    notes = (*first.target.notes, *first.notes, *(() if columns.windows is None else (columns.windows.note(),)))
    return Dataset(
        what, rows.x[keep], rows.y[keep], rows.x[shown], rows.y[shown],
        client_train=None if rows.clients is None else rows.clients[~rows.test],
        client_test=None if rows.clients is None or parts[-1].clients is None else rows.clients[rows.test],
        user_train=None if rows.users is None else rows.users[~rows.test],
        user_test=None if rows.users is None or parts[-1].users is None else rows.users[rows.test],
        task=first.target.task, unit_target=isinstance(label, Number), bounded=bool(declared),
        classes=None if first.target.classes is None else max(p.target.classes or 0 for p in parts),
        names=first.target.names, notes=notes, test_from=words,
        assumed=(*_assumed(declared), *first.target.assumed, *(() if declared else ("the names of the columns",))),
        encoded=_code(cells, columns, written),
        raw=_raw(cells[of_first], columns, [c for c in declared if c not in roles]),
        owner_notes=(*first.target.owner_notes, *(note for p in parts for note in p.owner_notes)),
    )  # fmt: skip


def _declared_label(columns: Columns, declared: dict[str, Column]) -> Column | None:
    """Return the declaration of the label: by the key `classes` or by the schema."""
    column = declared.get(str(columns.label))
    if isinstance(column, Text):
        raise DataError(
            f"column {columns.label!r} is the label, which cannot be text = true: declare values, classes or min."
        )
    if columns.classes is None or column == Category(columns.classes):
        return column
    if column is not None:
        raise DataError(f"column {columns.label!r}: the schema declares the label already: drop it there, or classes.")
    return Category(columns.classes)


def _assumed(declared: dict[str, Column]) -> tuple[str, ...]:
    """Return what the guarantee treats as public because of a schema."""
    if not declared:
        return ()
    drops = [name for name, column in declared.items() if column.missing == DROP]
    bounds = "the bounds and categories of the schema"
    return (bounds, f"which rows lack a value of {_some(drops)}: they are left out") if drops else (bounds,)


def _raw(cells: Any, columns: Columns, inputs: list[str]) -> canonical.Raw:
    """Return the rows in their canonical forms."""
    if (name := array_column.find(cells, columns.named())) is None:
        return canonical.of_table(cells, columns.label, columns.split, columns.user, columns.client, inputs)
    users, clients = (None if c is None else cells[c].to_numpy() for c in (columns.user, columns.client))
    return canonical.of_arrays(array_column.stacked(name, cells[name]), users=users, clients=clients)


@dataclass(frozen=True)
class _Rows:
    """All rows or windows, of the table and then of the test table."""

    x: Tensor
    y: Tensor
    test: NDArray[np.bool_]  # whether a row is a public test record
    clients: Ids | None  # -1: a test table need not name clients and users
    users: Ids | None


def _joined(parts: list[Parsed], out: NDArray[np.bool_]) -> _Rows:
    """Return the rows of all parts, one after the other, without those that are left out."""
    x, y = torch.cat([p.x for p in parts]), torch.cat([p.target.y for p in parts])
    there = ~np.concatenate([p.dropped for p in parts])
    named = [p.clients for p in parts if p.clients is not None]
    clients = users = None
    if named:
        clients = np.full(len(out), -1)
        clients[: sum(map(len, named))] = numbered([name for each in named for name in each])
    if parts[0].users is not None:
        users = np.concatenate([np.full(len(p.target.y), -1) if p.users is None else p.users for p in parts])
    ids = (None if each is None else each[there] for each in (clients, users))
    return _Rows(x[there], y[there], out[there], *ids)


def _windowed(windows: Windows, rows: _Rows, tables: list[Any], task: str) -> _Rows:
    """Return windows of the rows; the past of a number that is predicted is one more input column."""
    import pandas as pd

    none, part = np.zeros(len(rows.y), np.int64), np.repeat(np.arange(len(tables)), [len(t) for t in tables])
    owners = [part, rows.test, *(none if ids is None else ids for ids in (rows.clients, rows.users))]
    series = np.unique(np.stack(owners), axis=1, return_inverse=True)[1].reshape(-1)
    x = torch.cat([rows.x, rows.y[:, None]], 1) if task == "regression" and windows.horizon else rows.x
    if not x.shape[1]:
        raise DataError("windows need a column for the model besides the label and the time.")
    times = pd.concat([t[windows.time] for t in tables], ignore_index=True)
    x, y, last = windows.cut(x, rows.y, times, series)
    clients, users = (None if ids is None else ids[last] for ids in (rows.clients, rows.users))
    return _Rows(x, y, rows.test[last], clients, users)


def _parsed(
    what: str, cells: Any, columns: Columns, declared: dict[str, Column], roles: list[str], label: Column | None
) -> Parsed:
    """Return a table, encoded."""
    numbers = _of_numbers(cells, columns, declared, roles, label)
    treated = treat(text_tables.with_points(cells, numbers, columns.decimal), declared)
    cells, used = treated.cells, {n: c for n, c in declared.items() if n == columns.label or n not in roles}
    labels = target(what, str(columns.label), cells[columns.label], label)
    x, notes = _inputs(what, cells, declared, roles, alone=columns.windows is not None)
    counted = {n: c for n, c in used.items() if n != columns.label or isinstance(c, Number)}
    left = [c for c in cells.columns if c not in {*declared, *roles}] if declared else []
    named = (f"{what}: columns that are not in the schema are left out: {_some(left)}.",) if left else ()
    clients, users = (c if c in cells.columns else None for c in (columns.client, columns.user))
    return Parsed(
        x, labels, notes, (*named, *owner_notes(what, treated, counted)), treated.dropped,
        None if clients is None else schemas.words(clients, cells[clients]),
        None if users is None else fixed_ids(users, cells[users]),
    )  # fmt: skip


def require_column(what: str, name: str, columns: Any) -> None:
    """Raise an error that names the nearest column, unless there is a column of this name."""
    names = [str(c) for c in columns]
    if name not in names:
        near = get_close_matches(name.lower(), [n.lower() for n in names], n=1)
        hint = f" Did you mean {next(n for n in names if n.lower() == near[0])!r}?" if near else ""
        raise DataError(f"{what} has no column {name!r}.{hint} There are: {_some(names)}.")


def _same_columns(what: str, test: str, cells: Any, more: Any, declared: dict[str, Column], roles: list[str]) -> Any:
    """Return the rows of the second table with the columns of the first; clients and users may be missing."""
    used = [c for c in cells.columns if c == roles[0] or c in declared or (not declared and c not in roles)]
    for name in used:
        require_column(f"{test}, unlike {what},", str(name), more.columns)
    return more[[c for c in cells.columns if c in more.columns and (c in used or c in roles)]]


def _like(first: Parsed, other: Parsed, what: str) -> Parsed:
    """Return the other rows with the same kind of label as the first; whole numbers are accepted as decimal ones."""
    task, y = first.target.task, other.target.y
    if task == "classification" and other.target.task != task:
        raise DataError(
            f"{what}: its labels are decimal numbers, but those of the dataset are classes; use one kind for both."
        )
    return replace(other, target=replace(other.target, y=y.to(first.target.y.dtype), task=task))


def _beside(path: Path, schema: str) -> Path:
    """Return the path of the schema: as given or, if there is no such file, relative to the folder of the table."""
    near = path.parent / schema
    return near if near.is_file() and not Path(schema).is_file() else Path(schema)


def read(path: Path) -> Any:
    """Read a pandas table; cells of a .csv file stay text, so that no type is inferred from the data."""
    try:
        cells = _parquet(path) if path.suffix.lower() == ".parquet" else text_tables.read(path)
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


def _of_numbers(
    cells: Any, columns: Columns, declared: dict[str, Column], roles: list[str], label: Column | None
) -> list[str]:
    """Return the names of the columns that are read as numbers."""
    inputs = [c for c, kind in declared.items() if isinstance(kind, Number)] if declared else list(cells.columns)
    inputs = [c for c in inputs if c not in roles and c in cells.columns]
    return inputs if isinstance(label, Category) else [str(columns.label), *inputs]


def _inputs(
    what: str, cells: Any, declared: dict[str, Column], roles: list[str], alone: bool = False
) -> tuple[Tensor, tuple[str, ...]]:
    """Return the encoded input columns, and notes; with `alone` there may be none besides the label."""
    rest = [str(c) for c in cells.columns if c not in roles]
    if alone and (not set(declared) - set(roles) if declared else not rest):
        return torch.zeros(len(cells), 0), ()
    if not declared and (name := array_column.find(cells, roles)) is not None:
        return array_column.stacked(name, cells[name]), ()
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
    return schemas.encode(cells, used), (SCHEMA_NOTE,)


def _code(cells: Any, columns: Columns, written: dict[str, Any]) -> TableCode | None:
    """Return how the rows were encoded: without a schema, the names of the columns are all that is needed.

    Windows, and records that are a single column of lists, have no columns of their own: None.
    """
    roles, label = columns.named(), str(columns.label)
    if columns.windows is not None or array_column.find(cells, roles) is not None:
        return None
    inputs = tuple(str(c) for c in (written or cells.columns) if c not in roles)
    plain = json.loads(json.dumps(written, default=str))  # a date becomes text, as in a category
    return TableCode(inputs, label, {c: v for c, v in plain.items() if c in (*inputs, label)}, columns.decimal)


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
    cells = cells[list(code.columns)]
    numbers = [c for c in code.columns if not declared or isinstance(declared[c], Number)]
    treated = treat(text_tables.with_points(cells, numbers, code.decimal), declared)
    if treated.dropped.any():
        row = int(np.flatnonzero(treated.dropped)[0])
        raise DataError(
            f"{what}, row {row + 1}: a value of {_some(treated.lacking)} is missing. The run left such rows out of its "
            "training: fill the value in, or leave the row out."
        )
    return _inputs(what, treated.cells, declared, [])[0]


def labels(what: str, cells: Any, code: TableCode, names: tuple[str, ...] = ()) -> tuple[Tensor, str]:
    """Return the labels of the rows of another table, and the task that they are for; numbers are not scaled.

    `names` are the names of the classes of the run, in the order of their numbers."""
    if code.label not in cells.columns:
        raise DataError(f"{what} lacks the label column {code.label!r}; there are {_some(cells.columns)}.")
    column = schemas.columns({c: v for c, v in code.schema.items() if c == code.label}, "the schema of the run")
    if isinstance(column.get(code.label), Number):
        values = schemas.numbers(code.label, cells[code.label])
        return torch.tensor(values), "regression"
    declared = Category(names) if names else column.get(code.label)
    given = target(what, code.label, cells[code.label], declared)
    return given.y, given.task


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
