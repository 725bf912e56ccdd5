"""Bounds on the contribution of a user: a largest number of records and of clients.

Which records of a user are kept depends only on that user's own records and the seed, so that adding or removing a user
does not change the records of anyone else: user-level privacy multiplies by this bound. Wilson et al. (2020),
arXiv:1909.01917, Section 3 (bounding user contribution); Amin et al. (2019), "Bounding user contributions".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from sordino.core import check
from sordino.core.errors import DataError
from sordino.core.rng import Ints, Stream


def bound(
    parts: Sequence[Ints], users: Any, records_per_user: int | None, clients_per_user: int, rng: Stream
) -> list[Ints]:
    """Bound each user's contribution and return the indices of each client's remaining records.

    Within a client the records of a user are contiguous. A client whose users were all kept elsewhere is left with no
    records.

    Args:
        parts: Indices of each client's records.
        users: User of every record of the whole data, as a number; it keys the draw.
        records_per_user: Largest number of records of a user; None keeps all records in the kept clients.
        clients_per_user: Largest number of clients of a user.
        rng: Source of randomness.
    """
    check.count(clients_per_user=clients_per_user)
    if records_per_user is not None:
        check.count(records_per_user=records_per_user)
    numbers = np.asarray(users)
    if numbers.ndim != 1 or numbers.dtype.kind not in "iu":
        raise DataError("users must hold one whole number per record.")
    record = np.concatenate([np.empty(0, np.int64), *parts])
    client = np.repeat(np.arange(len(parts)), [len(p) for p in parts])
    if len(record) and (record.min() < 0 or record.max() >= len(numbers)):
        raise DataError(f"users has {len(numbers)} entries, but the clients' records go up to {int(record.max())}.")
    user = numbers[record]
    order = np.lexsort((record, client, user))  # by user, then client, then record
    starts = np.flatnonzero(user[order][1:] != user[order][:-1]) + 1
    groups = np.split(order, starts) if len(order) else []
    bounded = [_of_one(rows, client, user, records_per_user, clients_per_user, rng) for rows in groups]
    rows = np.concatenate([np.empty(0, np.int64), *bounded])  # still sorted by user
    rows = rows[np.argsort(client[rows], kind="stable")]
    return np.split(record[rows], np.cumsum(np.bincount(client[rows], minlength=len(parts)))[:-1])


def deal(users: Any, clients: int, rng: Stream) -> list[Ints]:
    """Deal whole users to clients at random, and return the indices of the records of each client that has any.

    The client of a user depends on the user's own number and the seed, so that adding a user moves nobody else.
    """
    check.count(clients=clients)
    values, of = np.unique(np.asarray(users), return_inverse=True)
    client = (rng.rows(values).uniform(1)[:, 0] * clients).astype(np.int64)[of]
    return [np.flatnonzero(client == k) for k in np.unique(client)]


def _of_one(rows: Ints, client: Ints, user: Ints, records: int | None, clients: int, rng: Stream) -> Ints:
    """Return the rows of one user that are kept, in their order."""
    number = int(user[rows[0]])
    user_clients, nth = np.unique(client[rows], return_inverse=True)
    if len(user_clients) > clients:
        chosen = rng.at("clients").permutation(len(user_clients), number)[:clients]
        rows = rows[np.isin(nth, chosen)]
    if records is not None and len(rows) > records:
        rows = rows[rng.at("records").fixed(len(rows), records, number)]
    return rows
