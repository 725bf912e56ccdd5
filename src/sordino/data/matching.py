"""Test records for every client, with the label proportions of its training records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from sordino.core.rng import Ints, Stream


def like(
    parts: Sequence[Ints],
    labels_train: Any,
    labels_test: Any,
    rng: Stream,
    *,
    client_train: Any = None,
    client_test: Any = None,
) -> list[Ints]:
    """Distribute the test records to the clients of a training partition, each record to one client.

    Of each label, a client gets the same fraction of the test records as it has of the training records, rounded up or
    down. If there are enough test records, every client gets at least one. Decimal targets and sequences count as one
    label.

    If the natural clients of the training and of the test records are given, each client gets the test records of its
    own number, possibly none.

    Args:
        parts: Indices of each client's training records.
        labels_train: Labels of the training records.
        labels_test: Labels of the test records.
        rng: Source of randomness.
        client_train: Natural client of every training record.
        client_test: Natural client of every test record.

    Returns:
        Indices of each client's test records.
    """
    if client_train is not None and client_test is not None:
        train_clients = np.asarray(client_train)
        return [np.flatnonzero(np.asarray(client_test) == train_clients[p[0]]) if len(p) else p for p in parts]
    train, test = np.asarray(labels_train), np.asarray(labels_test)
    if train.dtype.kind == "f" or train.ndim != 1:
        train, test = np.zeros(len(train), np.int64), np.zeros(len(test), np.int64)
    clients = len(parts)
    taken: list[list[Ints]] = [[] for _ in range(clients)]
    of = np.full(len(train), -1)
    for k, part in enumerate(parts):
        of[part] = k
    order = rng.at("clients").permutation(clients)
    for label in np.unique(test).tolist():
        stream = rng.at("label", int(label))
        have = np.bincount(of[(train == label) & (of >= 0)], minlength=clients)[order]
        if not have.sum():
            have = np.array([len(p) for p in parts])[order]  # a label without training records: by client size
        records = np.flatnonzero(test == label)
        records = records[stream.permutation(len(records))]
        ends = np.cumsum(have) / have.sum() * len(records)
        cuts = np.floor(ends[:-1] + stream.at("offset").uniform(1)[0]).astype(np.int64)
        for k, piece in zip(order, np.split(records, np.clip(cuts, 0, len(records))), strict=True):
            taken[k].append(piece)
    test_parts = [np.concatenate(t) if t else np.empty(0, np.int64) for t in taken]
    if len(test) >= clients:
        _none_left_out(test_parts, parts, train, test)
    return [np.sort(part) for part in test_parts]


def _none_left_out(test_parts: list[Ints], parts: Sequence[Ints], train: Ints, test: Ints) -> None:
    """Give each empty client a record of its most frequent label (or any) from the client that has most of those."""
    for k in [k for k, part in enumerate(test_parts) if not len(part) and len(parts[k])]:
        wanted = int(np.bincount(train[parts[k]] - train.min()).argmax() + train.min())
        having = [int((test[p] == wanted).sum()) if len(p) > 1 else 0 for p in test_parts]
        giver = int(np.argmax(having)) if max(having) else int(np.argmax([len(p) for p in test_parts]))
        if len(test_parts[giver]) < 2:
            return
        match = np.flatnonzero(test[test_parts[giver]] == wanted)
        at = int(match[-1]) if len(match) else len(test_parts[giver]) - 1
        test_parts[k] = test_parts[giver][at : at + 1]
        test_parts[giver] = np.delete(test_parts[giver], at)
