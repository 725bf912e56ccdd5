"""What users bring is checked at the door: one line, a DataError, nothing trained."""

import numpy as np
import pandas as pd
import pytest
import torch
from torch.utils.data import TensorDataset

import sordino
from sordino.core.errors import DataError, SordinoError, SpecError
from sordino.data.clients import ArrayClients, LazyClients, adopt
from sordino.data.partition import iid
from support.errors import one_line_error
from support.problems import FEATURES, federation, job

CPU = torch.device("cpu")
X, Y = federation((12,))[0]


def refused(clients, match, error=DataError, **keys):
    with one_line_error(error, match):
        job(clients=clients, **keys)


def with_x(value):
    x = X.clone()
    x[5, 2] = value
    return [(X, Y), (x, Y)]


def with_y(value):
    y = Y.clone()
    y[7] = value
    return [(X, Y), (X, y)]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_nan_and_infinity_are_named_by_client_and_record(value):
    refused(with_x(value), r"client 1: x holds a nan or infinite value in record 5")


def test_a_double_too_large_for_a_float_is_infinite():
    x = X.double().numpy().copy()
    x[3, 0] = 1e300
    refused([(x, Y)], "client 0: x holds a nan or infinite value in record 3")


def test_a_nan_target_is_refused():
    refused([(X, Y.float()), (X, torch.full((12,), float("nan")))], "client 1: y", loss="squared_error")


@pytest.mark.parametrize("label", [3, 99, -1])
def test_a_label_out_of_range_is_refused(label):
    refused(with_y(label), rf"label {label} in record 19 is out of range; the model has 3 outputs")


def test_a_label_out_of_range_in_the_test_data_is_refused():
    with pytest.raises(DataError, match="the test data: label 3"):
        sordino.train(torch.nn.Linear(FEATURES, 3), [(X, Y)], test=(X, Y + 3 - Y.min()), rounds=1)


def test_class_labels_are_whole_numbers():
    refused([(X, Y.float() + 0.5)], "whole numbers", loss="cross_entropy")


@pytest.mark.parametrize(
    ("clients", "match"),
    [
        ([], "there are no clients"),
        ({}, "there are no clients"),
        ([(X, Y), (X[:0], Y[:0])], "client 1 has no records"),
        ([(X, Y), (X[:5], Y)], "client 1: x has shape .5, 20., y .12,.; they need one row per record"),
        ([(X, Y), (X[:, :7], Y)], "different shapes"),
        ([(X, Y), (X, Y[:, None])], "different shapes"),
        ([(X, Y), X], "client 1 must be an .x, y. pair"),
        ([(X, Y, Y)], "client 0 must be"),
        ([(X, Y), None], "client 1 must be"),
        ([(X, Y), "text"], "client 1 must be"),
        ([(np.array([["a"] * FEATURES] * 12), Y)], "client 0: x must be numeric"),
        ([(X, np.array(["cat"] * 12))], "client 0: y must be numeric"),
        ([(np.array([[object()]] * 12), Y)], "client 0: x must be numeric"),
        ([(X.numpy() + 1j, Y)], "client 0: x must be numeric"),
        ([(X.to(torch.complex64), Y)], "client 0: x must be numeric"),
        ([(pd.DataFrame({"a": ["x"] * 12}), Y)], "client 0: x must be numeric"),
        ([(torch.tensor(1.0), torch.tensor(1))], "one row per record"),
        ("abc", "not the text 'abc'"),
    ],
)
def test_what_is_no_client_is_refused(clients, match):
    refused(clients, match)


@pytest.mark.parametrize("clients", [None, 5])
def test_what_is_no_list_of_clients_is_refused(clients):
    with pytest.raises(DataError, match="clients"):
        adopt(clients)


class Ragged(list):
    """A Dataset whose records differ in shape."""


def test_a_dataset_with_records_that_do_not_stack_is_refused():
    ragged = Ragged([(torch.zeros(FEATURES), 0), (torch.zeros(3), 1), (torch.zeros(FEATURES), 1)])
    with pytest.raises(DataError, match="client 0"):
        adopt([ragged])
    words = Ragged([("a", 0), ("b", 1), ("c", 1)])
    with pytest.raises(DataError, match="client 0"):
        adopt([words])
    with pytest.raises(DataError, match="client 0 has no records"):
        adopt([Ragged()])


def test_a_client_of_one_record_is_fine():
    made = job(clients=federation((1, 12, 1)), method="dp-fedavg")
    assert made.plan.smallest_client == 1 and made.federation.data.size(0) == 1


def test_a_batch_larger_than_a_client_is_refused():
    refused(
        federation((12, 4)), r"batch_size 5 is larger than the smallest client's 4 records", SpecError, batch_size=5
    )
    job(clients=federation((12, 4)), batch_size=4, method="none")


def kinds():
    pairs = federation()
    return {
        "tensors": pairs,
        "dict": dict(enumerate(pairs)),
        "lists": [[x, y] for x, y in pairs],
        "numpy": [(x.double().numpy(), y.int().numpy()) for x, y in pairs],
        "pandas": [(pd.DataFrame(x.numpy()), pd.Series(y.numpy(), index=range(5, 17))) for x, y in pairs],
        "datasets": [TensorDataset(x, y) for x, y in pairs],
    }


@pytest.mark.parametrize("kind", kinds())
def test_all_kinds_of_data_give_the_same_clients(kind):
    held, expected = adopt(kinds()[kind]), adopt(federation())
    assert torch.equal(held.x, expected.x) and torch.equal(held.y, expected.y)
    assert held.x.dtype == torch.float32 and held.y.dtype == torch.int64 and held.count == 8


def test_fetching_gives_the_clients_asked_for_in_that_order():
    pairs = federation((2, 3, 4, 5))
    held = adopt(pairs)
    for ids in ([0, 1, 2, 3], [3, 1], [2], [1, 2], []):
        batch = held.fetch(ids, CPU)
        assert batch.sizes == tuple(len(pairs[i][1]) for i in ids)
        assert torch.equal(batch.x, torch.cat([pairs[i][0] for i in ids] or [torch.zeros(0, FEATURES)]))
        assert torch.equal(batch.y, torch.cat([pairs[i][1] for i in ids] or [torch.zeros(0, dtype=torch.int64)]))


def test_splitting_gives_every_record_to_one_client():
    from sordino.core.rng import Stream

    parts = iid(103, 10, Stream.research(1))
    assert sorted(np.concatenate(parts).tolist()) == list(range(103))
    assert {len(p) for p in parts} == {10, 11}
    assert parts[0].tolist() != list(range(11))
    held = ArrayClients.split(torch.arange(103.0)[:, None], torch.arange(103), parts)
    assert held.fetch([4], CPU).y.tolist() == parts[4].tolist()
    with pytest.raises(DataError, match="cannot give each of 4 clients"):
        iid(3, 4, Stream.research(1))


def test_lazy_clients_are_made_when_drawn_and_checked_then():
    asked = []

    def make(i):
        asked.append(i)
        return X + i, Y

    lazy = LazyClients(10**6, 12, make)
    batch = lazy.fetch([7, 10**5], CPU)
    assert asked == [7, 10**5] and batch.sizes == (12, 12) and torch.equal(batch.x[12:], X + 10**5)
    assert lazy.fetch([], CPU).x.shape == (0, FEATURES)
    with pytest.raises(DataError, match="client 3 has 12 records where 5 were declared"):
        LazyClients(9, 5, make).fetch([3], CPU)
    with pytest.raises(DataError, match="client 4: x holds a nan"):
        LazyClients(9, 12, lambda i: (X * float("nan"), Y)).fetch([4], CPU)


def test_a_lazy_label_out_of_range_is_an_error_of_ours(tmp_path):
    with pytest.raises(SordinoError, match="label"):
        lazy = LazyClients(4, 12, lambda i: (X, Y + 5 * (i == 3)))
        sordino.train(torch.nn.Linear(FEATURES, 3), lazy, rounds=1, out=str(tmp_path), device="cpu")
