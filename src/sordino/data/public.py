"""Declaration of public records: in the user's own data no record is public unless the owner says so.

The owner may name a second file of public records (`test`), declare a fraction of the records public (`share`), or
declare that all of them are public already (`everything`), as those of a benchmark are. The data themselves declare the
rows that a split column marks, x_test of an .npz file, and the folder test/ of images.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from sordino.core import check
from sordino.core.errors import DataError
from sordino.core.rng import Stream
from sordino.data import splits
from sordino.data.dataset import Dataset

TEST_SHARE = 0.1  # fraction of test records for data that are entirely public and come without any


@dataclass(frozen=True)
class Declared:
    """What the owner of the data declares public."""

    test: str | None = None  # path of a file or folder of public records
    share: float | None = None  # fraction of the records
    everything: bool = False  # whether all records are public
    by: str = "record"  # what the fraction is drawn from: single records, or users or clients with all their records

    def __post_init__(self) -> None:
        check.one_of(("record", "user", "client"), by=self.by)
        if self.share is not None:
            check.below_one(public_share=self.share)
        if self.share is not None and self.test is not None:
            raise DataError("test names the public records already: give test or public_share, not both.")


def declare(data: Dataset, declared: Declared) -> Dataset:
    """Return the data with the declared fraction as test records.

    Each record, user or client is drawn independently. Whether it is drawn depends on its position (for users and
    clients: on their own number) and a fixed seed, not on the records of anyone else.
    """
    if declared.everything:
        data = replace(data, public=True, assumed=(*data.assumed, "all records (public_data)"))
    share, by = declared.share, declared.by
    if by == "client" and data.client_train is None:  # clients are made later, from the private records only
        by = "record"
    if share is None and declared.everything and not len(data.y_test):
        share, by = TEST_SHARE, "record"
    if share is None:
        return data
    if len(data.y_test):
        raise DataError(f"{data.name} comes with {len(data.y_test)} test records, which are public: drop public_share.")
    out = _drawn(data, share, by)
    if not out.any() or out.all():
        many = "all" if out.all() else "none"
        raise DataError(
            f"{data.name}: a public share of {share:g}, drawn by {by}, takes {many} of them. Use another share."
        )
    each = "" if by == "record" else f", all those of some {by}s"
    words = f"{out.sum():,} of {len(out):,} records (public_share = {share:g}{each})"
    keep, shown = torch.from_numpy(~out), torch.from_numpy(out)
    client, user = data.client_train, data.user_train
    return replace(
        data, x_train=data.x_train[keep], y_train=data.y_train[keep], x_test=data.x_train[shown],
        y_test=data.y_train[shown],
        client_train=None if client is None else client[~out],
        client_test=None if client is None or by == "client" else client[out],
        user_train=None if user is None else user[~out], user_test=None if user is None else user[out],
        test_from=data.test_from if declared.share is None else words,
    )  # fmt: skip


def _drawn(data: Dataset, share: float, by: str) -> NDArray[np.bool_]:
    rng, rows = Stream.research(0).at("test"), len(data.y_train)
    if by == "record":
        out = np.zeros(rows, dtype=np.bool_)
        out[splits.tuning(rows, share, rng)[1]] = True
        return out
    numbers = data.user_train if by == "user" else data.client_train
    if numbers is None:
        raise DataError(
            f"{data.name} does not say which {by} a record belongs to, so no share of the {by}s can be public: name "
            f"the {by}_column of a table, or put {by}_train into the .npz file."
        )
    return splits.owners(numbers, share, rng.at(by))
