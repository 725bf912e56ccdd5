"""Loading of the user's own table (.csv, .csv.gz, .parquet); see schema.py for how to declare columns.

Rows are test records only if the owner says so, by a split column or by a second table; see public.py.
"""

from __future__ import annotations

import gzip
import hashlib
import importlib.util
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
from sordino.data import canonical
from sordino.data import schema as schemas
from sordino.data.dataset import Dataset, Ids
from sordino.data.labels import SET, Target, target
from sordino.data.schema import DROP, Category, Column, Number
from sordino.data.treatment import owner_notes, treat

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
    classes: tuple[str, ...] | None = None  # labels in the order of the class numbers

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
    target: Target
    notes: tuple[str, ...]
    owner_notes: tuple[str, ...]  # how many rows are left out and values changed, for the owner alone
    dropped: NDArray[np.bool_]  # rows that are left out
    clients: list[str] | None  # client of every row
    users: Ids | None  # user of every row


def table(path: Path, columns: Columns, test: Path | None = None) -> Dataset:
    """Load a table; `test` is a second table with the same columns, whose rows are public."""
    cells = read(path)
    if columns.label is None:
        raise DataError(f"{path.name}: say which column is the label; there are {_some(cells.columns)}.")
    declared = {} if columns.schema is None else schemas.read(_beside(path, columns.schema))
    roles = [c for c in (columns.label, columns.client, columns.user, columns.split) if c is not None]
    for name in (*roles, *declared):
        require_column(path.name, name, cells.columns)
    if columns.split is not None and test is not None:
        raise DataError(f"{path.name} has test rows by its column {columns.split!r}: drop split_column or test.")
    label = _declared_label(columns, declared)
    parts, out, words = [_parsed(path.name, cells, columns, declared, roles, label)], np.zeros(len(cells), np.bool_), ""
    first = parts[0]
    if columns.split is not None:
        out = marked_rows(path.name, cells[columns.split])
        words = f"the {(out & ~first.dropped).sum():,} rows with {columns.split} = test"
    if test is not None:
        more = _same_columns(path.name, test.name, cells, read(test), declared, roles)
        label = Category(first.target.names) if SET in first.target.assumed else label
        parts.append(_like(first, _parsed(test.name, more, columns, declared, roles, label), test.name))
        out = np.concatenate([out, np.ones(len(more), np.bool_)])
        words = f"the {(~parts[1].dropped).sum():,} rows of the test table"
    x, y = torch.cat([p.x for p in parts]), torch.cat([p.target.y for p in parts])
    there = ~np.concatenate([p.dropped for p in parts])
    keep, shown = ~out & there, out & there
    if not keep.any():
        raise DataError(f"{path.name}: no row is left to train on, since every one lacks a value.")
    named = [p.clients for p in parts if p.clients is not None]  # a test table need not name them
    client = np.full(len(out), -1) if named else None
    if client is not None:
        client[: sum(map(len, named))] = numbered([name for each in named for name in each])
    user = None if any(p.users is None for p in parts) else np.concatenate([p.users for p in parts])
    of_first = keep[: len(cells)]
    return Dataset(
        path.name, x[keep], y[keep], x[shown], y[shown],
        client_train=None if client is None else client[keep],
        client_test=None if client is None or len(named) < len(parts) else client[shown],
        user_train=None if first.users is None else first.users[of_first],
        user_test=None if user is None else user[shown],
        task=first.target.task, unit_target=isinstance(declared.get(columns.label), Number),
        classes=None if first.target.classes is None else max(p.target.classes or 0 for p in parts),
        names=first.target.names, notes=(*first.target.notes, *first.notes), test_from=words,
        assumed=(*_assumed(declared), *first.target.assumed),
        raw=canonical.of_table(cells[of_first], columns.label, columns.split, columns.user, columns.client,
                               [c for c in declared if c not in roles]),
        owner_notes=(*first.target.owner_notes, *(note for p in parts for note in p.owner_notes)),
    )  # fmt: skip


def _declared_label(columns: Columns, declared: dict[str, Column]) -> Column | None:
    """Return the declaration of the label: by the key `classes` or by the schema."""
    column = declared.get(str(columns.label))
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


def _parsed(
    what: str, cells: Any, columns: Columns, declared: dict[str, Column], roles: list[str], label: Column | None
) -> Parsed:
    treated = treat(cells, declared)
    cells, used = treated.cells, {n: c for n, c in declared.items() if n == columns.label or n not in roles}
    labels = target(what, str(columns.label), cells[columns.label], label)
    x, notes = _inputs(what, cells, declared, roles)
    counted = {n: c for n, c in used.items() if n != columns.label or isinstance(c, Number)}
    clients, users = (c if c in cells.columns else None for c in (columns.client, columns.user))
    return Parsed(
        x, labels, notes, owner_notes(what, treated, counted), treated.dropped,
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
    notes = [f"columns not in the schema are left out: {_some(left)}"] if left else []
    return schemas.encode(cells, used), (*notes, "how many values the schema changes is in private/notes.txt")


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
