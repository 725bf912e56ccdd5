"""The padded step of the GPU path, run on the CPU: right, pure, and safe where no compiler is to be had."""

import pytest
import torch
from reference import case, loss, middle_norm, naive, naive_groups, naive_layers, naive_scaled, relative
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

from sordino.core.types import Batch
from sordino.gradients import CohortGradients, cost, engine, padded
from sordino.gradients.bookkeeping import BookKeeping
from sordino.gradients.clone import plan
from sordino.gradients.code import Code
from sordino.gradients.padded import Padded, padding

SIZES = (5, 0, 11, 1)


def book():
    module = nn.Sequential(
        nn.Conv2d(1, 4, 4, 2, 1), nn.GroupNorm(2, 4), nn.Tanh(), nn.MaxPool2d(2, 1), nn.Flatten(), nn.Linear(36, 3)
    )
    layout, weights, batch = case(module, torch.randn(17, 1, 8, 8), SIZES, True)
    return module, BookKeeping(Code(module, loss), layout, plan(module, layout)), weights, batch


@pytest.mark.parametrize("limit", [1000, 20, 1])
@pytest.mark.parametrize("clipped", [True, False])
def test_padding_does_not_show(limit, clipped):
    module, kept, weights, batch = book()
    clip = middle_norm(module, weights, batch) if clipped else None
    got = Padded(kept, None).sums(weights, batch, clip, limit)
    assert relative(got, naive(module, weights, batch, clip)) <= 1e-5


@pytest.mark.parametrize("limit", [1000, 20])
@pytest.mark.parametrize("clipped", [True, False])
def test_weights_that_clients_share_stay_shared(limit, clipped, monkeypatch):
    module, kept, weights, batch = book()
    clip = middle_norm(module, weights[0], batch) if clipped else None
    seen = []
    pure = kept.pure
    monkeypatch.setattr(kept, "pure", lambda *args: seen.append(args[0].shape) or pure(*args))
    got = Padded(kept, None).sums(weights[0], batch, clip, limit)
    assert relative(got, naive(module, weights[0], batch, clip)) <= 1e-5
    assert set(seen) == {weights[0].shape}
    assert not got[1].any()  # who has no records


@pytest.fixture
def tiles(monkeypatch):
    monkeypatch.setattr(padded, "TILE", 4)
    monkeypatch.setattr(padded, "CROWD", 2)


@pytest.mark.parametrize("limit", [1000, 12, 1])
@pytest.mark.parametrize("clipped", [True, False])
@pytest.mark.parametrize("own", [True, False])
def test_tiles_do_not_show(tiles, limit, clipped, own):
    module, kept, weights, batch = book()
    each = weights if own else weights[0]
    clip = middle_norm(module, each, batch) if clipped else None
    steps = Padded(kept, None)
    assert steps.tiles((9, 8, 11), 1000, 1000, 1) and not steps.tiles((9, 8, 11), 10_000, 1000, 1)
    assert not steps.tiles((9, 0, 1), 1000, 1000, 1) and not steps.tiles((9, 8, 11), 1000, 1000, 3)
    bound = None if clip is None else torch.tensor(clip)
    got = steps._tiled(each, batch, bound, limit, 1, None, None, False)
    assert relative(got, naive(module, each, batch, clip)) <= 1e-5
    assert not got[1].any()  # who has no records


def test_tiles_of_many_clients_are_chosen_scaled_and_dropped(tiles, monkeypatch):
    module, kept, weights, batch = book()
    sizes, seen = (5, 6, 6), []
    pure = kept.pure
    monkeypatch.setattr(kept, "pure", lambda *args: seen.append(args[0].shape[0]) or pure(*args))
    monkeypatch.setattr(padded, "TILE", 2)
    scale = torch.rand(3, weights.shape[1]) + 0.5
    x = batch.x.clone()
    x[7] = float("inf")
    keep = torch.tensor([i for i in range(17) if i != 7])
    rest, own = Batch(x[keep], batch.y[keep], (5, 5, 6)), weights[[0, 2, 3]]
    expected = naive_scaled(module, own, rest, 0.7, scale)[0]
    got = Padded(kept, None).sums(own, Batch(x, batch.y, sizes), 0.7, 1000, scale=scale, numbers=10**6)
    assert seen == [9]  # 3 + 3 + 3 tiles of two records
    assert relative(got, expected) <= 1e-5
    share = torch.tensor([0.5, 0.25] * 8 + [0.5])
    pairs = Batch(batch.x[:16], batch.y[:16], (4, 6, 6))
    got = Padded(kept, None).sums(own, pairs, 0.7, 1000, 2, share[:16], numbers=10**6)
    whole = Padded(kept, None).sums(own, pairs, 0.7, 1000, 2, share[:16])
    assert relative(got, whole) <= 1e-5


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
    got = steps.single_client(weights[0], Batch(x, y, (many,)), clip)
    assert relative(got, naive(module, weights[0], Batch(x, y, (many,)), clip)[0]) <= 1e-5
    for broken in (0, 1) if clip is not None and many > 1 else ():  # the first one fills up
        torn = x.clone()
        torn[broken] = float("nan")
        keep = [i for i in range(many) if i != broken]
        rest = naive(module, weights[0], Batch(x[keep], y[keep], (many - 1,)), clip)[0]
        assert relative(steps.single_client(weights[0], Batch(torn, y, (many,)), clip), rest) <= 1e-5


def test_one_client_in_groups_with_shares():
    module, kept, weights, batch = book()
    x, y, share = batch.x[:9], batch.y[:9], torch.tensor([0.5, 0.5, 0.0] * 3)
    got = Padded(kept, None).single_client(weights[0], Batch(x, y, (9,)), 0.5, 3, share)
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
    kept = BookKeeping(Code(module, loss), layout, plan(module, layout))
    got = Padded(kept, None).sums(weights, batch, 0.5, 10**6)
    assert relative(got, naive(module, weights, batch, 0.5)) <= 1e-5


def test_padding_pays_only_for_sizes_that_are_alike():
    kept = Padded(book()[1])
    assert kept.pays((60, 55, 64)) and not kept.pays((1000, *(1,) * 50))
    many = tuple(50 + k % 9 for k in range(padded.CROWD))
    assert padded.crowded(many) and not padded.crowded(many[1:]) and not padded.crowded((60,) * 1000)


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
    gradients = CohortGradients.of(module, loss, layout)
    gradients.compiled = True
    for clip, small in ((0.5, 0), (0.5, 1), (None, 1)):
        monkeypatch.setattr(padded, "SMALL", small or 10**12)
        for _ in range(padded.PATIENCE + 1):  # as it is, then compiled or recorded
            got = gradients.sums(weights.cuda(), Batch(batch.x.cuda(), batch.y.cuda(), SIZES), clip).cpu()
            assert relative(got, naive(module, weights, batch, clip)) <= 1e-5


class Traced(padded.Replay):
    """A recording for machines without a GPU: it, too, would hold what is no input."""

    def __init__(self, run, places):
        self.graph = make_fx(run)(*places)

    def __call__(self, *inputs):
        return self.graph(*inputs)


GPU = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=GPU)])
@pytest.mark.parametrize("kind", ["clip", "broken", "layers", "scale", "groups"])
def test_big_clients_come_one_after_the_other_each_recorded(kind, device, monkeypatch):
    if device == "cpu":
        monkeypatch.setattr(engine.Call, "cuda", property(lambda call: True))
        monkeypatch.setattr(Padded, "_record", lambda self, plain, inputs, need=0: Traced(plain, inputs))
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    monkeypatch.setattr(cost, "ALONE", 0)
    module, _, weights, batch = book()
    gradients = CohortGradients.of(module, loss, case(module, batch.x, SIZES, False)[0])
    middle, scale = middle_norm(module, weights, batch), torch.rand(weights.shape) + 0.5
    generator, groups = torch.Generator().manual_seed(1), (2, 3, 2, 2, 3, 4, 1)
    for turn in range(padded.TRIES + 4):
        own, clip = weights * (1 + turn / 10), middle * (0.5, 1.0)[turn % 2]
        x, y, keys = torch.randn(batch.x.shape, generator=generator), batch.y.roll(turn), {}
        whole = Batch(x, y, SIZES)
        if kind == "broken":  # the first record of a client, which also fills up
            x = x.clone()
            x[5] = float("nan")
            rest = [i for i in range(17) if i != 5]
            expected = naive(module, own, Batch(x[rest], y[rest], (5, 0, 10, 1)), clip)
        elif kind == "layers":
            keys["layers"] = [clip, 2 * clip, 3 * clip]
            expected = naive_layers(module, own, whole, keys["layers"])[0]
        elif kind == "scale":
            keys["scale"] = (scale * (1 + turn)).to(device)
            expected = naive_scaled(module, own, whole, clip, scale * (1 + turn))[0]
        elif kind == "groups":
            keys["groups"] = groups
            expected = naive_groups(module, own, whole, clip, groups)[0]
        else:
            expected = naive(module, own, whole, clip)
        there = Batch(x.to(device), y.to(device), SIZES)
        got = gradients.sums(own.to(device), there, None if kind == "layers" else clip, **keys).cpu()
        assert relative(got, expected) <= 1e-5
    made = gradients._padded._steps
    assert made and all(isinstance(step, padded.Replay) and len(key[1][0]) == 1 for key, step in made.items())


def test_clients_for_which_there_is_no_room_come_one_after_the_other_all_the_same(monkeypatch):
    monkeypatch.setattr(engine.Call, "cuda", property(lambda call: True))
    monkeypatch.setattr(Padded, "_record", lambda self, plain, inputs, need=0: plain)
    monkeypatch.setattr(cost, "ALONE", 0)
    monkeypatch.setattr(padded, "SMALL", 10**12)
    module, _, weights, batch = book()
    gradients = CohortGradients.of(module, loss, case(module, batch.x, SIZES, False)[0])
    for _ in range(padded.TRIES + 2):
        assert relative(gradients.sums(weights, batch, 0.5), naive(module, weights, batch, 0.5)) <= 1e-5


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=GPU)])
@pytest.mark.parametrize("groups", [None, (2, 3, 2, 3, 3, 4)])
def test_a_client_that_is_alone_is_recorded_in_parts_that_give_the_same_numbers_before_and_after(
    groups, device, monkeypatch
):
    if device == "cpu":
        monkeypatch.setattr(engine.Call, "cuda", property(lambda call: True))
        monkeypatch.setattr(Padded, "_record", lambda self, plain, inputs, need=0: Traced(plain, inputs))
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    monkeypatch.setattr(padded, "SMALL", 10**12)
    monkeypatch.setattr(Padded, "most", lambda self, numbers, device: 9)
    module, _, weights, batch = book()
    gradients = CohortGradients.of(module, loss, case(module, batch.x, (17,), False)[0])
    middle, seen = middle_norm(module, weights[0], Batch(batch.x, batch.y, (17,))), []
    there = Batch(batch.x.to(device), batch.y.to(device), (17,))
    for _ in range(padded.TRIES + 3):
        seen.append(gradients.sums(weights[0].to(device), there, middle, groups=groups).cpu())
    expected = naive_groups(module, weights[0], Batch(batch.x, batch.y, (17,)), middle, groups or (1,) * 17)[0]
    assert relative(seen[0], expected) <= 1e-5
    assert all(torch.equal(seen[-1], other) for other in seen[padded.TRIES :])
    assert relative(seen[0], seen[-1].double()) <= (0 if device == "cpu" else 1e-6)
    made = gradients._padded._steps
    assert made and all(isinstance(step, padded.Replay) for step in made.values())
    if groups is None:
        assert [key[2][0] for key in made] == [(8, 1, 8, 8), (16, 1, 8, 8)]  # 8 and 9 records, filled up


def test_a_step_of_one_client_needs_a_share_of_the_memory_at_most():
    steps, device = Padded(book()[1], None), torch.device("cpu")
    for numbers in (1, 1000, 2_500_000, 10**9, 10**12):
        most = steps.most(numbers, device)
        assert most == 1 or most * numbers * padded.BYTES <= padded.EACH * 2**34


def test_a_step_in_bfloat16_is_not_that_of_float32(monkeypatch):
    monkeypatch.setattr(Padded, "_record", lambda self, plain, inputs, need=0: plain)
    _, kept, weights, batch = book()
    steps = Padded(kept, None)
    for kept.half in (False, True):
        for _ in range(padded.TRIES + 1):
            steps.single_client(weights[0], Batch(batch.x, batch.y, (17,)), 0.5)
    assert len(steps._steps) == 2


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_recordings_keep_a_share_of_the_memory_and_then_nothing_is_recorded(monkeypatch):
    module, kept, weights, batch = book()
    steps, device = Padded(kept, None), torch.device("cuda")
    x, y, own = batch.x.to(device), batch.y.to(device), weights[0].to(device)
    for many in (8, 16):
        for _ in range(padded.TRIES + 1):
            got = steps.single_client(own, Batch(x[:many], y[:many], (many,)), 0.5)
        assert (
            relative(got.cpu(), naive(module, weights[0], Batch(batch.x[:many], batch.y[:many], (many,)), 0.5)[0])
            < 1e-4
        )
        monkeypatch.setattr(padded, "ALL", 0.0)
    assert [isinstance(step, padded.Replay) for step in steps._steps.values()] == [True, False]


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
    monkeypatch.setattr(Padded, "_record", lambda self, plain, inputs, need=0: Fake(plain, inputs))
    steps = Padded(kept)
    for turn in range(padded.PATIENCE + 2):
        got = steps.sums(weights, batch, 0.5, 10**6)
        assert len(made) == (turn >= padded.TRIES)
        assert relative(got, naive(module, weights, batch, 0.5)) <= 1e-5
