"""Tables in memory as pandas tables: pandas and polars DataFrames, Hugging Face Datasets, dict records.

polars and datasets are optional and never imported here: their objects are told by the name of their module.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sordino.core.errors import DataError
from sordino.data import torch_data
from sordino.data.schema import Classes


def module(value: Any) -> str:
    """Return the name of the package that a value comes from."""
    return type(value).__module__.partition(".")[0]


def refuse_unread(data: Any) -> None:
    """Refuse objects that must be read first, and a DatasetDict, whose parts are no clients."""
    home, kind = module(data), type(data).__name__
    if home == "polars" and kind == "LazyFrame":
        raise DataError("a polars LazyFrame has no rows yet: pass frame.collect().")
    if home == "datasets" and "Iterable" in kind:
        raise DataError(f"a Hugging Face {kind} is a stream, whose records have no numbers: load it without streaming.")
    if home == "datasets" and kind.endswith("DatasetDict"):
        raise DataError("a DatasetDict holds parts, not clients: pass data['train'] as clients, data['test'] as test.")


def is_table(item: Any) -> bool:
    """Return whether an object is a table: rows with named columns."""
    if module(item) in ("pandas", "polars"):
        return type(item).__name__ in ("DataFrame", "LazyFrame")
    if module(item) == "datasets":
        return True
    if isinstance(item, list):
        return bool(item) and all(isinstance(row, Mapping) for row in item)
    if not torch_data.is_dataset(item):
        return False
    data = torch_data.unwrapped("clients", item)
    return bool(len(data)) and isinstance(data[0], Mapping)


def cells(who: str, item: Any) -> Any:
    """Return a table as a pandas DataFrame whose columns have text as names."""
    refuse_unread(item)
    out = _converted(who, item)
    out = out.set_axis([str(c) for c in out.columns], axis=1)
    if repeated := [str(c) for c in out.columns[out.columns.duplicated()]]:
        raise DataError(f"{who}: column {repeated[0]!r} appears twice. Rename one of them.")
    if not len(out):
        raise DataError(f"{who} has no records. Leave it out.")
    return out


def _converted(who: str, item: Any) -> Any:
    import pandas as pd

    home = module(item)
    if home == "pandas":
        return item.reset_index(drop=True)
    if home == "polars":
        return pd.DataFrame({str(name): item[name].to_numpy() for name in item.columns})
    if home == "datasets":
        item = item.with_format(None)
        if not any(type(feature).__name__ == "Image" for feature in item.features.values()):
            return item.to_pandas()
    rows = item if isinstance(item, list) else torch_data.records(who, item)
    keys = rows[0].keys() if rows else ()
    odd = next((i for i, row in enumerate(rows) if not isinstance(row, Mapping) or row.keys() != keys), None)
    if odd is not None:
        raise DataError(f"{who}: record {odd} has other keys than record 0.")
    return pd.DataFrame({str(k): [_plain(row[k]) for row in rows] for k in keys})


def _plain(value: Any) -> Any:
    """Return a tensor of one number as that number; anything else is returned unchanged."""
    return value.item() if hasattr(value, "item") and getattr(value, "ndim", 1) == 0 else value


def declared_label(item: Any, label: str | None) -> Classes | None:
    """Return the classes that a Hugging Face Dataset declares for its label, if it does."""
    feature = item.features.get(label) if module(item) == "datasets" else None
    count = getattr(feature, "num_classes", None)
    return Classes(count) if isinstance(count, int) and count >= 2 else None
