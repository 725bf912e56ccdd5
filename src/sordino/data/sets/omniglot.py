"""Omniglot, the two small background sets: Lake, Salakhutdinov and Tenenbaum (2015), Science 350(6266).

242 characters of 8 alphabets, each drawn once by 20 people, scaled from 105 to 28 pixels (box filter) and inverted.
A client is a drawer within an alphabet. The test part is drawers 17 to 20, so that test clients are new people.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from sordino.data.dataset import Dataset, Scaled
from sordino.data.npz import arrays
from sordino.data.sets.base import DatasetSource, File, FileLayout, halves, pair

__all__ = ["SOURCE"]

TEST_DRAWERS = (17, 18, 19, 20)


def _read(paths: list[Path]) -> Dataset:
    a = arrays(paths[0])
    test = np.isin(a["drawer"], TEST_DRAWERS)
    parts = np.flatnonzero(~test), np.flatnonzero(test)
    client = a["client"].astype(np.int64)
    return Dataset(
        "omniglot", *halves(*pair(a["x"], a["y"]), parts), client_train=client[parts[0]], client_test=client[parts[1]],
        classes=242, names=tuple(str(n) for n in a["class_names"]), public=True,
        prepare=Scaled(),
    )  # fmt: skip


SOURCE = DatasetSource(
    name="omniglot",
    task="classification",
    records=(3_872, 968),
    clients=128,
    licence="MIT",
    origin="It is images_background_small1 and small2 of github.com/brendenlake/omniglot, scaled to 28 x 28 and "
    "inverted; to use an .npz file of your own, give its path.",
    layouts=(
        FileLayout(
            (
                File(
                    "omniglot_small/omniglot_small_28.npz",
                    "516b6cd0e188e72795ab611c74b3782ff78149cdc851ede51833f7276e7ba218",
                ),
            ),
            _read,
        ),
    ),
    note="small background sets, 8 alphabets",
)
