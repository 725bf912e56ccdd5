"""Shakespeare by speaking role, in the manner of LEAF: Caldas et al. (2018), arXiv:1812.01097; McMahan et al. (2017).

A client is a role in a play, and so is a user. Its speeches, in order and one per line, are cut into windows of 80
characters; the target of a window is the window shifted by one character, at every position. The last tenth of a
client's windows (at least one) is its test part; roles with fewer than two windows are dropped. The vocabulary is
declared: line feed and the printable ASCII characters. This is not the file of LEAF but another edition of the text,
with the same construction.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from sordino.core.errors import DataError
from sordino.data.dataset import Dataset
from sordino.data.sets._tables import cells
from sordino.data.sets.base import DatasetSource, File, FileLayout

__all__ = ["SOURCE"]

ALPHABET = "\n" + "".join(map(chr, range(32, 127)))  # 96 characters
WINDOW = 80
TEST_SHARE, LEAST_WINDOWS = 0.1, 2


def _read(paths: list[Path]) -> Dataset:
    table = cells(paths[0])
    texts = ["\n".join(group) for _, group in table.groupby("client", sort=True)["text"]]
    parts = [windows(tokens(text)) for text in texts]
    parts = [p for p in parts if len(p[0]) >= LEAST_WINDOWS]
    keep = [len(x) - max(1, round(TEST_SHARE * len(x))) for x, _ in parts]
    train = [(x[:k], y[:k]) for (x, y), k in zip(parts, keep, strict=True)]
    test = [(x[k:], y[k:]) for (x, y), k in zip(parts, keep, strict=True)]
    (x, y), (x_test, y_test) = (
        tuple(torch.from_numpy(np.concatenate(part)) for part in zip(*half, strict=True)) for half in (train, test)
    )
    client = [np.repeat(np.arange(len(half)), [len(p[0]) for p in half]) for half in (train, test)]
    return Dataset(
        "shakespeare", x, y, x_test, y_test, client_train=client[0], client_test=client[1], user_train=client[0],
        task="next-token", classes=len(ALPHABET), names=tuple(ALPHABET), public=True,
    )  # fmt: skip


def tokens(text: str) -> NDArray[np.int64]:
    """Return the characters of a text as indices into the alphabet."""
    codes = np.frombuffer(text.encode("latin-1", errors="replace"), np.uint8).astype(np.int64)
    indices = np.where(codes == 10, 0, codes - 31)
    if len(indices) and (indices.min() < 0 or indices.max() >= len(ALPHABET)):
        raise DataError("the text of shakespeare holds a character outside the declared alphabet.")
    return indices


def windows(indices: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Cut tokens into windows [n, 80], and return them with their targets, which are shifted by one character."""
    n = max(0, (len(indices) - 1) // WINDOW)
    return indices[: n * WINDOW].reshape(n, WINDOW), indices[1 : n * WINDOW + 1].reshape(n, WINDOW)


SOURCE = DatasetSource(
    name="shakespeare",
    task="next-token",
    records=(47_626, 5_505),
    clients=1_062,
    licence="public domain text",
    origin="It is the speeches of Jon Bosak's XML edition of the plays, one row per speech (play, speaker, act, scene, "
    "speech, text, client); to use a text of your own, give the path of an .npz file of windows.",
    layouts=(
        FileLayout(
            (
                File(
                    "shakespeare/shakespeare_speeches.csv.gz",
                    "2864098bd81cd1cfed8db239f11af28a1d7724cec1fa8796770ecb5bf8fe210a",
                ),
            ),
            _read,
        ),
    ),
)
