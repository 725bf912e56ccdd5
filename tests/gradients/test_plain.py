"""Sums without a clip by ordinary backward passes: the same sums, where they are chosen, and where they must not be."""

import pytest
import torch
import torch.nn.functional as F
from reference import case, loss, naive, naive_groups, relative
from test_models import Direct, Residual, Tied, Viewing
from torch import nn

from sordino.core.types import Batch
from sordino.gradients import CohortGradients, cost, plain
from sordino.gradients.code import Code


class Mixing(nn.Module):
    """Takes the mean over the batch away: its samples meet."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 5))

    def forward(self, x):
        y = x @ self.weight.t()
        return (y - 0.5 * y.mean(0, keepdim=True)).sin()


class Dropping(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(30, 5))

    def forward(self, x):
        return F.dropout(x @ self.weight.t(), 0.5, self.training)


def smooth():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, 1, 1), nn.GroupNorm(2, 8), nn.Tanh(), nn.Conv2d(8, 4, 2, 2), nn.Flatten(), nn.Linear(64, 3)
    )


@pytest.fixture
def always(monkeypatch):
    """Passes of their own for every client, counted."""
    calls = []
    real = plain.Plain.sums
    monkeypatch.setitem(cost.PLAIN, "cpu", 0)
    monkeypatch.setattr(plain.Plain, "sums", lambda self, *args: calls.append(args) or real(self, *args))
    return calls


@pytest.mark.parametrize("sizes", [(4, 0, 1, 6), (3, 3, 3)], ids=str)
@pytest.mark.parametrize("stacked", [False, True], ids=["shared", "own"])
@pytest.mark.parametrize("make", [smooth, Residual, lambda: Viewing()], ids=["smooth", "residual", "viewing"])
def test_the_same_sums(make, stacked, sizes, always, monkeypatch):
    module = make()
    x = torch.randn(11, 3, 5, 5) if isinstance(module, Viewing) else torch.randn(11, 3, 8, 8)
    layout, weights, batch = case(module, x, sizes, stacked)
    lengths = (3, 1, 1, 2, 4) if sizes[0] == 4 else (1, 2, 3, 2, 1)
    for limit in (None, 2):
        if limit:
            monkeypatch.setattr(cost, "records", lambda *_, limit=limit: limit)
        gradients = CohortGradients.of(module, loss, layout)
        assert relative(gradients.sums(weights, batch, None), naive(module, weights, batch, None)) <= 1e-5
        got = gradients.sums(weights, batch, None, groups=lengths)
        assert relative(got, naive_groups(module, weights, batch, None, lengths)[0]) <= 1e-5
    assert len(always) == 4


def test_exact_in_double_precision(always, monkeypatch):
    """Both ways, nothing approximated: they agree to the last digits."""
    module = smooth().double()
    layout, weights, batch = case(module, torch.randn(9, 3, 8, 8), (4, 5), True)
    weights, batch = weights.double(), Batch(batch.x.double(), batch.y.double(), batch.sizes)
    own = CohortGradients.of(module, loss, layout).sums(weights, batch, None)
    assert len(always) == 1
    monkeypatch.setitem(cost.PLAIN, "cpu", 10**12)
    together = CohortGradients.of(module, loss, layout).sums(weights, batch, None)
    assert len(always) == 1 and relative(own, together) <= 1e-12


def test_dropout_draws_what_the_book_draws(always, monkeypatch):
    module = nn.Sequential(smooth(), nn.Dropout(0.5), nn.Linear(3, 4), nn.Dropout(0.3))
    layout, weights, batch = case(module, torch.randn(9, 3, 8, 8), (4, 5), True)
    state = torch.random.get_rng_state()
    own = CohortGradients.of(module, loss, layout).sums(weights, batch, None, seeds=(5, 6))
    other = CohortGradients.of(module, loss, layout).sums(weights, batch, None, seeds=(5, 7))
    assert len(always) == 2 and torch.equal(own[0], other[0]) and not torch.equal(own[1], other[1])
    assert torch.equal(state, torch.random.get_rng_state())
    monkeypatch.setitem(cost.PLAIN, "cpu", 10**12)
    together = CohortGradients.of(module, loss, layout).sums(weights, batch, None, seeds=(5, 6))
    assert len(always) == 2 and relative(own, together.double()) <= 1e-5


@pytest.mark.parametrize("make", [Tied, Direct, Dropping], ids=lambda m: m.__name__)
def test_models_without_a_book_take_it_whatever_their_size(make, always, monkeypatch):
    monkeypatch.setitem(cost.PLAIN, "cpu", 10**12)
    module = make()
    x = torch.randint(0, 5, (7, 6)) if make is Tied else torch.randn(7, 5)
    layout, weights, batch = case(module, x, (3, 0, 4), True)
    gradients = CohortGradients.of(module, loss, layout)
    got = gradients.sums(weights, batch, None, seeds=(1, 2, 3))
    assert len(always) == 1 and gradients.path == "vmap"
    if make is Dropping:
        again = gradients.sums(weights, batch, None, seeds=(1, 9, 4))
        assert torch.equal(got[0], again[0]) and not torch.equal(got[2], again[2])
    else:
        assert relative(got, naive(module, weights, batch, None)) <= 1e-5


@pytest.mark.parametrize("first", [1, 5])
def test_a_model_whose_samples_meet_is_still_given_them_one_by_one(first, always):
    module = Mixing()
    layout, weights, batch = case(module, torch.randn(7, 5), (3, 4), True)
    gradients = CohortGradients.of(module, loss, layout)
    gradients.sums(weights[0], Batch(batch.x[:first], batch.y[:first], (first,)), 1.0)  # the look
    assert relative(gradients.sums(weights, batch, None), naive(module, weights, batch, None)) <= 1e-5
    assert not always


def test_memory_is_counted_where_no_book_is_kept(monkeypatch):
    """A hidden layer of 1000 numbers keeps thousands of them a sample, whatever its weights take."""
    module = Direct()
    module.linear = nn.Linear(5, 1000)
    layout, weights, batch = case(module, torch.randn(2, 6, 5), (2,), False)
    fit = plain.Plain(Code(module, loss), layout).fit(weights, batch, False)
    assert fit.usable and 6_000 <= fit.numbers <= 60_000


def test_the_size_of_a_client_decides():
    assert cost.plain(2_500_000, (32, 32), True) and not cost.plain(24_000, (8,) * 50, True)
    assert cost.plain(2_500_000, (64,) * 10, False) and not cost.plain(24_000, (64,) * 50, False)
    assert cost.plain(100_000, (40, 0, 0), True) and not cost.plain(100_000, (40, 1, 1), True)


def pair(module, layout):
    exact, rough = CohortGradients.of(module, loss, layout), CohortGradients.of(module, loss, layout)
    rough.autocast = True
    return exact, rough


def test_bfloat16_is_for_gpus_only():
    """On CPUs it saves little, and kernels for it have been met that crash."""
    module = smooth()
    layout, weights, batch = case(module, torch.randn(9, 3, 8, 8), (4, 5), True)
    exact, rough = pair(module, layout)
    for clip in (None, 0.1):
        assert torch.equal(exact.sums(weights, batch, clip), rough.sums(weights, batch, clip))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_bfloat16_on_a_gpu(monkeypatch):
    monkeypatch.setattr(cost, "records", lambda *_: 4)
    module = smooth()
    layout, weights, batch = case(module, torch.randn(9, 3, 8, 8), (4, 5), True)
    weights, batch = weights.cuda(), Batch(batch.x.cuda(), batch.y.cuda(), batch.sizes)
    exact, rough = pair(module.cuda(), layout)
    expected, got = exact.sums(weights, batch, None), rough.sums(weights, batch, None)
    assert got.dtype == torch.float32 and 1e-4 < relative(got, expected.double()) < 0.05
    for groups in (None, (4, 5)):  # the second group is wider than a chunk
        a, b = (g.sums(weights, batch, 0.1, groups=groups) for g in (exact, rough))
        assert 1e-4 < relative(b, a.double()) < 0.05


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("stacked", [False, True], ids=["shared", "own"])
def test_on_a_gpu(stacked, monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    monkeypatch.setitem(cost.PLAIN, "cuda", 0)
    module = smooth()
    layout, weights, batch = case(module, torch.randn(9, 3, 8, 8), (4, 0, 5), stacked)
    on = Batch(batch.x.cuda(), batch.y.cuda(), batch.sizes)
    gradients, groups = CohortGradients.of(module, loss, layout), (2, 2, 3, 2)
    assert relative(gradients.sums(weights.cuda(), on, None).cpu(), naive(module, weights, batch, None)) <= 1e-5
    for clip in (None, 0.1):
        got = gradients.sums(weights.cuda(), on, clip, groups=groups).cpu()
        assert relative(got, naive_groups(module, weights, batch, clip, groups)[0]) <= 1e-5
