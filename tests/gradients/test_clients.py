"""Rows are private to their clients, threads do not meet, chunks do not show, dropout follows the seed."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.nn.functional as F
from reference import case, loss, naive, relative
from torch import nn

from sordino.core.errors import SpecError
from sordino.core.types import Batch
from sordino.gradients import CohortGradients, cost, engine, padded
from sordino.gradients.split import Split


def small():
    return nn.Sequential(
        nn.Conv2d(1, 4, 4, 2, 1),
        nn.Tanh(),
        nn.MaxPool2d(2, 1),
        nn.Flatten(),
        nn.Linear(36, 8),
        nn.ReLU(),
        nn.Linear(8, 3),
    )


class Dropping(nn.Module):
    """Dropout as a function: drawn from the global generator."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(20, 30)

    def forward(self, x):
        return F.dropout(self.linear(x), 0.5, self.training)


RANDOM = {
    "layer": lambda: nn.Sequential(nn.Linear(20, 30), nn.Dropout(0.5)),
    "function": Dropping,
}


@pytest.mark.parametrize("sizes", [(5, 3, 0, 9), (4, 4, 4)], ids=str)
@pytest.mark.parametrize("stacked", [False, True], ids=["shared", "own"])
@pytest.mark.parametrize("path", ["book-keeping", "vmap"])
def test_row_k_depends_on_client_k_alone(path, stacked, sizes):
    """Bit for bit: other clients' records and weights leave no trace, not even nan."""
    module = small()
    layout, weights, batch = case(module, torch.randn(17, 1, 8, 8), sizes, stacked)
    gradients = CohortGradients.of(module, loss, layout, path)
    clean = gradients.sums(weights, batch, 0.5)
    x = batch.x.clone()
    x[: sizes[0]] = float("nan")
    x[sizes[0] + sizes[1] :] *= -7
    if stacked:
        weights = weights.clone()
        weights[0], weights[2] = 5.0, float("inf")
    got = gradients.sums(weights, Batch(x, batch.y, sizes), 0.5)
    assert torch.equal(got[1], clean[1])
    assert torch.equal(got[0], torch.zeros_like(got[0]))


@pytest.mark.parametrize("stacked", [False, True], ids=["shared", "own"])
def test_threads_give_what_one_gives(stacked):
    module = small()
    layout, weights, batch = case(module, torch.randn(40, 1, 8, 8), (10, 10, 7, 13), stacked)
    gradients = CohortGradients.of(module, loss, layout)
    alone = [gradients.sums(weights, batch, clip) for clip in (0.1, 0.5, 2.0, None)]
    fresh = CohortGradients.of(module, loss, layout)
    with ThreadPoolExecutor(2) as pool:
        for _ in range(5):
            together = list(pool.map(lambda clip: fresh.sums(weights, batch, clip), (0.1, 0.5, 2.0, None)))
            assert all(torch.equal(a, b) for a, b in zip(alone, together, strict=True))


@pytest.mark.parametrize("stacked", [False, True], ids=["shared", "own"])
def test_chunks_do_not_show(stacked, monkeypatch):
    module = small()
    sizes = (10, 0, 1, 7, 13, 2)
    layout, weights, batch = case(module, torch.randn(33, 1, 8, 8), sizes, stacked)
    monkeypatch.setattr(cost, "records", lambda *_: 4)
    monkeypatch.setitem(cost.CHUNK, "cpu", 100)
    got = CohortGradients.of(module, loss, layout).sums(weights, batch, 0.5)
    assert relative(got, naive(module, weights, batch, 0.5)) <= 1e-5


@pytest.mark.parametrize("limit", [1, 3, 5, 100])
@pytest.mark.parametrize("sizes", [(0,), (3, 0, 1), (7, 0, 0, 7, 2, 2, 1), (0, 5, 0)], ids=str)
def test_chunks_cover_every_record_once(sizes, limit):
    seen = torch.zeros(len(sizes), dtype=torch.int64)
    stop = 0
    for clients, records, parts in Split(sizes).chunks(limit):
        assert records.start == stop and sum(parts) == records.stop - records.start <= limit
        stop = records.stop
        seen[clients] += torch.tensor(parts)
    assert tuple(seen.tolist()) == sizes


@pytest.mark.parametrize("name", RANDOM)
def test_dropout_follows_the_client_s_seed(name):
    module = RANDOM[name]()
    layout, weights, batch = case(module, torch.randn(9, 20), (3, 3, 3), False)
    same = Batch(batch.x[:3].repeat(3, 1), batch.y[:3].repeat(3), (3, 3, 3))
    gradients = CohortGradients.of(module, loss, layout)
    state = torch.random.get_rng_state()
    a = gradients.sums(weights, same, 1.0, seeds=(1, 2, 1))
    assert torch.equal(state, torch.random.get_rng_state())
    assert torch.equal(a[0], a[2]) and not torch.equal(a[0], a[1])
    b = gradients.sums(weights, Batch(same.x[3:], same.y[3:], (3, 3)), 1.0, seeds=(2, 5))
    assert torch.equal(b[0], a[1])
    with pytest.raises(SpecError, match="seed"):
        gradients.sums(weights, same, 1.0)
    module.eval()
    assert (
        relative(CohortGradients.of(module, loss, layout).sums(weights, same, 1.0), naive(module, weights, same, 1.0))
        < 1e-5
    )


@pytest.mark.parametrize("name", RANDOM)
def test_dropout_keeps_half_of_each_sample_by_itself(name):
    """The bias gradient of an unsquashed sum is 2 where a unit was kept and 0 where it was not."""
    module = RANDOM[name]()
    layout, weights, batch = case(module, torch.randn(300, 20), (300,), False)
    each = Batch(batch.x, batch.y, (1,) * 300)
    total = lambda p, y: p.sum(1)  # noqa: E731
    rows = CohortGradients.of(module, total, layout).sums(weights, each, None, seeds=range(300))
    kept = rows[:, 600:]
    assert set(kept.unique().tolist()) == {0.0, 2.0}
    assert abs((kept > 0).double().mean().item() - 0.5) < 0.03
    assert len({tuple(row) for row in kept.tolist()}) == 300


@pytest.mark.parametrize("scaled", [False, True], ids=["plain", "scaled"])
def test_big_clients_one_after_the_other_give_the_same_sums(scaled, monkeypatch):
    """As on a GPU; groups of two that are clipped as one stay whole."""
    module, sizes = small(), (6, 4, 0, 8)
    layout, weights, batch = case(module, torch.randn(18, 1, 8, 8), sizes, True)
    gradients = CohortGradients.of(module, loss, layout)
    how = {"groups": (2,) * 9, "scale": torch.rand(4, layout.dim) + 0.5 if scaled else None}
    expected = gradients.sums(weights, batch, 0.5, **how)
    monkeypatch.setattr(cost, "ALONE", 0)
    monkeypatch.setattr(engine.Call, "cuda", True)
    monkeypatch.setattr(padded, "SMALL", 10**12)
    monkeypatch.setattr(padded.Padded, "sums", lambda *args: pytest.fail("padded"))
    assert relative(gradients.sums(weights, batch, 0.5, **how), expected.double()) <= 1e-5
    assert not expected[2].any()
