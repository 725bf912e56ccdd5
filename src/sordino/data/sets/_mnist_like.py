"""Datasets in the format of MNIST: four idx files, or one .npz file with their arrays."""

from __future__ import annotations

import gzip
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sordino.core.errors import DataError
from sordino.data.dataset import Dataset, Scaled
from sordino.data.npz import PARTS, arrays
from sordino.data.sets.base import File, FileLayout, digest, pair, verify


def layouts(
    name: str, content: str, names: tuple[str, ...], mean: float, std: float, url: str | None
) -> tuple[FileLayout, ...]:
    """Return the layouts of a dataset in the format of MNIST.

    Args:
        name: Name of the dataset.
        content: sha256 of pixels and labels, training part first.
        names: Names of the classes.
        mean: Public constant that is subtracted from the pixels, scaled to [0, 1].
        std: Public constant that the result is divided by.
        url: Address of the idx files, if they can be downloaded.
    """
    folder = name.replace("-", "_")

    def dataset(paths: list[Path], parts: Sequence[NDArray[Any] | None]) -> Dataset:
        present = [p for p in parts if p is not None]
        verify(name, paths, digest(*present), content)
        train, test = pair(present[0], present[1]), pair(present[2], present[3])
        return Dataset(
            name, *train, *test, classes=len(names), names=names, public=True, prepare=Scaled((mean,), (std,))
        )

    def npz(paths: list[Path]) -> Dataset:
        members = arrays(paths[0], PARTS)
        return dataset(paths, [members.get(k) for k in PARTS])

    def unpacked(paths: list[Path]) -> Dataset:
        return dataset(paths, [idx(p) for p in paths])

    return (
        FileLayout((File(f"{folder}/{folder}.npz"),), npz),
        FileLayout(idx_files(folder, url), unpacked),
        FileLayout(idx_files(folder, None, ""), unpacked),
    )


def idx(path: Path) -> NDArray[np.uint8]:
    """Read an idx file of bytes, plain or gzipped: http://yann.lecun.com/exdb/mnist, "the IDX file format"."""
    try:
        raw = path.read_bytes()
        raw = gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw
        if raw[:3] != b"\0\0\x08":
            raise ValueError("it is not an idx file of bytes")
        shape = struct.unpack(f">{raw[3]}I", raw[4 : 4 + 4 * raw[3]])
        return np.frombuffer(raw, np.uint8, offset=4 + 4 * raw[3]).reshape(shape)
    except (OSError, EOFError, zlib.error, ValueError, IndexError, struct.error) as error:
        raise DataError(f"cannot read {path}: {str(error).splitlines()[0]}") from error


def idx_files(folder: str, url: str | None, suffix: str = ".gz") -> tuple[File, ...]:
    """Return the four files of an MNIST-like dataset, in a folder of its own since several datasets use these names."""
    names = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
    full = [f"{n}-ubyte{suffix}" for n in names]
    return tuple(File(f"{folder}/{n}", url=None if url is None else f"{url}/{n}", flat=False) for n in full)
