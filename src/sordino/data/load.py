"""Files -> arrays. `mnist` is inside the package; any other name is the path of an .npz file.

An .npz file holds x_train, y_train, x_test, y_test (plain arrays; pickled objects are never opened), and may hold
client_train, one client number a training record.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sordino.core.errors import DataError
from sordino.data.clients import checked

MNIST_MEAN, MNIST_STD = 0.1307, 0.3081  # published constants, not fitted here


@dataclass(frozen=True)
class Dataset:
    name: str
    x_train: Tensor
    y_train: Tensor
    x_test: Tensor
    y_test: Tensor
    client_train: NDArray[np.int64] | None = None


def load(name: str, data_dir: str | None = None) -> Dataset:
    if name == "mnist":
        source = resources.files("sordino.data") / "files" / "mnist.npz"
        with resources.as_file(source) as path:
            return _read("mnist", Path(path))
    path = Path(data_dir or ".") / name
    if path.suffix != ".npz" or not path.is_file():
        raise DataError(f"no dataset {name!r}: there is 'mnist', or the path of an .npz file (tried {path}).")
    return _read(path.name, path)


def _read(name: str, path: Path) -> Dataset:
    arrays = {}
    try:
        with path.open("rb") as handle:  # ours to close: numpy leaves it open when the archive is damaged
            file = np.load(handle, allow_pickle=False)
            if not isinstance(file, np.lib.npyio.NpzFile):
                raise ValueError("it holds a single array")
            for key in ("x_train", "y_train", "x_test", "y_test", "client_train"):
                if key in file.files:
                    arrays[key] = file[key]
    except Exception as error:  # a damaged archive fails in many ways
        raise DataError(f"cannot read {path}: {(str(error) or type(error).__name__).splitlines()[0]}") from error
    missing = [k for k in ("x_train", "y_train", "x_test", "y_test") if k not in arrays]
    if missing:
        raise DataError(f"{path} lacks {', '.join(missing)}.")
    client = arrays.get("client_train")
    if client is not None and (client.dtype.kind not in "iu" or client.shape != arrays["y_train"].shape[:1]):
        raise DataError(f"{path}: client_train must hold one whole number a training record.")
    train = checked(f"{name}, training part", arrays["x_train"], arrays["y_train"])
    test = checked(f"{name}, test part", arrays["x_test"], arrays["y_test"])
    return Dataset(name, *train, *test, client_train=client)


def images(x: Tensor) -> Tensor:
    """uint8 pictures [n, h, w] -> float32 [n, 1, h, w], scaled by MNIST's published mean and deviation."""
    if x.dtype != torch.uint8:
        return x
    x = x[:, None] if x.ndim == 3 else x
    return (x.float() / 255 - MNIST_MEAN) / MNIST_STD
