"""Held-out parts.  Whether a record is held out depends on its own place and the seed alone.

Each record is drawn for itself, so that data sets that differ in one record give parts that differ in one record: a
shuffle of all records would move many, and a record's guarantee with them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from sordino.core import check
from sordino.core.rng import Ints, Stream


def validation(parts: Sequence[Ints], share: float, rng: Stream) -> tuple[list[Ints], list[Ints]]:
    """Of each client's records about `share` for validation, the others for training.

    Client k's parts depend on k, on its own records and on the seed. Its first record is always trained on, so that no
    client is left without; a small client may have no validation records."""
    check.below_one(share=share)
    stream = rng.at("validation")
    out = [stream.uniform(len(part), k) < share for k, part in enumerate(parts)]
    for held in out:
        held[:1] = False
    pairs = list(zip(parts, out, strict=True))
    return [part[~held] for part, held in pairs], [part[held] for part, held in pairs]


def tuning(records: int, share: float, rng: Stream) -> tuple[Ints, Ints]:
    """(kept, held out): indices of records; about `share` of them are held out, to choose hyper-parameters on."""
    check.count(records=records)
    check.below_one(share=share)
    held = rng.at("tuning").uniform(records) < share
    return np.flatnonzero(~held), np.flatnonzero(held)


def owners(numbers: Ints, share: float, rng: Stream) -> NDArray[np.bool_]:
    """Which records are held out, all of an owner's or none: `numbers` has the number of each record's owner.

    An owner is drawn by its own number and the seed, so nobody else's records move when one comes or goes."""
    check.below_one(share=share)
    values, of = np.unique(numbers, return_inverse=True)
    return (rng.at("owners").rows(values).uniform(1)[:, 0] < share)[of]


def whole_users(parts: Sequence[Ints], users: Ints, share: float, rng: Stream) -> tuple[list[Ints], list[Ints]]:
    """Hold out about `share` of all users, with all their records in all clients; the others are for training.

    A client may be left without training records."""
    held = owners(users, share, rng.at("validation"))
    return [part[~held[part]] for part in parts], [part[held[part]] for part in parts]
