"""What a benchmark is: which files it is made of, where they come from and how they are read.

A file with a sha256 is checked against it wherever it lies. Where the checksum of a public file is not known, its
content is: the reader checks a sha256 of the records after parsing. A named dataset is exactly that dataset, or an
error; that is what allows to call it public."""

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
    path: str  # below a data folder: "adult/adult.csv.gz"
    sha256: str | None = None  # of the file; None: the reader checks the content
    url: str | None = None
    flat: bool = True  # it may also lie in the data folder itself


@dataclass(frozen=True)
class FileLayout:
    """One complete way to have a dataset."""

    files: tuple[File, ...]
    read: Callable[[list[Path]], Dataset]

    @property
    def downloads(self) -> bool:
        return all(f.url is not None for f in self.files)


@dataclass(frozen=True)
class DatasetSource:
    name: str
    task: str
    records: tuple[int, int]  # training, test
    clients: int | None  # natural ones, in training
    licence: str
    origin: str  # where it can be had, in words
    layouts: tuple[FileLayout, ...]
    note: str = ""  # a caveat for the listing


def digest(*arrays: NDArray[Any]) -> str:
    found = hashlib.sha256()
    for array in arrays:
        found.update(np.ascontiguousarray(array).tobytes())
    return found.hexdigest()


def verify(name: str, paths: Sequence[Path], found: str, expected: str) -> None:
    if found != expected:
        files = f"{paths[0]}{' and the files beside it' if len(paths) > 1 else ''}"
        raise DataError(
            f"{files}: the records are not those of {name} (their sha256 is {found[:16]}..., not {expected[:16]}...). "
            "Fetch it again; data of one's own goes in by its path."
        )


def pair(x: NDArray[Any], y: NDArray[Any]) -> tuple[Tensor, Tensor]:
    """Pictures and labels as tensors."""
    return torch.from_numpy(np.require(x, requirements=["C", "W"])), torch.from_numpy(y.astype(np.int64))


def fixed_split(records: int, share: float, name: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(train, test) where the source has no split of its own: always the same draw, round(share records) of them."""
    order = Stream.research(0).at("test", name).permutation(records)
    cut = round(share * records)
    return np.sort(order[cut:]), np.sort(order[:cut])


def halves(x: Tensor, y: Tensor, parts: tuple[NDArray[np.int64], NDArray[np.int64]]) -> Halves:
    train, test = (torch.from_numpy(p) for p in parts)
    return x[train], y[train], x[test], y[test]
