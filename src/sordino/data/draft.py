"""Drafts of schemas, and tests of schemas against a table: the work of its owner, before anything is trained.

A draft guesses what kind of column each is: from its name and, if the owner declares a sample, from the first rows. It
never holds a bound or a category: those that are found in a table are private, and the owner must declare others. The
test counts cells exactly, so what it returns is for the owner alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sordino.core.errors import DataError
from sordino.data import schema as schemas
from sordino.data.hashed_text import Text
from sordino.data.schema import DROP, TO_DECLARE, Category, Column, Number
from sordino.data.tables import require_column
from sordino.data.treatment import fill, missing, outside

NUMBER = re.compile(  # words of a name that suggest a number
    "age|amount|area|balance|bill|bmi|cost|count|credit|days|dose|duration|fare|gain|height|hours?|income|length|level|"
    "loss|mean|minutes|months?|num|number|pay|percent|pressure|price|rate|ratio|salary|score|size|speed|sum|"
    "temperature|time|total|value|volume|wage|weight|width|years?"
)
CATEGORY = re.compile(  # words of a name that suggest a category
    "category|city|class|code|colou?r|country|diagnosis|education|ethnicity|flag|gender|grade|group|has|housing|is|job|"
    "kind|language|marital|nationality|occupation|product|race|reason|region|relationship|sex|smoker|state|status|type"
)
ID = re.compile("id|uuid|ssn|email|phone|name|surname")  # words of a name that suggest a person
KINDS = {
    "number": f'min = "{TO_DECLARE}"\nmax = "{TO_DECLARE}"\n# log = true',
    "category": f'values = "{TO_DECLARE}"  # such as ["a", "b"]; any other value gets a slot of its own',
    "unknown": f'min = "{TO_DECLARE}"  # a number; for a category, write values = ["a", "b"] instead of min and max\n'
    f'max = "{TO_DECLARE}"',
    "label": f'values = "{TO_DECLARE}"  # the labels in the order of the class numbers, or classes = 2 for 0 and 1,\n'
    "# or min and max of a regression target",
}


def draft(table: str, cells: Any, label: str | None, sample: int) -> str:
    """Return a schema to be completed, as the text of a TOML file.

    Args:
        table: Name of the table.
        cells: The table as text; only its header and its first `sample` rows are looked at.
        label: Name of the label column, or None.
        sample: Number of first rows that the owner declares may be looked at.
    """
    first = cells.head(sample)
    names = [str(c) for c in cells.columns]
    if label is not None:
        require_column(table, label, names)
    rows = f"the header and the first {len(first)} rows" if sample else "the header alone"
    lines = [
        f"# Schema of {table}, to be completed. Looked at: {rows}. No bound and no category was taken from it.",
        f'# Replace each "{TO_DECLARE}" by what you know without the table: bounds and categories count as public.',
        "# Remove the columns that the model is not to get, such as names and numbers of people.",
        f'# Where values are missing, add missing = "{DROP}", which leaves the row out, or the value to fill in.',
    ]
    for name in names:
        kind = "label" if name == label else _guessed(name, first[name] if sample else None)
        head = f"[{name if re.fullmatch(r'[A-Za-z0-9_-]+', name) else json.dumps(name)}]"
        if kind == "id":
            body = "\n".join(f"# {line}" for line in (head, *KINDS["category"].splitlines()))
            lines += ["", f"# {name!r} looks like an identifier: leave it out, or name it as user_column", body]
        else:
            lines += ["", head, KINDS[kind]]
    return "\n".join(lines) + "\n"


def _guessed(name: str, cells: Any) -> str:
    """Return what kind of column this is: by the words of its name or, if there are cells, by these."""
    words = re.findall(r"[a-z]+", re.sub(r"([a-z])([A-Z])", r"\1 \2", name).lower())
    if any(ID.fullmatch(w) for w in words):
        return "id"
    if cells is not None and len(filled := cells[~missing(cells)]):
        try:
            schemas.numbers(name, filled)
        except DataError:
            return "category"
        return "number"
    both = (("category", CATEGORY), ("number", NUMBER))
    kinds = [kind for kind, pattern in both if any(pattern.fullmatch(w) for w in words)]
    return kinds[0] if len(kinds) == 1 else "unknown"


@dataclass(frozen=True)
class Compared:
    """What a column of a table holds beside its declaration."""

    column: str
    declared: str  # the declaration in words
    missing: int = 0
    treatment: str = ""  # what happens where a value is missing; empty if none is
    outside: int = 0  # values that are clamped, or that share the slot for other values
    problem: str | None = None  # why a run would refuse the column


def compare(table: str, cells: Any, declared: Mapping[str, Column], label: str | None) -> list[Compared]:
    """Return how each declared column fits the table."""
    if label is not None:
        require_column(table, label, cells.columns)
    return [_compare(table, cells, name, column, name == label) for name, column in declared.items()]


def _compare(table: str, cells: Any, name: str, column: Column, label: bool) -> Compared:
    if isinstance(column, Number):
        words = f"number from {column.low:g} to {column.high:g}{' (log)' if column.log else ''}"
    elif isinstance(column, Category):
        words = f"{len(column.values)} values"
    elif isinstance(column, Text):
        words = f"text in {column.buckets} buckets"
    else:
        words = f"{column.count} classes"
    try:
        require_column(table, name, cells.columns)
        gaps = missing(cells[name], column)
        filled = fill(cells[name], gaps, column)
        outer = int((outside(name, filled, column) & ~gaps).sum())
    except DataError as error:
        return Compared(name, words, problem=str(error))
    lacking, problem = int(gaps.sum()), None
    treatment = "left out" if column.missing == DROP else f"filled in by {column.missing}"
    if lacking and column.missing is None:
        treatment = "an error"
        problem = f'{lacking:,} values are missing: declare missing = "{DROP}", or the value to fill in.'
    elif label and outer and not isinstance(column, Number):
        problem = f"{outer:,} labels are not declared."
    return Compared(name, words, lacking, treatment if lacking else "", outer, problem)
