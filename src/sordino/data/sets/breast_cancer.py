"""Breast cancer Wisconsin (diagnostic): Street, Wolberg and Mangasarian (1993); UCI. Malignant (0) or benign (1).

Read from breast_cancer.csv.gz, which the package holds, or from UCI's own wdbc.data; the numbers are verified after
reading. Bounds are round numbers around the ranges printed in the documentation of scikit-learn. The source has no
split: a fifth of the rows, always the same, is the test part.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from sordino.core.errors import DataError
from sordino.data.dataset import Dataset
from sordino.data.schema import Number, numbers
from sordino.data.sets._tables import cells
from sordino.data.sets.base import DatasetSource, File, FileLayout, digest, fixed_split, halves, verify

__all__ = ["SOURCE"]

CONTENT = (
    "54cbf95e148c6eed11e8b2ac1637b5f44a8053293412279de71c47b345e9eb50"  # sha256 of the values as float64, row by row
)
URL = "https://archive.ics.uci.edu/ml/machine-learning-databases/breast-cancer-wisconsin/wdbc.data"
BOUNDS = (  # radius, texture, perimeter, area, smoothness, compactness, concavity, points, symmetry, fractal dimension
    (5, 30), (5, 40), (40, 200), (100, 2500), (0.05, 0.2), (0, 0.4), (0, 0.5), (0, 0.25), (0.1, 0.35), (0.04, 0.1),
    (0, 3), (0, 5), (0, 22), (0, 550), (0, 0.035), (0, 0.14), (0, 0.4), (0, 0.06), (0, 0.08), (0, 0.03),  # errors
    (5, 40), (10, 50), (50, 260), (150, 4500), (0.05, 0.25), (0, 1.1), (0, 1.3), (0, 0.3), (0.15, 0.7), (0.05, 0.21),
)  # fmt: skip


def _csv(paths: list[Path]) -> Dataset:
    table = cells(paths[0])
    return _dataset(paths, np.stack([numbers(c, table[c]) for c in table.columns], axis=1))


def _uci(paths: list[Path]) -> Dataset:
    """Read wdbc.data, whose columns are the number of the patient, M or B, and thirty features."""
    table = cells(paths[0], header=None)
    benign = (table[1] == "B").to_numpy().astype(np.float64)
    features = [numbers(str(c), table[c]) for c in table.columns[2:]]
    return _dataset(paths, np.stack([*features, benign], axis=1))


def _dataset(paths: list[Path], values: NDArray[np.float64]) -> Dataset:
    if values.shape[1] != len(BOUNDS) + 1:
        raise DataError(f"{paths[0]} has {values.shape[1]} columns where {len(BOUNDS) + 1} were expected.")
    verify("breast-cancer", paths, digest(values), CONTENT)
    columns = [2 * Number(*bound).unit(values[:, i]) - 1 for i, bound in enumerate(BOUNDS)]
    x, y = (
        torch.from_numpy(np.stack(columns, axis=1).astype(np.float32)),
        torch.from_numpy(values[:, -1].astype(np.int64)),
    )
    parts = fixed_split(len(x), 0.2, "breast-cancer")
    return Dataset("breast-cancer", *halves(x, y, parts), classes=2, names=("malignant", "benign"), public=True)


SOURCE = DatasetSource(
    name="breast-cancer",
    task="classification",
    records=(455, 114),
    clients=None,
    licence="CC BY 4.0 (UCI)",
    origin="It is at https://archive.ics.uci.edu/dataset/17.",
    layouts=(
        FileLayout((File("breast_cancer_wdbc/breast_cancer.csv.gz"),), _csv),
        FileLayout((File("breast_cancer_wdbc/wdbc.data", url=URL),), _uci),
    ),
)
