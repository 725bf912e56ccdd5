"""Records of a torch Dataset or DataLoader, read once into memory.

The method draws its own batches, at random and independently for every record, since its epsilon counts on exactly that
draw. So of a DataLoader only its dataset is taken. A loader that would train on other records than its dataset holds
(by its sampler or by collate_fn) is refused: leaving that out would silently train on something else.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    TensorDataset,
    default_collate,
    default_convert,
)

from sordino.core.errors import DataError

LONG = 2000  # records from which on a progress bar is shown
LOADER_NOTE = (
    "of a DataLoader its dataset was taken: batches and their order are drawn by the method, as its epsilon requires"
)


def is_dataset(item: Any) -> bool:
    """Return whether an item can be read as a torch Dataset or DataLoader: it has numbered records and a length."""
    if isinstance(item, DataLoader | IterableDataset):
        return True
    numbered = hasattr(item, "__getitem__") and hasattr(item, "__len__")
    return numbered and not hasattr(item, "shape") and not isinstance(item, str | bytes | tuple | Mapping)


def records(who: str, item: Any) -> list[Any]:
    """Return the records of a Dataset or DataLoader, after checking that they can be read one by one."""
    data = unwrapped(who, item)
    if not len(data):
        raise DataError(f"{who} has no records. Leave it out.")
    return [data[i] for i in _progress(range(len(data)))]


def unwrapped(who: str, item: Any) -> Any:
    """Return the map-style Dataset of an item; refuse one that cannot be read record by record."""
    if isinstance(item, DataLoader):
        _check_loader(who, item)
        item = item.dataset
    if isinstance(item, IterableDataset):
        raise DataError(
            f"{who} is an IterableDataset, whose records have no numbers, so no batch can be drawn from them at "
            "random. Read it into a list first: list(dataset)."
        )
    return item


def pair(who: str, item: Any) -> tuple[Any, Any]:
    """Return x and y of a Dataset of (x, y) records."""
    data = unwrapped(who, item)
    if isinstance(data, TensorDataset) and len(data.tensors) == 2:
        return data.tensors
    rows = records(who, data)
    if not all(isinstance(row, tuple | list) and len(row) == 2 for row in rows):
        raise DataError(f"{who}: every record of a Dataset must be an (x, y) pair or a dict with the same keys.")
    try:
        return np.stack([np.asarray(row[0]) for row in rows]), np.stack([np.asarray(row[1]) for row in rows])
    except ValueError as error:
        raise DataError(f"{who}: its records differ in shape.") from error


def _check_loader(who: str, loader: DataLoader[Any]) -> None:
    if isinstance(loader.dataset, IterableDataset):
        return
    if loader.collate_fn not in (default_collate, default_convert):
        raise DataError(
            f"{who}: the collate_fn of a DataLoader makes batches of its own, but a method must draw, clip and count "
            "single records. Do its work in the Dataset's __getitem__, and pass the Dataset."
        )
    if type(loader.batch_sampler) not in (BatchSampler, type(None)):
        raise DataError(f"{who}: a DataLoader with its own batch_sampler is refused: {_REASON}")
    sampler = loader.sampler
    whole = isinstance(sampler, RandomSampler) and not sampler.replacement and sampler.num_samples == len(sampler)
    whole = whole and len(sampler) == len(loader.dataset)  # type: ignore[arg-type]
    if type(sampler) is not SequentialSampler and not (whole and type(sampler) is RandomSampler):
        raise DataError(f"{who}: a DataLoader with the sampler {type(sampler).__name__} is refused: {_REASON}")


_REASON = (
    "the method draws every record alike, as its epsilon requires. Pass the Dataset; for some of its records, "
    "torch.utils.data.Subset(dataset, indices)."
)


def _progress(numbers: range) -> Iterable[int]:
    """Show progress on a terminal while many records are read."""
    if len(numbers) < LONG or not sys.stderr.isatty():
        return numbers
    from rich.console import Console
    from rich.progress import track

    return track(numbers, description="reading records", console=Console(stderr=True), transient=True)
