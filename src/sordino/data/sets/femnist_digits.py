"""A small SUBSET of FEMNIST (Caldas et al. 2018, arXiv:1812.01097): digits only, 12 clients of about 500 images.

There are NO writer ids: a client mixes several writers and is not a person. The source has no split: a sixth of every
client's images, always the same, is the test part. This prepared file cannot be downloaded.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from sordino.data.dataset import Dataset, Scaled
from sordino.data.npz import arrays
from sordino.data.sets.base import DatasetSource, File, FileLayout, fixed_split, halves, pair

__all__ = ["SOURCE"]

CLIENTS = 12


def _read(paths: list[Path]) -> Dataset:
    a = arrays(paths[0])
    client = a["client"].astype(np.int64)
    train, test = [], []
    for k in range(CLIENTS):
        records = np.flatnonzero(client == k)
        train_part, test_part = fixed_split(len(records), 1 / 6, f"femnist-digits {k}")
        train.append(records[train_part])
        test.append(records[test_part])
    parts = np.concatenate(train), np.concatenate(test)
    return Dataset(
        "femnist-digits", *halves(*pair(a["x"], a["y"]), parts), client_train=client[parts[0]],
        client_test=client[parts[1]], classes=10, names=tuple("0123456789"), public=True, prepare=Scaled(),
    )  # fmt: skip


SOURCE = DatasetSource(
    name="femnist-digits",
    task="classification",
    records=(4_998, 999),
    clients=CLIENTS,
    licence="NIST SD19: US government work",
    origin="It is the digits of github.com/glin20/FEMNIST_Federated_Learning (src/femnist_subset), pixels inverted; to "
    "use an .npz file of your own, give its path.",
    layouts=(
        FileLayout(
            (
                File(
                    "femnist_digits_subset/femnist_digits_subset.npz",
                    "ad320b19c4cf5ca1db29ef77d599aab75722397b9c0e0701aaa81e786672469d",
                ),
            ),
            _read,
        ),
    ),
    note="SUBSET: digits, 12 clients, no writer ids",
)
