"""The padded step of the GPU path, run on the CPU: right, pure, and safe where no compiler is to be had."""

import pytest
import torch
from reference import case, loss, middle_norm, naive, naive_groups, relative
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

from sordino.core.types import Batch
from sordino.gradients import Gradients, cost, padded
from sordino.gradients.bookkeeping import BookKeeping
from sordino.gradients.clone import plan
from sordino.gradients.padded import Padded, padding

SIZES = (5, 0, 11, 1)


def book():
    module = nn.Sequential(
        nn.Conv2d(1, 4, 4, 2, 1), nn.GroupNorm(2, 4), nn.Tanh(), nn.MaxPool2d(2, 1), nn.Flatten(), nn.Linear(36, 3)
    )
    layout, weights, batch = case(module, torch.randn(17, 1, 8, 8), SIZES, True)
    return module, BookKeeping(module, loss, layout, plan(module, layout)), weights, batch


@pytest.mark.parametrize("limit", [1000, 20, 1])
@pytest.mark.parametrize("clipped", [True, False])
def test_padding_does_not_show(limit, clipped):
    module, kept, weights, batch = book()
    clip = middle_norm(module, weights, batch) if clipped else None
    got = Padded(kept, None).sums(weights, batch, clip, limit)
    assert relative(got, naive(module, weights, batch, clip)) <= 1e-5


def test_the_traced_step_holds_no_numbers():
    """Traced with one set of tensors, right for another, broken record included."""
    module, kept, weights, batch = book()
    sizes = torch.tensor(SIZES)
    index, alive = padding(sizes.cumsum(0) - sizes, sizes, 16)
    alive = alive.float()
    first = (weights * 0 + 1, batch.x[index] * 0, batch.y[index] * 0, alive * 0, torch.tensor(9.0))
    graph = make_fx(Padded(kept, None)._plain)(*first)
    x = batch.x.clone()
    x[1] = float("nan")
    got = graph(weights, x[index], batch.y[index], alive, torch.tensor(0.5))
    keep = torch.tensor([i for i in range(17) if i != 1])
    expected = naive(module, weights, Batch(x[keep], batch.y[keep], (4, 0, 11, 1)), 0.5)
    assert relative(got, expected) <= 1e-5


def test_no_compiler_no_harm(monkeypatch):
    module, kept, weights, batch = book()

    def fail(*args, **kwargs):
        raise RuntimeError("no compiler here")

    monkeypatch.setattr(padded.torch, "compile", fail)
    with pytest.warns(UserWarning, match="no compiler here"):
        steps = Padded(kept)
        for _ in range(padded.PATIENCE + 1):
            got = steps.sums(weights, batch, 0.5, 50, compiled=True)
    assert relative(got, naive(module, weights, batch, 0.5)) <= 1e-5


@pytest.mark.parametrize("many", [1, 7, 8, 11])
@pytest.mark.parametrize("clip", [0.5, None])
def test_one_client_by_itself(many, clip):
    module, kept, weights, batch = book()
    x, y = batch.x[:many].clone(), batch.y[:many]
    steps = Padded(kept, None)
    got = steps.one(weights[0], Batch(x, y, (many,)), clip)
    assert relative(got, naive(module, weights[0], Batch(x, y, (many,)), clip)[0]) <= 1e-5
    if clip is not None and many > 1:
        x[1] = float("nan")
        keep = [i for i in range(many) if i != 1]
        rest = naive(module, weights[0], Batch(x[keep], y[keep], (many - 1,)), clip)[0]
        assert relative(steps.one(weights[0], Batch(x, y, (many,)), clip, last=True), rest) <= 1e-5


def test_one_client_in_groups_with_shares():
    module, kept, weights, batch = book()
    x, y, share = batch.x[:9], batch.y[:9], torch.tensor([0.5, 0.5, 0.0] * 3)
    got = Padded(kept, None).one(weights[0], Batch(x, y, (9,)), 0.5, 3, share)
    pairs = [i for i in range(9) if i % 3 < 2]
    expected = naive_groups(module, weights[0], Batch(x[pairs], y[pairs], (6,)), 0.5, (2, 2, 2))[0][0]
    assert relative(got, expected) <= 1e-5


def test_few_numbers_of_clients_occur_and_little_is_added():
    numbers = [padded.rounded(n) for n in range(1, 2000)]
    assert all(n <= m <= 1.15 * n + 1 for n, m in enumerate(numbers, 1))
    assert len(set(numbers)) < 80


def test_a_crowd_is_sorted_by_size_and_comes_back_in_order():
    module = nn.Linear(3, 2)
    sizes = tuple(1 + (7 * k) % 23 for k in range(90))
    layout, weights, batch = case(module, torch.randn(sum(sizes), 3), sizes, True)
    kept = BookKeeping(module, loss, layout, plan(module, layout))
    got = Padded(kept, None).sums(weights, batch, 0.5, 10**6)
    assert relative(got, naive(module, weights, batch, 0.5)) <= 1e-5


def test_padding_pays_only_for_sizes_that_are_alike():
    kept = Padded(book()[1])
    assert kept.pays((60, 55, 64)) and not kept.pays((1000, *(1,) * 50))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_compiled_is_the_same():
    module, kept, weights, batch = book()
    steps = Padded(kept, "aot_eager")
    for compiled in (False, True):  # where that was asked for
        for _ in range(padded.PATIENCE + 1):
            got = steps.sums(weights, batch, 0.5, 50, compiled=compiled)
        assert bool(steps._steps) == compiled
    assert relative(got, naive(module, weights, batch, 0.5)) <= 1e-5


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("stacked", [False, True], ids=["shared", "own"])
@pytest.mark.filterwarnings("default")  # of the compiler
def test_on_a_gpu(stacked, monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    module, _, weights, batch = book()
    weights = weights if stacked else weights[0]
    layout = case(module, batch.x, SIZES, False)[0]
    gradients = Gradients.of(module, loss, layout)
    gradients.compiled = True
    for clip, small in ((0.5, 0), (0.5, 1), (None, 1)):
        monkeypatch.setattr(padded, "SMALL", small or 10**12)
        for _ in range(padded.PATIENCE + 1):  # as it is, then compiled or recorded
            got = gradients.sums(weights.cuda(), Batch(batch.x.cuda(), batch.y.cuda(), SIZES), clip).cpu()
            assert relative(got, naive(module, weights, batch, clip)) <= 1e-5


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_one_client_after_the_other(monkeypatch):
    """Big clients: each recorded, with weights for which PyTorch has kernels; then too big to be recorded."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    monkeypatch.setattr(cost, "ALONE", 0)
    module, _, weights, batch = book()
    gradients = Gradients.of(module, loss, case(module, batch.x, SIZES, False)[0])
    expected, there = naive(module, weights, batch, 0.5), Batch(batch.x.cuda(), batch.y.cuda(), SIZES)
    for few in (padded.FEW, 10**12):
        monkeypatch.setattr(padded, "FEW", few)
        for _ in range(padded.TRIES + 3):
            assert relative(gradients.sums(weights.cuda(), there, 0.5).cpu(), expected) <= 1e-5
    assert any(isinstance(step, padded.Replay) for step in gradients._padded._steps.values())


def test_a_small_step_is_recorded_and_never_compiled(monkeypatch):
    module, kept, weights, batch = book()
    made = []

    class Fake(padded.Replay):
        def __init__(self, run, inputs):
            made.append(len(inputs))
            self.run = run

        def __call__(self, *inputs):
            return self.run(*inputs)

    monkeypatch.setattr(padded, "Replay", Fake)
    monkeypatch.setattr(padded.torch, "compile", lambda *a, **k: pytest.fail("compiled"))
    monkeypatch.setattr(Padded, "_record", lambda self, plain, inputs: Fake(plain, inputs))
    steps = Padded(kept)
    for turn in range(padded.PATIENCE + 2):
        got = steps.sums(weights, batch, 0.5, 10**6)
        assert len(made) == (turn >= padded.TRIES)
        assert relative(got, naive(module, weights, batch, 0.5)) <= 1e-5
