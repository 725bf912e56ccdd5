"""Reading of text tables: .csv and .tsv, plain or compressed (.gz).

The delimiter follows from the header line alone, which is public like all column names, and never from the cells: a
.tsv file has tabs; in a .csv file it is the one of comma, semicolon and tab that stands between the names. Cells stay
text, so that no type is inferred from the data. The decimal mark is a point unless it is declared to be a comma.
"""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from sordino.core.errors import DataError

SUFFIXES = (".csv", ".csv.gz", ".tsv", ".tsv.gz")
DELIMITERS = {",": "commas", ";": "semicolons", "\t": "tabs"}
COMMA = re.compile(r"\s*[+-]?(\d+,\d*|,\d+)([eE][+-]?\d+)?\s*")  # a number with a decimal comma
_QUOTED = re.compile(r'"[^"]*"?')


def read(path: Path) -> Any:
    """Read a text table as a pandas table whose cells are text."""
    import pandas as pd

    try:
        raw = pd.read_csv(
            path, header=None, dtype=str, keep_default_na=False, encoding="utf-8-sig", sep=delimiter(path)
        )
    except pd.errors.EmptyDataError as error:
        raise DataError(f"{path} is empty.") from error
    cells = raw.iloc[1:].reset_index(drop=True)
    cells.columns = pd.Index([str(c).strip() for c in raw.iloc[0]])
    return cells


def delimiter(path: Path) -> str:
    """Return the delimiter of a text table by its name and its header line."""
    if path.name.lower().endswith((".tsv", ".tsv.gz")):
        return "\t"
    header = _QUOTED.sub("", _header(path))
    there = [mark for mark in DELIMITERS if mark in header]
    if len(there) > 1:
        names = " and ".join(DELIMITERS[mark] for mark in there)
        raise DataError(
            f"{path}: the header line, which decides the delimiter, has {names}. Put column names that contain one of "
            'them into quotes ("..."), or rename them.'
        )
    return there[0] if there else ","


def _header(path: Path) -> str:
    """Return the first line that is not empty."""
    compressed = path.name.lower().endswith(".gz")
    with gzip.open(path, "rb") if compressed else path.open("rb") as file:
        for line in file:
            if text := line.decode("utf-8-sig").strip("\r\n"):
                return text
    return ""


def check_decimal(decimal: str) -> None:
    """Raise DataError unless the decimal mark is a point or a comma."""
    if decimal not in (".", ","):
        raise DataError(f"decimal must be '.' or ',', not {decimal!r}.")


def with_points(cells: Any, names: Iterable[str], decimal: str) -> Any:
    """Return the table with decimal points in the columns of numbers, where commas are declared.

    A point in such a column is refused: it could mark thousands, and 1.234 would be read as a number 1000 times too
    small.
    """
    if decimal == ".":
        return cells
    out = cells.copy()
    for name in names:
        if cells[name].dtype.kind in "iufb":
            continue
        texts = [str(v) for v in cells[name]]
        dotted = next((i for i, text in enumerate(texts) if "." in text), None)
        if dotted is not None:
            raise DataError(
                f"column {name!r}, row {dotted + 1}: {texts[dotted]!r} has a point where decimal = ',' is declared. "
                "Write numbers as 1234,5, without a mark for thousands."
            )
        out[name] = [text.replace(",", ".") if COMMA.fullmatch(text) else text for text in texts]
    return out
