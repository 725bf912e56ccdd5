"""CIFAR-10: Krizhevsky (2009), "Learning multiple layers of features from tiny images".

Read from the archive of the binary version (the Python version is pickled and never opened), or from six .npz files of
one batch each. Instead of a checksum of the archive, pixels and labels of every batch are verified after reading.
"""

from __future__ import annotations

import tarfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sordino.core.errors import DataError
from sordino.data.dataset import Dataset, Scaled
from sordino.data.npz import arrays
from sordino.data.sets.base import DatasetSource, File, FileLayout, digest, pair, verify

__all__ = ["SOURCE"]

URL = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
NAMES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
CONTENT = (  # sha256 of pixels [10000, 32, 32, 3] and labels, for the five training batches and the test batch
    "8350d89ba6404c270d263d84bf037e74b0158eecac79f27405efcf23445a6997",
    "28d2d506ff2e052a3c902ac74931514d4c22d54b3f23622088bee441ab096cf0",
    "e56532de152c7a77fc2a722499682f2699ce5177bbfac2ed2e415096184fa1d9",
    "bb996a8ffff861dd5cca88c397fdfb884f0c482c5588bd32cea3dc7b648709bb",
    "efb6334c7c1f88ac69032959408d9eeccb983002e83119b66de7309d3d2c7915",
    "8193b3fbce55bec361cd1b8fd4880cb1649832dc4d6de6da1e7a21847a4843aa",
)
BATCHES = (*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin")
Batch = tuple[NDArray[Any], NDArray[Any]]  # pixels [n, 32, 32, 3], labels


def _npz(paths: list[Path]) -> Dataset:
    batches = []
    for path, part in zip(paths, ("train",) * 5 + ("test",), strict=True):
        members = arrays(path)
        if f"x_{part}" not in members or f"y_{part}" not in members:
            raise DataError(f"{path} lacks x_{part} or y_{part}.")
        batches.append((members[f"x_{part}"], members[f"y_{part}"]))
    return _dataset(paths, batches)


def _archive(paths: list[Path]) -> Dataset:
    """Read the archive, whose records have 1 + 3072 bytes: the label, then the red, green and blue planes by rows."""
    batches = []
    try:
        with tarfile.open(paths[0], "r:*") as tar:
            files = {Path(m.name).name: m for m in tar.getmembers() if m.isfile()}
            for name in BATCHES:
                member = tar.extractfile(files[name]) if name in files else None
                if member is None:
                    raise DataError(f"{paths[0]} lacks {name}; the binary version of CIFAR-10 has it.")
                rows = np.frombuffer(member.read(), np.uint8).reshape(-1, 3073)
                batches.append((rows[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1), rows[:, 0]))
    except (tarfile.TarError, OSError, EOFError, zlib.error, ValueError) as error:
        raise DataError(f"cannot read {paths[0]}: {str(error).splitlines()[0]}") from error
    return _dataset(paths * 6, batches)


def _dataset(paths: list[Path], batches: list[Batch]) -> Dataset:
    for path, (x, y), expected in zip(paths, batches, CONTENT, strict=True):
        verify("cifar10", [path], digest(x, y), expected)
    x = np.concatenate([b[0] for b in batches]).transpose(0, 3, 1, 2)
    y = np.concatenate([b[1] for b in batches])
    return Dataset(
        "cifar10", *pair(x[:50_000], y[:50_000]), *pair(x[50_000:], y[50_000:]), classes=10, names=NAMES, public=True,
        prepare=Scaled((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    )  # fmt: skip


SOURCE = DatasetSource(
    name="cifar10",
    task="classification",
    records=(50_000, 10_000),
    clients=None,
    licence="none stated; to be cited",
    origin="It is at https://www.cs.toronto.edu/~kriz/cifar.html (the binary version).",
    layouts=(
        FileLayout(
            tuple(File(f"cifar10/cifar10_{p}.npz") for p in (*(f"train_{i}" for i in range(1, 6)), "test")), _npz
        ),
        FileLayout((File("cifar10/cifar-10-binary.tar.gz", url=URL),), _archive),
    ),
)
