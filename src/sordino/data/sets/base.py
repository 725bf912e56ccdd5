"""The description of a benchmark: its files, where they come from and how they are read.

A file with a known sha256 is verified wherever it was found. If the checksum of a public file is not known, the reader
verifies a sha256 of the parsed records instead. So a named dataset is exactly that dataset, or an error, which is why
its records can be treated as public.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sordino.core.errors import DataError
from sordino.core.rng import Stream
from sordino.data.dataset import Dataset

Halves = tuple[Tensor, Tensor, Tensor, Tensor]  # x and y of the training part, then of the test part


@dataclass(frozen=True)
class File:
    """One file of a dataset."""

    path: str  # relative to a data folder, such as "adult/adult.csv.gz"
    sha256: str | None = None  # checksum of the file; None: the reader verifies the content
    url: str | None = None  # None: cannot be downloaded
    flat: bool = True  # whether it may also lie in the data folder itself


@dataclass(frozen=True)
class FileLayout:
    """A complete set of files for a dataset, and the function that reads it."""

    files: tuple[File, ...]
    read: Callable[[list[Path]], Dataset]  # takes the paths of the files, in order

    @property
    def downloads(self) -> bool:
        """Whether all files can be downloaded."""
        return all(f.url is not None for f in self.files)


@dataclass(frozen=True)
class DatasetSource:
    """A benchmark and the ways to obtain it."""

    name: str
    task: str
    records: tuple[int, int]  # number of training and of test records
    clients: int | None  # number of natural clients in the training part, if it has any
    licence: str
    origin: str  # where it can be obtained, as a sentence
    layouts: tuple[FileLayout, ...]  # tried in order
    note: str = ""  # a caveat for the listing


def digest(*arrays: NDArray[Any]) -> str:
    """Return the sha256 of the bytes of the arrays, one after the other."""
    hasher = hashlib.sha256()
    for array in arrays:
        hasher.update(np.ascontiguousarray(array).tobytes())
    return hasher.hexdigest()


def verify(name: str, paths: Sequence[Path], actual: str, expected: str) -> None:
    """Raise an error unless the checksum of the records is the expected one."""
    if actual != expected:
        files = f"{paths[0]}{' and the files beside it' if len(paths) > 1 else ''}"
        raise DataError(
            f"{files}: the records are not those of {name} (their sha256 is {actual[:16]}..., not {expected[:16]}...). "
            "Fetch it again; to use data of your own, give their path."
        )


def pair(x: NDArray[Any], y: NDArray[Any]) -> tuple[Tensor, Tensor]:
    """Return images and labels as tensors."""
    return torch.from_numpy(np.require(x, requirements=["C", "W"])), torch.from_numpy(y.astype(np.int64))


def fixed_split(records: int, share: float, name: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the indices of training and test records for a source without a split of its own.

    The draw is always the same; round(share * records) records are test records.
    """
    order = Stream.research(0).at("test", name).permutation(records)
    cut = round(share * records)
    return np.sort(order[cut:]), np.sort(order[:cut])


def halves(x: Tensor, y: Tensor, parts: tuple[NDArray[np.int64], NDArray[np.int64]]) -> Halves:
    """Split x and y by the indices of the training and of the test records."""
    train, test = (torch.from_numpy(p) for p in parts)
    return x[train], y[train], x[test], y[test]
