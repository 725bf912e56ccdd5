"""Two overlapping clouds of points in the plane: 96 records to train on and 24 to test on.  Made up for this example.

SORDINO_PLUGINS=examples/plugins sordino run --dataset tiny-blobs --data-dir examples/data --clients 4
"""

from __future__ import annotations

import csv
from pathlib import Path

import torch

from sordino.data.dataset import Dataset
from sordino.data.sets.base import DatasetSource, File, FileLayout, fixed_split, halves

__all__ = ["SOURCE"]

SHA256 = "2670d462a212b7879a3a9a3db4591ee879daf724841c057644a4d296fb8b51ea"


def _read(paths: list[Path]) -> Dataset:
    with paths[0].open(newline="") as file:
        rows = [(float(row["x"]), float(row["y"]), int(row["label"])) for row in csv.DictReader(file)]
    x = torch.tensor([row[:2] for row in rows])
    y = torch.tensor([row[2] for row in rows])
    return Dataset("tiny-blobs", *halves(x, y, fixed_split(len(y), 0.2, "tiny-blobs")), classes=2, public=True)


SOURCE = DatasetSource(
    name="tiny-blobs",
    task="classification, 2 features",
    records=(96, 24),
    clients=None,
    licence="CC0",
    origin="It lies in examples/data.",
    layouts=(FileLayout((File("tiny_blobs.csv", SHA256),), _read),),
)
