"""Tables of benchmarks: cells as text, and a checksum that does not depend on how the file was packed."""

from __future__ import annotations

import gzip
import hashlib
import zlib
from pathlib import Path
from typing import Any

from sordino.core.errors import DataError


def cells(path: Path, **options: Any) -> Any:
    """Read a pandas table of text."""
    import pandas as pd

    try:
        return pd.read_csv(path, dtype=str, keep_default_na=False, skipinitialspace=True, **options)
    except (OSError, EOFError, zlib.error, gzip.BadGzipFile, ValueError) as error:
        raise DataError(f"cannot read {path}: {(str(error) or type(error).__name__).splitlines()[0]}") from error


def text_digest(table: Any) -> str:
    """Return the sha256 of the cells, row by row."""
    columns = (table.iloc[:, k].tolist() for k in range(table.shape[1]))
    rows = "\n".join(map(",".join, zip(*columns, strict=True)))
    return hashlib.sha256(rows.encode()).hexdigest()
