"""What one user contributes is bounded, and depends on that user alone."""

import numpy as np
import pytest
import torch

from sordino.core.errors import DataError, SpecError
from sordino.core.rng import Stream
from sordino.data import partition, users
from sordino.data.clients import ArrayClients

CPU = torch.device("cpu")
RNG = Stream.research(4)
DRAW = np.random.default_rng(0)
USERS = DRAW.integers(0, 40, 600)
PARTS = partition.iid(600, 12, Stream.research(1))


def per_user(parts):
    """user -> its records in each client, counted the slow way."""
    out = {}
    for client, part in enumerate(parts):
        for record in part:
            out.setdefault(int(USERS[record]), {}).setdefault(client, set()).add(int(record))
    return out


@pytest.mark.parametrize(("records", "clients"), [(3, 1), (5, 2), (None, 2), (2, 12), (10**6, 12)])
def test_nobody_contributes_more_than_the_bounds(records, clients):
    kept, whole = per_user(users.bound(PARTS, USERS, records, clients, RNG)), per_user(PARTS)
    assert set(kept) == set(whole)  # nobody vanishes
    for user, own in kept.items():
        assert len(own) <= clients and all(own[c] <= whole[user][c] for c in own)
        total = sum(map(len, own.values()))
        assert total <= (records or 10**9)
        if records is None:
            assert all(own[c] == whole[user][c] for c in own) and len(own) == min(clients, len(whole[user]))
        elif clients == 12:
            assert total == min(records, sum(map(len, whole[user].values())))


def test_another_user_changes_nobody_elses_records():
    newcomer = 600 + np.arange(30)
    more_parts = [np.concatenate([p, newcomer[i::12]]) for i, p in enumerate(PARTS)]
    for number in (-3, 17_000):  # before and after all others
        more_users = np.concatenate([USERS, np.full(30, number)])
        before = users.bound(PARTS, USERS, 4, 2, RNG)
        after = users.bound(more_parts, more_users, 4, 2, RNG)
        for a, b in zip(before, after, strict=True):
            assert a.tolist() == [r for r in b.tolist() if r < 600]
        assert sum((p >= 600).sum() for p in after) == 4
    fewer = [p[USERS[p] != 7] for p in PARTS]
    for a, b in zip(before, users.bound(fewer, USERS, 4, 2, RNG), strict=True):
        assert [r for r in a.tolist() if USERS[r] != 7] == b.tolist()


def test_numbers_that_differ_in_their_last_bit_are_two_users():
    close = np.array([2**62, 2**62 + 1, 2**62, 2**62 + 1])
    assert sum(map(len, users.bound([np.arange(4)], close, 1, 1, RNG))) == 2


def test_users_choose_independently_and_by_the_seed():
    one, other = users.bound(PARTS, USERS, 3, 1, RNG), users.bound(PARTS, USERS, 3, 1, Stream.research(5))
    assert any(a.tolist() != b.tolist() for a, b in zip(one, other, strict=True))
    chosen = {u: next(iter(own)) for u, own in per_user(one).items()}
    assert len(set(chosen.values())) > 5  # not all the same client
    alike = [np.arange(100) + 100 * k for k in range(4)]  # 100 users with one record in each of four clients
    picked = users.bound(alike, np.tile(np.arange(100), 4), 1, 1, RNG)
    assert min(map(len, picked)) > 10 and sum(map(len, picked)) == 100


def test_bad_bounds_and_users_are_refused():
    with pytest.raises(SpecError, match="records_per_user"):
        users.bound(PARTS, USERS, 0, 1, RNG)
    with pytest.raises(SpecError, match="clients_per_user"):
        users.bound(PARTS, USERS, 1, 0, RNG)
    with pytest.raises(DataError, match="users has 10 entries"):
        users.bound(PARTS, USERS[:10], 1, 1, RNG)
    with pytest.raises(DataError, match="one whole number"):
        users.bound(PARTS, USERS.astype(float), 1, 1, RNG)
    assert [p.tolist() for p in users.bound([np.empty(0, np.int64)], USERS, 1, 1, RNG)] == [[]]


def test_clients_know_the_runs_of_their_users():
    parts = users.bound(PARTS, USERS, 6, 2, RNG)
    held = ArrayClients.split(torch.arange(600.0)[:, None], torch.arange(600), parts, USERS)
    for ids in ([0, 1, 2], [5, 3], [11], []):
        batch = held.fetch(ids, CPU)
        assert len(batch.groups) == len(ids) and tuple(sum(g) for g in batch.groups) == batch.sizes
        at = 0
        for client, runs in zip(ids, batch.groups, strict=True):
            owners = []
            for run in runs:
                owner = set(USERS[batch.y[at : at + run].numpy()].tolist())
                assert len(owner) == 1
                owners += owner
                at += run
            assert len(set(owners)) == len(owners) == len(set(USERS[parts[client]].tolist()))
    slow = per_user(parts)
    assert np.unique(held.users, return_counts=True)[1].max() == 6
    assert max(sum(map(len, own.values())) for own in slow.values()) == 6
    assert held.most_clients_per_user() == max(map(len, slow.values())) == 2
    assert [len(runs) for runs in held.user_runs()] == [len(set(USERS[p].tolist())) for p in parts]
    assert held.all_sizes().tolist() == [len(p) for p in parts]
    assert held.to(CPU).fetch([4], CPU).groups == held.fetch([4], CPU).groups


def test_clients_without_users_say_so_and_users_in_disorder_are_refused():
    x, y = torch.zeros(4, 1), torch.zeros(4, dtype=torch.int64)
    plain = ArrayClients(x, y, [3, 1])
    assert plain.fetch([0], CPU).groups is None and plain.all_sizes().tolist() == [3, 1]
    with pytest.raises(DataError, match="which user"):
        plain.most_clients_per_user()
    with pytest.raises(DataError, match="client 0: a user's records are not next to each other"):
        ArrayClients(x, y, [3, 1], np.array([1, 2, 1, 1]))
    with pytest.raises(DataError, match="4 of them"):
        ArrayClients(x, y, [3, 1], np.array([1, 2, 1]))
    assert ArrayClients(x, y, [0, 4], np.array([2, 2, 1, 1])).fetch([0, 1], CPU).groups == ((), (2, 2))


def test_whole_users_are_dealt_each_by_its_own_number():
    parts = users.deal(USERS, 6, RNG)
    assert sorted(np.concatenate(parts).tolist()) == list(range(600))
    assert max(map(len, per_user(parts).values())) == 1 and len(parts) == 6
    more = users.deal(np.concatenate([[-5, 10**6], USERS]), 6, RNG)
    assert [set(p.tolist()) for p in parts] == [{int(r) - 2 for r in p if r >= 2} for p in more]
    assert len(users.deal(np.array([3, 3, 3]), 50, RNG)) == 1  # nobody is without records
