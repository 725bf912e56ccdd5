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
    [income]                    # the label: its values in the order of the class numbers, or `classes = 2` for 0 and 1,
    values = ["<=50K", ">50K"]  # or min and max of a regression target, which is scaled to [0, 1]
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

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Number:
    """A column of numbers with declared bounds."""

    low: float
    high: float
    log: bool = False  # scale by sign(v) log(1 + |v|)

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

    def index(self, cells: Iterable[str]) -> NDArray[np.int64]:
        """Return the index of every cell among the values, or len(values) for any other value."""
        place = {value: i for i, value in enumerate(self.values)}
        return np.array([place.get(cell, len(place)) for cell in cells], dtype=np.int64)


@dataclass(frozen=True)
class Classes:
    """A label column of whole numbers below `count`."""

    count: int


Column = Number | Category | Classes
Schema = Mapping[str, Column]


def encode(cells: Any, schema: Schema) -> Tensor:
    """Encode the declared columns of a pandas table as float32 [rows, slots], in the order of the schema."""
    out = []
    for name, column in schema.items():
        if isinstance(column, Number):
            out.append(2 * column.unit(numbers(name, cells[name]))[:, None] - 1)
        elif isinstance(column, Category):
            indices = column.index(words(name, cells[name], column.values))
            out.append(np.eye(len(column.values) + 1)[indices])
        else:
            raise DataError(f"column {name!r}: classes is for the label; declare min and max, or values.")
    return torch.from_numpy(np.concatenate(out, axis=1).astype(np.float32))


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
            f"column {name!r}, row {row + 1}: the value is missing. Fill it in or drop the row before loading "
            '(for a category, "" can be declared as a value).'
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
    return declared


def columns(declared: Mapping[str, Any], where: str) -> dict[str, Column]:
    """Return the columns that the tables of a schema declare; `where` names the schema in error messages."""
    return {name: _column(f"{where}, [{name}]", entry) for name, entry in declared.items()}


def _column(where: str, entry: object) -> Column:
    if not isinstance(entry, dict):
        raise DataError(f"{where}: write a table, such as [{where.split('[')[-1]} with min = 0 and max = 1.")
    keys = set(entry)
    if keys == {"values"}:
        values = entry["values"]
        if not isinstance(values, list) or not values or any(isinstance(v, dict | list) for v in values):
            raise DataError(f"{where}: values must be a list of texts or numbers with at least one entry.")
        texts = tuple(str(v).strip() for v in values)
        if len(set(texts)) < len(texts):
            raise DataError(f"{where}: a value appears twice in values.")
        return Category(texts)
    if keys == {"classes"}:
        count = entry["classes"]
        if isinstance(count, bool) or not isinstance(count, int) or not 2 <= count <= MOST_CLASSES:
            raise DataError(f"{where}: classes must be a whole number from 2 to {MOST_CLASSES}, not {count!r}.")
        return Classes(count)
    if {"min", "max"} <= keys <= {"min", "max", "log"}:
        low, high, log = entry["min"], entry["max"], entry.get("log", False)
        plain = all(isinstance(v, int | float) and not isinstance(v, bool) and math.isfinite(v) for v in (low, high))
        if not plain or not low < high or not isinstance(log, bool):
            raise DataError(f"{where}: min and max must be finite numbers, min below max, and log true or false.")
        return Number(float(low), float(high), log)
    raise DataError(
        f"{where}: declare min and max (and log), or values, or classes; found {', '.join(sorted(keys)) or 'nothing'}."
    )
