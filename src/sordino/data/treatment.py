"""What a schema does to single cells, and how many of them it changes.

Missing values are filled in, or their rows left out, as the schema declares; numbers are clamped to their bounds, and
categories that are not declared share one slot. The counts are exact figures of private cells: they are for the owner
of the table alone, and no public file may hold them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sordino.data import schema as schemas
from sordino.data.hashed_text import Text
from sordino.data.schema import DROP, Category, Column, Number

MISSING = ("", "na", "n/a", "nan", "null", "none", "?", "<na>", "nat")  # in upper or lower case


@dataclass(frozen=True)
class Treated:
    """A table without missing values where the schema says what to do about them."""

    cells: Any
    dropped: NDArray[np.bool_]  # rows to leave out; a placeholder stands for what they lack
    gaps: dict[str, int]  # column -> number of missing values that were filled in
    lacking: dict[str, int]  # column -> number of rows to leave out because of it


def missing(cells: Any, column: Column | None = None) -> NDArray[np.bool_]:
    """Return which cells are missing: empty ones, and words such as NA unless the column declares them as values."""
    values = column.values if isinstance(column, Category) else ()
    texts = (None if c is None or c != c else str(c).strip() for c in cells.tolist())
    return np.array([t is None or (t.lower() in MISSING and t not in values) for t in texts], dtype=np.bool_)


def treat(cells: Any, declared: Mapping[str, Column]) -> Treated:
    """Fill in missing values as the columns declare, and mark the rows to leave out."""
    cells, dropped = cells.copy(deep=False), np.zeros(len(cells), np.bool_)
    gaps: dict[str, int] = {}
    lacking: dict[str, int] = {}
    for name, column in declared.items():
        if column.missing is None or name not in cells.columns or not (gap := missing(cells[name], column)).any():
            continue
        (lacking if column.missing == DROP else gaps)[name] = int(gap.sum())
        if column.missing == DROP:
            dropped |= gap
        cells[name] = fill(cells[name], gap, column)
    return Treated(cells, dropped, gaps, lacking)


def fill(cells: Any, gap: NDArray[np.bool_], column: Column) -> Any:
    """Return the cells with the declared value where one is missing or, if none is declared, with a valid one."""
    value = column.missing
    if value is None or value == DROP:
        value = column.low if isinstance(column, Number) else column.values[0] if isinstance(column, Category) else 0
    filled = cells.astype(object)
    filled[gap] = value
    return filled


def outside(name: str, cells: Any, column: Column) -> NDArray[np.bool_]:
    """Return which cells lie outside the declared bounds or are not among the declared values."""
    if isinstance(column, Number):
        values = schemas.numbers(name, cells)
        return (values < column.low) | (values > column.high)
    if isinstance(column, Category):
        return np.equal(column.index(schemas.words(name, cells, column.values)), len(column.values))
    if isinstance(column, Text):
        return np.zeros(len(cells), np.bool_)
    values = schemas.numbers(name, cells)
    return np.asarray((values < 0) | (values >= column.count) | (values % 1 != 0), dtype=np.bool_)


def owner_notes(what: str, treated: Treated, declared: Mapping[str, Column]) -> tuple[str, ...]:
    """Return, for the owner of the table alone, how many rows are left out and how many values are changed.

    Args:
        what: Name of the table.
        treated: The table after `treat`.
        declared: The columns of the model and, if it is a number, the label.
    """
    rows, keep = len(treated.dropped), ~treated.dropped
    counts = {n: int((outside(n, treated.cells[n], c) & keep).sum()) for n, c in declared.items()}
    clamped = {n: k for n, k in counts.items() if k and isinstance(declared[n], Number)}
    other = {n: k for n, k in counts.items() if k and isinstance(declared[n], Category)}
    kinds = (
        (treated.lacking, f"{rows - keep.sum():,} rows are left out, since a value is missing"),
        (treated.gaps, "missing values are filled in"),
        (clamped, "values outside the bounds of the schema are clamped"),
        (other, "values that the schema does not declare share the slot for other values"),
    )
    return tuple(f"{what}, {rows:,} rows: {text} ({_listed(counts)})." for counts, text in kinds if counts)


def _listed(counts: dict[str, int]) -> str:
    return ", ".join(f"{name}: {count:,}" for name, count in counts.items())
