"""Encoding of declared columns as numbers. What is declared is public; nothing is inferred from the data.

A schema file is TOML with one table per column:

    [age]                       # a number: clamped to [min, max], then scaled to [-1, 1]
    min = 17
    max = 90
    [gain]                      # the same on the scale sign(v) log(1 + |v|)
    min = 0
    max = 100000
    log = true
    [sex]                       # a category: one slot per value, and a last one for any other value
    values = ["F", "M"]
    [notes]                     # free text: counts of hashed words (hashed_text.py), as a row of length 1
    text = true
    buckets = 4096              # number of slots; optional, and so is `pairs = true`: pairs of words as well
    [income]                    # the label: its values in the order of the class numbers, or `classes = 2` for 0 and 1,
    values = ["<=50K", ">50K"]  # or min and max of a regression target, which is scaled to [0, 1]

Each of them may say what happens where a value is missing: `missing = "drop"` leaves the row out, any other value is
filled in. Without it, a missing value is an error; see treatment.py.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sordino.core.errors import DataError
from sordino.data.dataset import MOST_CLASSES
from sordino.data.hashed_text import BUCKETS, MOST_BUCKETS, Text
from sordino.data.text_tables import COMMA

Floats = NDArray[np.float64]
DROP = "drop"  # as `missing`: rows without a value are left out
TO_DECLARE = "DECLARE"  # what `sordino schema init` writes where the owner has to declare something


@dataclass(frozen=True)
class Number:
    """A column of numbers with declared bounds."""

    low: float
    high: float
    log: bool = False  # scale by sign(v) log(1 + |v|)
    missing: float | str | None = None  # value to fill in, or DROP; None: a missing value is an error

    def unit(self, values: Floats) -> Floats:
        """Clamp values to the bounds and scale them to [0, 1]."""
        clamped, low, high = (self._scale(v) for v in (np.clip(values, self.low, self.high), self.low, self.high))
        return np.asarray((clamped - low) / (high - low), dtype=np.float64)

    def value(self, unit: Floats) -> Floats:
        """Return the numbers that `unit` scales to these; numbers outside [0, 1] become the nearest bound."""
        low, high = self._scale(self.low), self._scale(self.high)
        scaled = low + np.clip(unit, 0.0, 1.0) * (high - low)
        value = np.sign(scaled) * np.expm1(np.abs(scaled)) if self.log else scaled
        return np.asarray(np.clip(value, self.low, self.high), dtype=np.float64)

    def _scale(self, v: Any) -> Any:
        return np.sign(v) * np.log1p(np.abs(v)) if self.log else v


@dataclass(frozen=True)
class Category:
    """A column of texts with declared values."""

    values: tuple[str, ...]
    missing: str | None = None  # as for numbers

    def index(self, cells: Iterable[str]) -> NDArray[np.int64]:
        """Return the index of every cell among the values, or len(values) for any other value."""
        place = {value: i for i, value in enumerate(self.values)}
        return np.array([place.get(cell, len(place)) for cell in cells], dtype=np.int64)


@dataclass(frozen=True)
class Classes:
    """A label column of whole numbers below `count`."""

    count: int
    missing: str | None = None  # DROP or None: no label is filled in


Column = Number | Category | Classes | Text
Schema = Mapping[str, Column]


def encode(cells: Any, schema: Schema) -> Tensor:
    """Encode the declared columns of a pandas table as float32 [rows, slots], in the order of the schema."""
    out: list[NDArray[Any]] = []
    for name, column in schema.items():
        if isinstance(column, Number):
            out.append(2 * column.unit(numbers(name, cells[name]))[:, None] - 1)
        elif isinstance(column, Category):
            indices = column.index(words(name, cells[name], column.values))
            out.append(np.eye(len(column.values) + 1)[indices])
        elif isinstance(column, Text):
            out.append(column.encode(name, words(name, cells[name], ("",))))
        else:
            raise DataError(f"column {name!r}: classes is for the label; declare min and max, or values.")
    return torch.from_numpy(np.concatenate([part.astype(np.float32) for part in out], axis=1))


def numbers(name: str, cells: Any) -> Floats:
    """Return a column as finite numbers, or raise an error that names the first cell that is not one."""
    import pandas as pd

    if cells.dtype.kind not in "iufbOUT" and str(cells.dtype) not in ("str", "string", "category"):
        raise DataError(f"column {name!r} holds {cells.dtype}, not numbers. Turn it into numbers first.")
    if cells.dtype.kind in "iufb":
        values = cells.to_numpy(dtype=np.float64, na_value=np.nan)
    else:
        try:
            values = pd.to_numeric(cells, errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)
        except (TypeError, ValueError) as error:  # lists, nested tables
            raise DataError(f"column {name!r} does not hold numbers. Turn it into numbers first.") from error
    bad = np.flatnonzero(~np.isfinite(values))
    if len(bad):
        cell = cells.iloc[int(bad[0])]
        _missing(name, int(bad[0]), cell)
        hint = "Declare its values in a schema file, or clean it." if isinstance(cell, str) else "Clean it."
        if isinstance(cell, str) and COMMA.fullmatch(cell):
            hint = "If the numbers of this file have decimal commas, set decimal = ','."
        raise DataError(f"column {name!r}, row {int(bad[0]) + 1}: {_short(cell)} is not a finite number. {hint}")
    return np.asarray(values, dtype=np.float64)


WHOLE = re.compile(r"^(-?\d+)\.0+$")  # a whole number from a column of decimals


def words(name: str, cells: Any, allowed: tuple[str, ...] = ()) -> list[str]:
    """Return a column as text, where 1 and 1.0 are both "1".

    An empty cell is an error unless "" is among the `allowed` values.
    """
    gaps = np.flatnonzero(cells.isna().to_numpy())
    if len(gaps):
        _missing(name, int(gaps[0]), None)
    if cells.dtype.kind == "f":
        texts = [f"{v:.0f}" if v.is_integer() else repr(v) for v in map(float, cells)]
    else:
        texts = [WHOLE.sub(r"\1", str(v).strip()) for v in cells.tolist()]
    if "" in texts and "" not in allowed:
        _missing(name, texts.index(""), None)
    return texts


def _missing(name: str, row: int, cell: object) -> None:
    if cell is None or cell != cell or str(cell).strip() in ("", "<NA>", "NaT"):
        raise DataError(
            f"column {name!r}, row {row + 1}: the value is missing. Fill it in or drop the row before loading, or "
            f'declare in a schema, under [{name}], missing = "drop" or the value to fill in.'
        )


def _short(cell: object) -> str:
    text = repr(cell)
    return text if len(text) < 40 else text[:36] + "...'"


def read(path: Path) -> dict[str, Column]:
    """Read a schema file."""
    return columns(entries(path), str(path))


def entries(path: Path) -> dict[str, Any]:
    """Return the tables of a schema file as they are written, by column."""
    try:
        declared = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise DataError(f"cannot read the schema {path}: {str(error).splitlines()[0]}") from error
    if not declared:
        raise DataError(f"the schema {path} declares no column.")
    if unfinished := [f"{name} ({', '.join(keys)})" for name, entry in declared.items() if (keys := _open_keys(entry))]:
        raise DataError(f"the schema {path} is not complete: still to be declared are {', '.join(unfinished)}.")
    return declared


def columns(declared: Mapping[str, Any], where: str) -> dict[str, Column]:
    """Return the columns that the tables of a schema declare; `where` names the schema in error messages."""
    return {name: _column(f"{where}, [{name}]", entry) for name, entry in declared.items()}


def _open_keys(entry: object) -> list[str]:
    """Return the keys of a column that still hold what `sordino schema init` wrote."""
    return [k for k, v in entry.items() if v in (TO_DECLARE, [TO_DECLARE])] if isinstance(entry, dict) else []


def _column(where: str, entry: object) -> Column:
    if not isinstance(entry, dict):
        raise DataError(f"{where}: write a table, such as [{where.split('[')[-1]} with min = 0 and max = 1.")
    keys, missing = {*entry} - {"missing"}, entry.get("missing")
    if keys == {"values"} or (keys == {"classes"} and isinstance(entry["classes"], list)):
        return _category(where, entry.get("values", entry.get("classes")), missing)
    if keys == {"classes"}:
        count = entry["classes"]
        if isinstance(count, bool) or not isinstance(count, int) or not 2 <= count <= MOST_CLASSES:
            raise DataError(
                f"{where}: classes must be a list of labels or a whole number from 2 to {MOST_CLASSES}, not {count!r}."
            )
        if missing not in (None, DROP):
            raise DataError(f'{where}: missing must be "drop", not {missing!r}: a missing label is not filled in.')
        return Classes(count, missing)
    if {"min", "max"} <= keys <= {"min", "max", "log"}:
        low, high, log = entry["min"], entry["max"], entry.get("log", False)
        if not _finite(low) or not _finite(high) or not low < high or not isinstance(log, bool):
            raise DataError(f"{where}: min and max must be finite numbers, min below max, and log true or false.")
        if missing not in (None, DROP) and not (_finite(missing) and low <= missing <= high):
            raise DataError(f'{where}: missing must be "drop" or a number from min to max, not {missing!r}.')
        return Number(float(low), float(high), log, missing)
    if "text" in keys <= {"text", "buckets", "pairs"}:
        return _text(where, entry, missing)
    raise DataError(
        f"{where}: declare min and max (and log), or values, or classes, or text = true; found "
        f"{', '.join(sorted(keys)) or 'nothing'}."
    )


def _category(where: str, values: object, missing: object) -> Category:
    if not isinstance(values, list) or not values or any(isinstance(v, dict | list) for v in values):
        raise DataError(f"{where}: values must be a list of texts or numbers with at least one entry.")
    texts = tuple(str(v).strip() for v in values)
    if len(set(texts)) < len(texts):
        raise DataError(f"{where}: a value appears twice in values.")
    if missing is None or missing == DROP:
        return Category(texts, missing)
    if str(missing) not in texts:
        raise DataError(f'{where}: missing must be "drop" or one of the values, not {missing!r}.')
    return Category(texts, str(missing))


def _finite(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _text(where: str, entry: dict[str, object], missing: object) -> Text:
    if missing not in (None, DROP):
        raise DataError(f'{where}: missing must be "drop" for a text, not {missing!r}: an empty text has no words.')
    buckets, pairs = entry.get("buckets", BUCKETS), entry.get("pairs", False)
    if entry["text"] is not True or not isinstance(pairs, bool):
        raise DataError(f"{where}: write text = true, and pairs as true or false.")
    if isinstance(buckets, bool) or not isinstance(buckets, int) or not 2 <= buckets <= MOST_BUCKETS:
        raise DataError(f"{where}: buckets must be a whole number from 2 to {MOST_BUCKETS}, not {buckets!r}.")
    return Text(buckets, pairs, None if missing is None else DROP)
