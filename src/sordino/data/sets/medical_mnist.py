"""Medical MNIST (MedNIST): six kinds of scans, after B. Erickson, Mayo Clinic.

A balanced subset with 3000 training and 600 test images per class, scaled from 64 to 32 pixels (box filter), without
exact duplicates. The source has no split of its own. This prepared file cannot be downloaded.
"""

from __future__ import annotations

from pathlib import Path

from sordino.data.dataset import Dataset, Scaled
from sordino.data.npz import arrays
from sordino.data.sets.base import DatasetSource, File, FileLayout, pair

__all__ = ["SOURCE"]

NAMES = ("AbdomenCT", "BreastMRI", "CXR", "ChestCT", "Hand", "HeadCT")


def _read(paths: list[Path]) -> Dataset:
    a = arrays(paths[0])
    return Dataset(
        "medical-mnist", *pair(a["x_train"], a["y_train"]), *pair(a["x_test"], a["y_test"]),
        classes=6, names=NAMES, public=True, prepare=Scaled(),
    )  # fmt: skip


SOURCE = DatasetSource(
    name="medical-mnist",
    task="classification",
    records=(18_000, 3_600),
    clients=None,
    licence="commonly stated as CC BY-SA 4.0",
    origin="It is a 32 x 32 subset of github.com/apolanco3225/Medical-MNIST-Classification; to use a folder of those "
    "pictures, give its path.",
    layouts=(
        FileLayout(
            (
                File(
                    "medical_mnist/medical_mnist_32.npz",
                    "78c6f6b6007350b2a6d43c96e16fb5f2f88b5d6bb1cd46fe54612dde10864db9",
                ),
            ),
            _read,
        ),
    ),
    note="balanced subset, scaled to 32 x 32",
)
