"""Every record to one client, by the law that was asked for; and the same draw from the same seed."""

import numpy as np
import pytest
from scipy.stats import beta, kstest

from sordino.core.errors import DataError, SpecError
from sordino.core.rng import Stream
from sordino.data import partition
from sordino.data.dirichlet import proportions

LABELS = np.repeat(np.arange(10), 300)[Stream.research(9).permutation(3000)]
RNG = Stream.research(1)


def counts(parts, labels=LABELS, classes=10):
    return np.stack([np.bincount(labels[p], minlength=classes) for p in parts])


@pytest.mark.parametrize("law", ["iid", "dirichlet:0.1", "dirichlet:100", "shards:2", "quantity:0.3", "natural"])
@pytest.mark.parametrize("clients", [1, 7, 100])
def test_every_record_goes_to_one_client_and_none_is_left_without(law, clients):
    ids = np.arange(3000) % clients + 5
    split = partition.parse(law).split
    parts = split(LABELS, ids, clients, RNG)
    assert len(parts) == clients and min(len(p) for p in parts) >= 1
    assert sorted(np.concatenate(parts).tolist()) == list(range(3000))
    assert all(np.all(np.diff(p) > 0) and p.dtype == np.int64 for p in parts)
    again, other = split(LABELS, ids, clients, RNG), split(LABELS, ids, clients, Stream.research(2))
    assert all(np.array_equal(a, b) for a, b in zip(parts, again, strict=True))
    if clients > 1 and law != "natural":
        assert not all(np.array_equal(a, b) for a, b in zip(parts, other, strict=True))


@pytest.mark.parametrize("law", ["iid", "dirichlet:0.1", "shards:2", "quantity:0.05"])
def test_the_minimum_is_kept_or_refused(law):
    parts = partition.parse(law).split(LABELS, None, 20, RNG, minimum=100)
    assert min(len(p) for p in parts) >= 100
    with pytest.raises(DataError, match="cannot give each of 20 clients 151 records: there are 3000"):
        partition.parse(law).split(LABELS, None, 20, RNG, minimum=151)
    with pytest.raises(DataError, match="cannot give each of 3001 clients"):
        partition.parse(law).split(LABELS, None, 3001, RNG)


def test_dirichlet_shares_follow_the_law():
    """A share of Dir(a, ..., a) over k labels is Beta(a, (k - 1) a)."""
    for alpha in (0.05, 0.5, 5.0):
        shares = proportions(np.full((4000, 10), alpha), Stream.research(3))
        np.testing.assert_allclose(shares.sum(axis=1), 1)
        for column in (0, 9):
            assert kstest(shares[:, column], beta(alpha, 9 * alpha).cdf).pvalue > 1e-3
            assert kstest(shares[:, column], beta(1.3 * alpha, 9 * 1.3 * alpha).cdf).pvalue < 1e-3


def test_a_small_alpha_gives_few_labels_a_large_one_all():
    def labels_per_client(alpha):
        found = counts(partition.dirichlet(LABELS, 30, alpha, RNG))
        assert set(found.sum(axis=1)) == {100}
        return (found > 5).sum(axis=1).mean()

    few, some, all_of_them = (labels_per_client(a) for a in (0.05, 0.5, 100.0))
    assert few < 4 < some < 9 < all_of_them


def test_dirichlet_keeps_close_to_the_drawn_shares_also_with_rare_labels():
    labels = np.repeat([0, 1], [2700, 300])
    found = counts(partition.dirichlet(labels, 30, 50.0, RNG), labels, 2)
    assert abs(found[:, 1].mean() - 10) < 1e-9 and found[:, 1].std() < 6  # nobody gets the leftovers
    tiny = partition.dirichlet(LABELS[:40], 40, 1e-3, RNG)
    assert sorted(np.concatenate(tiny).tolist()) == list(range(40))


def test_shards_give_two_labels_a_client():
    found = counts(partition.shards(LABELS, 50, 2, RNG))
    assert set(found.sum(axis=1)) == {60}
    assert (found > 0).sum(axis=1).max() <= 2  # 300 a label, pieces of 30
    assert (found > 0).sum(axis=1).mean() > 1.5
    deal = [tuple(np.flatnonzero(row)) for row in found]
    assert len(set(deal)) > 20  # pieces are dealt at random


def test_quantity_skews_sizes_and_not_labels():
    sizes = [len(p) for p in partition.quantity(3000, 20, 0.5, RNG)]
    even = [len(p) for p in partition.quantity(3000, 20, 1000.0, RNG)]
    assert max(sizes) > 4 * np.median(sizes) and max(even) < 1.3 * min(even)
    big = max(partition.quantity(3000, 20, 0.5, RNG), key=len)
    assert np.bincount(LABELS[big], minlength=10).min() > 0.05 * len(big)


def test_natural_clients_are_the_numbers_in_their_order():
    parts = partition.natural(np.array([9, 4, 9, -1]))
    assert [p.tolist() for p in parts] == [[3], [1], [0, 2]]
    with pytest.raises(DataError, match="client -1 has 1 records, fewer than the minimum of 2"):
        partition.natural(np.array([9, 4, 9, -1, 4]), minimum=2)
    with pytest.raises(DataError, match="no clients of its own"):
        partition.parse("natural").split(LABELS, None, 3, RNG)
    with pytest.raises(DataError, match="one whole number"):
        partition.natural(np.array([0.5]))
    ids = np.array([9, 4, 9, -1])
    assert [p.tolist() for p in partition.parse("natural:2").split(np.zeros(4), ids, 3, RNG)] == [[3], [1]]
    with pytest.raises(DataError, match="come with 3 clients"):
        partition.parse("natural:4").split(np.zeros(4), ids, 3, RNG)


def test_columns_are_dealt_once_each():
    assert [c.tolist() for c in partition.columns(5, 2)] == [[0, 1, 2], [3, 4]]
    mixed = partition.columns(30, 3, RNG)
    assert sorted(np.concatenate(mixed).tolist()) == list(range(30)) and mixed[0].tolist() != list(range(10))
    with pytest.raises(DataError, match="each of 3 parties a column: there are 2"):
        partition.columns(2, 3)


@pytest.mark.parametrize("law", ["dirichlet:1", "shards:2"])
def test_laws_by_label_refuse_decimals_and_sequences(law):
    with pytest.raises(DataError, match="decimal numbers: use iid"):
        partition.parse(law).split(np.zeros(10), None, 2, RNG)
    with pytest.raises(DataError, match="sequences: use iid"):
        partition.parse(law).split(np.zeros((10, 5), int), None, 2, RNG)
    assert len(partition.parse("quantity:1").split(np.zeros(10), None, 2, RNG)) == 2


def test_the_words_of_the_parser():
    assert partition.parse("dirichlet:0.3") == partition.Partition("dirichlet", 0.3)
    for text in ("iid", "natural", "natural:7", "dirichlet:0.3", "shards:2", "quantity:0.5"):
        assert str(partition.parse(text)) == text


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("diriclet:1", "Did you mean 'dirichlet'"),
        ("dirichlet", "needs a positive number"),
        ("dirichlet:", "needs a positive number"),
        ("dirichlet:-1", "needs a positive number"),
        ("dirichlet:nan", "needs a positive number"),
        ("dirichlet:inf", "needs a positive number"),
        ("shards:2.5", "such as shards:2"),
        ("iid:3", "takes no number"),
        ("natural:", "needs a positive number"),
        ("natural:1.5", "such as natural:2"),
        ("", "There are: iid, dirichlet:ALPHA, shards:K"),
    ],
)
def test_a_law_that_does_not_exist_is_refused(text, match):
    with pytest.raises(SpecError, match=match):
        partition.parse(text)


@pytest.mark.parametrize("law", ["iid", "dirichlet:0.1", "shards:2", "quantity:0.5"])
def test_test_records_follow_each_clients_own_labels(law):
    parts = partition.parse(law).split(LABELS, None, 20, RNG)
    test = np.repeat(np.arange(10), 100)
    dealt = partition.like(parts, LABELS, test, RNG)
    assert sorted(np.concatenate(dealt).tolist()) == list(range(1000)) and min(len(d) for d in dealt) >= 1
    assert np.abs(counts(dealt, test) - counts(parts) / 3).max() < (
        1.01 if law != "quantity:0.5" else 3
    )  # a third as many, rounded; or given away
    again = partition.like(parts, LABELS, test, RNG)
    assert all(np.array_equal(a, b) for a, b in zip(dealt, again, strict=True))


def test_many_small_clients_all_get_a_test_record():
    parts = partition.dirichlet(LABELS, 300, 0.3, RNG)
    test = np.repeat(np.arange(10), 31)
    dealt = partition.like(parts, LABELS, test, RNG)
    assert min(len(d) for d in dealt) >= 1 and sorted(np.concatenate(dealt).tolist()) == list(range(310))
    few = partition.like(parts, LABELS, test[:5], RNG)
    assert sorted(np.concatenate(few).tolist()) == list(range(5))


def test_decimals_are_dealt_by_size_and_natural_clients_keep_their_own():
    parts = partition.quantity(3000, 10, 0.5, RNG)
    dealt = partition.like(parts, np.zeros(3000), np.zeros(600), RNG)
    assert max(abs(len(d) - len(p) / 5) for d, p in zip(dealt, parts, strict=True)) <= 1
    train, test = np.array([7, 3, 7, 5]), np.array([3, 7, 7, 8])
    own = partition.like(partition.natural(train), np.zeros(4), np.zeros(4), RNG, client_train=train, client_test=test)
    assert [o.tolist() for o in own] == [[0], [], [1, 2]]
