"""Batches that a GPU draws, on a processor that is taken for one: the same kinds of batches as on a processor."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from sordino.contract import clipped_steps, local_sgd
from sordino.core.local_training import Local
from sordino.core.rng import RowStream, Stream
from sordino.core.types import Batch
from sordino.data.clients import ArrayClients

SIZES = (7, 0, 20, 3)
STARTS = (0, 7, 7, 27, 30)
RNG = Stream.research(5).rows([4, 9, 2, 11])


def data():
    numbers = torch.arange(sum(SIZES))
    return Batch(numbers, numbers, SIZES)


@pytest.fixture
def pretended(monkeypatch):
    monkeypatch.setattr(RowStream, "draws_on", lambda self, device: True)


@pytest.mark.parametrize("counts", [(6, 0, 12, 4), (4, 0, 1, 9)])
def test_shuffled_passes_hold_every_record_once(monkeypatch, counts):
    local = Local(steps=None, epochs=2.0, batch_size=4, batch_rate=None)
    usual = [batch.sizes for batch in local_sgd.batches(data(), local, counts, RNG)]
    monkeypatch.setattr(RowStream, "draws_on", lambda self, device: True)
    steps = list(local_sgd.batches(data(), local, counts, RNG))
    assert [batch.sizes for batch in steps] == usual and len(steps) == max(counts)
    for k, size in enumerate(SIZES):
        seen = torch.cat([batch.x.split(list(batch.sizes))[k] for batch in steps]).tolist()
        mine = list(range(STARTS[k], STARTS[k + 1]))
        for first in range(0, len(seen) - size + 1, max(1, size)):
            assert sorted(seen[first : first + size]) == mine
        assert set(seen) <= set(mine)
    again = [batch.x.tolist() for batch in local_sgd.batches(data(), local, counts, RNG)]
    assert again == [batch.x.tolist() for batch in steps]


def test_poisson_batches_drawn_ahead_are_those_drawn_one_by_one(pretended, monkeypatch):
    monkeypatch.setattr(clipped_steps, "AHEAD", 3)
    plan = SimpleNamespace(local=Local(steps=8, batch_rate=0.4), unit="record", exact=None)
    rngs = [RNG.at("batch", number) for number in range(8)]
    ahead = list(clipped_steps.batches_of(data(), plan, "poisson", rngs))
    for rng, batch in zip(rngs, ahead, strict=True):
        index, counts = rng.poisson(SIZES, [0.4] * 4, torch.device("cpu"))
        assert batch.x.tolist() == index.tolist() and batch.sizes == counts
    assert 40 < sum(len(batch.x) for batch in ahead) < 160


def test_clients_are_fetched_by_place():
    clients = ArrayClients(torch.arange(30), torch.arange(30), SIZES)
    for ids in ([2, 0], [3], [1], [0, 3, 2]):
        index = clients._places(np.asarray(ids))
        assert index.tolist() == clients.fetch(ids, torch.device("cpu")).x.tolist()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_clients_on_a_gpu_are_fetched_there():
    clients = ArrayClients(torch.arange(30), torch.arange(30), SIZES, tags=torch.arange(30))
    near = clients.to(torch.device("cuda"))
    for ids in ([2, 0], [3], [1, 2], [0, 3]):
        here, there = clients.fetch(ids, torch.device("cpu")), near.fetch(ids, torch.device("cuda"))
        assert there.x.is_cuda and there.sizes == here.sizes
        assert there.x.tolist() == here.x.tolist() and there.tags.tolist() == here.tags.tolist()
