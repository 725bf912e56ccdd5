"""Recorded passes: the same sums, recorded when a shape has come often enough, and never more of them than allowed."""

from typing import ClassVar

import pytest
import torch
from reference import case, loss, naive, relative
from torch import nn

from sordino.core.types import Batch
from sordino.gradients import CohortGradients, cost, graphed
from sordino.gradients.graphed import COMPILED, LANES, OFTEN, PATIENCE, SHAPES, Graphed


def run(weights, x, y, out):
    out.add_(weights * x.sum())


class Fake:
    """A lane without a GPU; it counts."""

    made = 0  # recordings
    under_way: ClassVar = []  # what has not been waited for

    def __init__(self, weights):
        self.runs, self.seen = {}, 0

    def record(self, key, run, x, y):
        type(self).made += 1
        self.runs[key] = run

    def add(self, key, weights, x, y, out):
        self.seen += 1
        type(self).under_way.append(self)
        self.runs[key](weights.clone(), x.clone(), y.clone(), out)

    def join(self):
        while self in type(self).under_way:
            type(self).under_way.remove(self)


class Broken(Fake):
    def record(self, *parts):
        type(self).made += 1
        raise RuntimeError("operation not permitted when stream is capturing")


def lanes_of(passes):
    return passes._lanes[torch.device("cpu")]


@pytest.fixture
def fake(monkeypatch):
    Fake.made = Broken.made = 0
    Fake.under_way.clear()
    monkeypatch.setattr(graphed, "Lane", Fake)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    return monkeypatch


def sums(passes, sizes, kind="a"):
    out = torch.zeros(3)
    for n in sizes:
        passes.add(run, kind, [(torch.arange(3.0), torch.ones(n, 2), torch.zeros(n), out)])
    assert not Fake.under_way
    return out


def cohort(passes, sizes, limit):
    """Every client has a row of its own."""
    out = torch.zeros(len(sizes), 3)
    jobs = [(torch.arange(3.0), torch.ones(n, 2), torch.zeros(n), out[k]) for k, n in enumerate(sizes)]
    passes.add(run, "a", jobs, limit)
    assert not Fake.under_way
    return out


def test_a_shape_is_recorded_when_it_has_come_often_enough(fake):
    passes = Graphed()
    expected = torch.arange(3.0) * 2 * 5
    for turn in range(PATIENCE + 4):
        assert torch.equal(sums(passes, [5]), expected)
        assert Fake.made == (turn >= PATIENCE)
    (lane,) = lanes_of(passes)
    assert lane.seen == 4


def test_clients_take_turns_in_lanes_of_which_there_are_as_many_as_memory_allows(fake):
    for limit, lanes in ((5, 1), (14, 2), (10**6, LANES)):
        passes, Fake.made = Graphed(), 0
        for _ in range(4):
            assert torch.equal(cohort(passes, [5] * 8, limit), torch.arange(3.0).expand(8, 3) * 10)
        assert Fake.made == lanes
        found = lanes_of(passes)
        assert sum(one.seen for one in found) == 4 * 8 - PATIENCE
        assert max(one.seen for one in found) - min(one.seen for one in found) <= PATIENCE


def test_parts_of_one_client_run_one_after_the_other(fake):
    class Watchful(Fake):
        def add(self, key, weights, x, y, out):
            assert not [one for one in Fake.under_way if one.last == out.data_ptr()]
            self.last = out.data_ptr()
            Fake.under_way.append(self)
            self.runs[key](weights, x, y, out)

        def join(self):
            while self in Fake.under_way:
                Fake.under_way.remove(self)

    fake.setattr(graphed, "Lane", Watchful)
    passes, out = Graphed(), torch.zeros(2, 3)
    parts = ((0, 2), (0, 3), (0, 2), (1, 3))
    for _ in range(PATIENCE + 1):
        passes.add(run, "a", [(torch.arange(3.0), torch.ones(n, 2), torch.zeros(n), out[k]) for k, n in parts], 100)
    assert torch.equal(out, torch.arange(3.0) * 2 * (PATIENCE + 1) * torch.tensor([[7.0], [3.0]]))
    assert Watchful.made == 2 * LANES and not Fake.under_way


def test_another_kind_of_pass_is_another_recording_and_there_are_only_so_many(fake):
    passes = Graphed()
    for n in range(1, SHAPES + 5):
        assert torch.equal(sums(passes, [n] * (PATIENCE + 2)), torch.arange(3.0) * 2 * n * (PATIENCE + 2))
    assert Fake.made == SHAPES
    passes = Graphed()
    for kind in ("a", "b"):
        sums(passes, [3] * (PATIENCE + 1), kind)
    assert len(passes._known) == 2


def test_what_cannot_be_recorded_runs_as_it_is_and_is_not_tried_again(fake):
    fake.setattr(graphed, "Lane", Broken)
    passes = Graphed()
    for _ in range(3):
        times = PATIENCE + 2
        assert torch.equal(sums(passes, [5] * times), torch.arange(3.0) * 10 * times)
    assert Broken.made == 1


def test_a_shape_that_comes_often_is_compiled_where_asked_for_and_not_too_many(fake):
    compiled = []

    def compile_pass(run, weights, x, y):
        compiled.append(len(x))
        return run

    fake.setattr(graphed, "compile_pass", compile_pass)
    for asked in (False, True):
        passes = Graphed()
        for n in (5, 6, 7, 8):
            out = torch.zeros(3)
            for _ in range(OFTEN + 1):
                passes.add(run, "a", [(torch.arange(3.0), torch.ones(n, 2), torch.zeros(n), out)], compiled=asked)
            assert torch.equal(out, torch.arange(3.0) * 2 * n * (OFTEN + 1))
    assert compiled == [5, 6] == [5, 6][:COMPILED]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_a_recorded_pass_gives_the_same_sums(monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    monkeypatch.setitem(cost.PLAIN, "cuda", 0)
    module = nn.Sequential(nn.Conv2d(3, 8, 3, 1, 1), nn.GroupNorm(2, 8), nn.Tanh(), nn.Flatten(), nn.Linear(512, 3))
    layout, _, _ = case(module, torch.randn(2, 3, 8, 8), (2,), False)
    gradients = CohortGradients.of(module, loss, layout)
    for turn in range(6):  # other weights and records every time: nothing of an earlier call may stay
        torch.manual_seed(turn)
        _, weights, batch = case(module, torch.randn(12, 3, 8, 8), (4, 4, 4), True)
        got = gradients.sums(weights.cuda(), Batch(batch.x.cuda(), batch.y.cuda(), batch.sizes), None)
        assert relative(got.cpu(), naive(module, weights, batch, None)) <= 1e-5
    assert list(gradients._plain._graphed._known.values()) == [LANES]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_lanes_beside_each_other_give_what_one_gives(monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    monkeypatch.setitem(cost.PLAIN, "cuda", 0)
    module = nn.Sequential(
        nn.Conv2d(3, 32, 3, 1, 1), nn.ReLU(), nn.Flatten(), nn.Linear(32 * 256, 64), nn.Linear(64, 10)
    )
    layout, weights, batch = case(module, torch.randn(24 * 20, 3, 16, 16), (20,) * 24, True)
    weights, batch = weights.cuda(), Batch(batch.x.cuda(), batch.y.cuda(), batch.sizes)
    found = []
    for lanes in (1, 8):
        monkeypatch.setattr(graphed, "LANES", lanes)
        gradients = CohortGradients.of(module, loss, layout)
        found.append([gradients.sums(weights, batch, None) for _ in range(30)][-1])
    assert torch.equal(*found)


@pytest.mark.gpu
@pytest.mark.filterwarnings("default")  # of the compiler
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_a_compiled_pass_gives_the_same_sums(monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    monkeypatch.setitem(cost.PLAIN, "cuda", 0)
    monkeypatch.setattr(graphed, "OFTEN", 9)
    module = nn.Sequential(nn.Conv2d(3, 8, 3, 1, 1), nn.GroupNorm(2, 8), nn.ReLU(), nn.Flatten(), nn.Linear(512, 3))
    layout, weights, batch = case(module, torch.randn(12, 3, 8, 8), (4, 4, 4), True)
    gradients = CohortGradients.of(module, loss, layout)
    gradients.compiled = True
    for _ in range(6):
        got = gradients.sums(weights.cuda(), Batch(batch.x.cuda(), batch.y.cuda(), batch.sizes), None)
        assert relative(got.cpu(), naive(module, weights, batch, None)) <= 1e-5
    assert gradients._plain._graphed._compiled
