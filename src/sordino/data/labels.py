"""Class numbers of the label column of a table: by declaration, or read from the cells.

Labels are declared by the key `classes` or by the schema. Undeclared labels are read from the column, and what was read
counts as public, which the sentence of the guarantee says:

- whole numbers from 0 on are class numbers: "the number of classes";
- no/yes, false/true, n/y and f/t, in upper or lower case, are 0 and 1: "the set of labels";
- other texts, and whole numbers that do not begin at 0, are numbered in sorted order: "the set of labels";
- a number with a decimal point makes the label the target of a regression.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sordino.core.errors import DataError
from sordino.data import schema as schemas
from sordino.data.dataset import class_count
from sordino.data.schema import Category, Classes, Column, Number

PAIRS = (("no", "yes"), ("false", "true"), ("n", "y"), ("f", "t"))
MOST_LABELS = 100  # more texts than this are rather names or ids than labels
KIND, NUMBER, SET = "whether the label is a class or a number", "the number of classes", "the set of labels"


@dataclass(frozen=True)
class Target:
    """The labels of one table."""

    y: Tensor
    task: str
    classes: int | None = None
    names: tuple[str, ...] = ()
    assumed: tuple[str, ...] = ()  # what was read from the labels and counts as public
    notes: tuple[str, ...] = ()
    owner_notes: tuple[str, ...] = ()  # for the owner alone


def target(what: str, name: str, cells: Any, column: Column | None) -> Target:
    """Return the labels of a table.

    Args:
        what: Name of the table in error messages.
        name: Name of the label column.
        cells: The label column.
        column: Declaration of the label, or None.
    """
    if isinstance(column, Category):
        return _named(name, cells, column.values)
    if isinstance(column, Number):
        unit = column.unit(schemas.numbers(name, cells))
        return Target(torch.from_numpy(unit.astype(np.float32)), "regression")
    if column is None and cells.dtype.kind not in "iufb" and _all_text(name, cells):
        return _read(name, cells)
    values = schemas.numbers(name, cells)
    text = cells.dtype.kind not in "iufb" and any("." in str(c) or "e" in str(c).lower() for c in cells)
    if column is None and (cells.dtype.kind == "f" or text):
        return Target(torch.from_numpy(values.astype(np.float32)), "regression", assumed=(KIND,))
    if not np.array_equal(values, np.floor(values)) or np.abs(values).max() > 2**53:
        raise DataError(f"column {name!r}: labels must be whole numbers 0, 1, 2, ...; or declare min and max.")
    y = values.astype(np.int64)
    if column is None and y.min() != 0 and 1 < len(np.unique(y)) <= MOST_LABELS:
        return _read(name, cells)
    declared = column.count if isinstance(column, Classes) else None
    classes, notes = class_count(f"{what}, column {name!r}", y, declared)
    assumed = (*((KIND,) if column is None else ()), *((NUMBER,) if notes else ()))
    return Target(torch.from_numpy(y), "classification", classes, (), assumed, notes)


def _named(name: str, cells: Any, values: tuple[str, ...]) -> Target:
    """Return labels by their place among the values; upper and lower case are the same in pairs such as no and yes."""
    texts = schemas.words(name, cells, values)
    if len(values) == len({v.lower() for v in values}) and _pair(set(values)):
        labels = Category(tuple(v.lower() for v in values)).index([t.lower() for t in texts])
    else:
        labels = Category(values).index(texts)
    odd = np.flatnonzero(labels == len(values))
    if len(odd):
        row = int(odd[0])
        raise DataError(f"column {name!r}, row {row + 1}: {cells.iloc[row]!r} is not among the declared label values.")
    return Target(torch.from_numpy(labels), "classification", len(values), values)


def _read(name: str, cells: Any) -> Target:
    """Return labels by their place among those that the column holds, in sorted order; the order of PAIRS if one fits.

    The set of labels then counts as public, since one label more would change the model and the numbers of others.
    """
    texts = schemas.words(name, cells)
    distinct = set(texts)
    if not (pair := _pair(distinct)) and not 2 <= len(distinct) <= MOST_LABELS:
        many = "one label alone" if len(distinct) == 1 else f"more than {MOST_LABELS} different texts"
        raise DataError(
            f'column {name!r} holds {many}. Declare the labels by classes = ["...", "..."], or name another column.'
        )
    whole = all(re.fullmatch(r"-?[0-9]{1,18}", t) for t in distinct)
    values = pair or tuple(sorted(distinct, key=int) if whole else sorted(distinct))
    listed = ", ".join(f'"{v}"' for v in values)
    return Target(
        torch.from_numpy(Category(values).index([t.lower() for t in texts] if pair else texts)),
        "classification",
        len(values),
        values,
        (KIND, SET),
        ("the set of labels was read from the labels themselves: declare it by classes = [...]",),
        (f"the labels of column {name!r} were numbered in this order: classes = [{listed}] declares them.",),
    )


def _pair(labels: set[str]) -> tuple[str, ...]:
    """Return the pair of PAIRS that these labels belong to, in whatever case; empty if there is none."""
    lower = {label.lower() for label in labels}
    return next((pair for pair in PAIRS if lower <= {*pair}), ())


def _all_text(name: str, cells: Any) -> bool:
    """Return whether no cell holds a number; refuse a column that holds numbers and text, which may be a slip."""
    import pandas as pd

    number = pd.to_numeric(cells, errors="coerce").notna().to_numpy()
    empty = np.array([c is None or c != c or not str(c).strip() for c in cells.tolist()])
    text = ~number & ~empty
    if text.any() and number.any():
        row, other = (int(np.flatnonzero(mask)[0]) for mask in (text, number))
        raise DataError(
            f"column {name!r}, row {row + 1}: {cells.iloc[row]!r} is not a number, but row {other + 1} holds one. "
            'Correct it or, if these are labels, declare them: classes = ["...", "..."].'
        )
    return bool(text.any())
