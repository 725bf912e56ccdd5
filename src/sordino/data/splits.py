"""Held-out splits, where whether a record is held out depends only on its own position and the seed.

Each record is drawn independently, so that data sets that differ in one record give parts that differ in one record. A
shuffle of all records would move many of them, which the guarantee for one record does not cover.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from sordino.core import check
from sordino.core.rng import Ints, Stream


def validation(parts: Sequence[Ints], share: float, rng: Stream) -> tuple[list[Ints], list[Ints]]:
    """Split each client's records into training and validation records, about `share` of them for validation.

    The split of client k depends only on k, on its own records and on the seed. Its first record is always used for
    training, so that no client is left without training records; a small client may have no validation records.
    """
    check.below_one(share=share)
    stream = rng.at("validation")
    out = [stream.uniform(len(part), k) < share for k, part in enumerate(parts)]
    for held in out:
        held[:1] = False
    pairs = list(zip(parts, out, strict=True))
    return [part[~held] for part, held in pairs], [part[held] for part, held in pairs]


def tuning(records: int, share: float, rng: Stream) -> tuple[Ints, Ints]:
    """Return the indices of the records to train on and of those held out for choosing hyperparameters.

    About `share` of the records are held out.
    """
    check.count(records=records)
    check.below_one(share=share)
    held = rng.at("tuning").uniform(records) < share
    return np.flatnonzero(~held), np.flatnonzero(held)


def owners(numbers: Ints, share: float, rng: Stream) -> NDArray[np.bool_]:
    """Return which records are held out: all records of an owner, or none.

    An owner is drawn by its own number and the seed, so that adding or removing one does not move the records of
    others.

    Args:
        numbers: Owner of every record, as a number.
        share: Expected fraction of owners that are held out.
        rng: Source of randomness.
    """
    check.below_one(share=share)
    values, of = np.unique(numbers, return_inverse=True)
    return (rng.at("owners").rows(values).uniform(1)[:, 0] < share)[of]


def whole_users(parts: Sequence[Ints], users: Ints, share: float, rng: Stream) -> tuple[list[Ints], list[Ints]]:
    """Split each client's records into training and held-out records, holding out about `share` of all users.

    A user is held out with all records in all clients. A client may be left without training records.
    """
    held = owners(users, share, rng.at("validation"))
    return [part[~held[part]] for part in parts], [part[held[part]] for part in parts]
