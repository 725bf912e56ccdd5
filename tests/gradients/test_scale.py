"""CohortGradients clipped by the norm of what they are after division by a scale."""

import pytest
import torch
from reference import case, loss, naive, naive_scaled, relative, singles
from test_layers import First
from test_models import Residual, Tied, Twice, TwiceWords
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

from sordino.core.errors import SpecError
from sordino.core.types import Batch
from sordino.core.vector import Layout
from sordino.gradients import CohortGradients, cost, padded, persample
from sordino.gradients.bookkeeping import BookKeeping
from sordino.gradients.clone import plan
from sordino.gradients.code import Code
from sordino.gradients.padded import Padded
from sordino.gradients.scale import Scale
from sordino.gradients.split import Split

PATHS = ["book-keeping", "vmap"]
N = 9
SIZES = (4, 0, 2, 3)
GROUPS = (1, 3, 0, 2, 2, 1)


def image(c=2, size=6):
    return torch.randn(N, c, size, size)


MODELS = {
    "linear": lambda: (nn.Linear(5, 3), torch.randn(N, 5)),
    "mlp": lambda: (nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3)), torch.randn(N, 5)),
    "few-tokens": lambda: (nn.Sequential(nn.Linear(40, 30), nn.Tanh(), nn.Linear(30, 40)), torch.randn(N, 3, 40)),
    "many-tokens": lambda: (nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3)), torch.randn(N, 6, 5)),
    "cnn": lambda: (
        nn.Sequential(nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.Tanh(), nn.Flatten(), nn.Linear(64, 3)),
        image(),
    ),
    "conv-wide": lambda: (nn.Sequential(nn.Conv2d(2, 8, 2, 2), nn.Tanh(), nn.Conv2d(8, 40, (2, 3))), image()),
    "conv-groups": lambda: (nn.Sequential(nn.Conv2d(2, 4, 2), nn.Tanh(), nn.Conv2d(4, 6, 3, groups=2)), image()),
    "residual": lambda: (Residual(), image(3, 8)),
    "words": lambda: (
        nn.Sequential(nn.Embedding(5, 4), First(nn.LSTM(4, 5, batch_first=True))),
        torch.randint(0, 5, (N, 6)),
    ),
    "long": lambda: (nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 2)), torch.randint(0, 9, (N, 260))),
    "twice": lambda: (Twice(), torch.randn(N, 2, 5)),
    "twice-words": lambda: (TwiceWords(), torch.randint(0, 5, (N, 6))),
}


def wild(*shape, digits=2.0):
    """Positive numbers over several powers of ten."""
    return 10 ** (digits * (2 * torch.rand(*shape) - 1))


def book(module, layout):
    return BookKeeping(Code(module, loss), layout, plan(module, layout))


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # vmap of a fused LSTM
@pytest.mark.parametrize(
    ("path", "stacked", "own", "groups"),
    [
        ("book-keeping", False, False, None),
        ("book-keeping", True, True, None),
        ("book-keeping", False, True, GROUPS),
        ("book-keeping", True, False, GROUPS),
        ("vmap", True, True, GROUPS),
        ("vmap", False, False, None),
    ],
    ids=str,
)
@pytest.mark.parametrize("name", MODELS)
def test_sums_are_those_of_the_naive_loop(name, path, stacked, own, groups):
    module, x = MODELS[name]()
    layout, weights, batch = case(module, x, SIZES, stacked)
    scale = wild(len(SIZES), layout.dim) if own else wild(layout.dim)
    norms = naive_scaled(module, weights, batch, 1.0, scale, groups)[1]
    clip = norms[norms > 0].median().item()
    expected = naive_scaled(module, weights, batch, clip, scale, groups)[0]
    gradients = CohortGradients.of(module, loss, layout, path)
    assert relative(gradients.sums(weights, batch, clip, scale=scale, groups=groups), expected) <= 1e-5


def test_tied_weights_have_a_scale_too():
    module = Tied()
    layout, weights, batch = case(module, torch.randint(0, 5, (N, 6)), SIZES, True)
    scale = wild(len(SIZES), layout.dim)
    clip = naive_scaled(module, weights, batch, 1.0, scale)[1].median().item()
    expected = naive_scaled(module, weights, batch, clip, scale)[0]
    assert relative(CohortGradients.of(module, loss, layout).sums(weights, batch, clip, scale=scale), expected) <= 1e-5


@pytest.mark.parametrize("path", PATHS)
def test_a_scale_of_ones_is_none_and_of_twos_is_twice_the_clip(path):
    module, x = MODELS["cnn"]()
    layout, weights, batch = case(module, x, SIZES, True)
    gradients = CohortGradients.of(module, loss, layout, path)
    ones = gradients.sums(weights, batch, 0.5, scale=torch.ones(layout.dim, dtype=torch.float64))
    assert relative(ones, gradients.sums(weights, batch, 0.5).double()) <= 2e-6
    twos = gradients.sums(weights, batch, 0.5, scale=torch.full((4, layout.dim), 2.0))
    assert relative(twos, gradients.sums(weights, batch, 1.0).double()) <= 2e-6


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("wrong", ["none", "turned", "next client's", "one per cent", "inverse"])
def test_the_comparison_sees_a_wrong_scale(wrong, path):
    module, x = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6)), torch.randn(N, 6)
    layout, weights, batch = case(module, x, (5, 4), False)
    scale = wild(2, layout.dim)
    clip = naive_scaled(module, weights, batch, 1.0, scale)[1].median().item()
    turned = scale.clone()
    for view in (v for v in layout.views(turned).values() if v.dim() == 3):
        view.copy_(view.transpose(1, 2).clone())
    other = {
        "none": scale * 0 + 1,
        "turned": turned,
        "next client's": scale.flip(0),
        "one per cent": scale * 1.01,
        "inverse": 1 / scale,
    }[wrong]
    gradients = CohortGradients.of(module, loss, layout, path)
    expected = naive_scaled(module, weights, batch, clip, scale)[0]
    assert relative(gradients.sums(weights, batch, clip, scale=scale), expected) <= 1e-5
    assert relative(gradients.sums(weights, batch, clip, scale=other), expected) > 1e-3


@pytest.mark.parametrize("own", [False, True], ids=["one scale", "own scales"])
@pytest.mark.parametrize("clip", [1e-6, 0.37, 1e4])
@pytest.mark.parametrize("path", PATHS)
def test_no_scaled_gradient_is_longer_than_the_clip(path, clip, own):
    """Every sample a client of its own, so that a row is one clipped gradient."""
    module = nn.Sequential(nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.Tanh(), nn.Flatten(), nn.Linear(36, 300))
    x = torch.randn(80, 2, 5, 5) * wild(80, 1, 1, 1, digits=6.0)
    layout, weights, batch = case(module, x, (80,), False)
    scale = wild(80, layout.dim, digits=4.0) if own else wild(layout.dim, digits=4.0)
    each = Batch(batch.x, batch.y, (1,) * 80)
    rows = CohortGradients.of(module, loss, layout, path).sums(weights, each, clip, scale=scale)
    norms = (rows.double() / scale.double()).norm(dim=1)
    assert norms.max().item() <= clip
    if clip < 1e-3:  # all are cut, and to the clip, not far below it
        assert norms.min().item() >= clip * (1 - 1e-5)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("shape", [(400_000, 3), (3, 400_000), (1500, 1500)], ids=str)
def test_a_long_gradient_is_not_longer_than_the_clip(path, shape):
    module = nn.Linear(*shape)
    layout, weights, batch = case(module, torch.randn(2, shape[0]), (1, 1), False)
    scale = wild(layout.dim)
    rows = CohortGradients.of(module, loss, layout, path).sums(weights, batch, 1e-3, scale=scale)
    norms = torch.stack([(row.double() / scale.double()).norm() for row in rows])
    assert norms.max().item() <= 1e-3 and norms.min().item() >= 1e-3 * (1 - 1e-5)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("level", [1.0, 1e6])
@pytest.mark.parametrize(("x", "clip"), [((0.0, 1e-23), 1e-9), ((1e-30, 1e-22), 1e-9), ((1e-14, 0.0), 1e-12)], ids=str)
def test_numbers_too_small_to_square_are_not_overlooked(path, level, x, clip):
    """The square of what went in, or of a gradient divided by all of the scale's spread, vanishes in float32."""
    module = nn.Linear(2, 1, bias=False)
    scale, batch = level * torch.tensor([1.0, 1e-12]), Batch(level * torch.tensor([x]), torch.zeros(1), (1,))
    gradients = CohortGradients.of(module, lambda p, y: 1e3 * p.sum(1), Layout.of(module), path)
    rows = gradients.sums(torch.zeros(2), batch, clip, scale=scale)
    assert clip * (1 - 1e-5) <= (rows.double() / scale.double()).norm().item() <= clip


def test_pairs_that_almost_cancel_do_not_hide_their_norm():
    """Groups of records alike with signs apart: their mean is a rounding error, and no longer than the clip."""
    module = nn.Sequential(nn.Conv2d(2, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(36, 4))
    layout, weights, _ = case(module, torch.randn(80, 2, 5, 5), (80,), False)
    x = torch.randn(40, 1, 2, 5, 5).expand(-1, 2, -1, -1, -1).reshape(80, 2, 5, 5)
    batch = Batch(x, torch.tensor([1.0, -1.0001] * 40), (2,) * 40)
    scale = wild(layout.dim)
    gradients = CohortGradients.of(module, lambda p, y: p.sum(1) * y, layout, "book-keeping")
    rows = gradients.sums(weights, batch, 1e-4, scale=scale, groups=(2,) * 40)
    assert (rows.double() / scale.double()).norm(dim=1).max().item() <= 1e-4


@pytest.mark.parametrize("stacked", [False, True], ids=["shared", "own"])
def test_chunks_and_wide_groups_do_not_show(stacked, monkeypatch):
    module = nn.Sequential(nn.Conv2d(2, 8, 2, 2), nn.Tanh(), nn.Conv2d(8, 40, 2), nn.Flatten(), nn.Linear(160, 4))
    lengths, sizes = (2, 2, 7, 1, 5, 3), (11, 1, 0, 8)
    layout, weights, batch = case(module, torch.randn(20, 2, 6, 6), sizes, stacked)
    scale = wild(4, layout.dim)
    monkeypatch.setattr(cost, "records", lambda *_: 4)
    monkeypatch.setattr(cost, "PATCHES", 0)
    monkeypatch.setitem(cost.CHUNK, "cpu", 100)
    monkeypatch.setitem(cost.SCALED, "cpu", 1400)
    monkeypatch.setattr(persample, "SAMPLES", 4)
    monkeypatch.setattr("sordino.gradients.engine.ENTRIES", 2000)
    for groups in (lengths, None):
        clip = naive_scaled(module, weights, batch, 1.0, scale, groups)[1].median().item()
        expected = naive_scaled(module, weights, batch, clip, scale, groups)[0]
        for path in PATHS:
            got = CohortGradients.of(module, loss, layout, path).sums(weights, batch, clip, scale=scale, groups=groups)
            assert relative(got, expected) <= 1e-5


@pytest.mark.parametrize("stacked", [False, True], ids=["shared", "own"])
@pytest.mark.parametrize("name", MODELS)
def test_whose_scale_it_is_is_not_lost_from_chunk_to_chunk(name, stacked, monkeypatch):
    """One number at a time, several clients in one pass."""
    monkeypatch.setattr(cost, "PATCHES", 0)
    monkeypatch.setitem(cost.CHUNK, "cpu", 1)
    monkeypatch.setitem(cost.SCALED, "cpu", 1)
    module, x = MODELS[name]()
    layout, weights, batch = case(module, x, SIZES, stacked)
    scale = wild(4, layout.dim)
    clip = naive_scaled(module, weights, batch, 1.0, scale)[1].median().item()
    got = CohortGradients.of(module, loss, layout, "book-keeping").sums(weights, batch, clip, scale=scale)
    assert relative(got, naive_scaled(module, weights, batch, clip, scale)[0]) <= 1e-5


@pytest.mark.parametrize("path", PATHS)
def test_row_k_depends_on_client_k_alone(path):
    """Bit for bit: the others' scales and records leave no trace."""
    module, x = MODELS["cnn"]()
    layout, weights, batch = case(module, x, (3, 4, 2), True)
    scale = wild(3, layout.dim)
    gradients = CohortGradients.of(module, loss, layout, path)
    clean = gradients.sums(weights, batch, 0.5, scale=scale)
    x, other = batch.x.clone(), wild(3, layout.dim) * 1e3
    x[:3], other[1] = float("nan"), scale[1]
    got = gradients.sums(weights, Batch(x, batch.y, batch.sizes), 0.5, scale=other)
    assert torch.equal(got[1], clean[1]) and not torch.equal(got[2], clean[2])
    assert torch.equal(got[0], torch.zeros_like(got[0]))


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e30])
@pytest.mark.parametrize("path", PATHS)
def test_a_broken_sample_adds_exactly_nothing(path, bad):
    module = nn.Sequential(nn.Conv2d(2, 30, 2), nn.ReLU(), nn.Flatten(), nn.Linear(480, 4))
    square = lambda p, y: p.square().sum(1)  # noqa: E731
    layout, weights, batch = case(module, torch.randn(6, 2, 5, 5), (3, 3), False)
    gradients, scale = CohortGradients.of(module, square, layout, path), wild(2, layout.dim)
    x, keep = batch.x.clone(), torch.tensor([0, 2, 3, 4, 5])
    x[1] = bad
    got = gradients.sums(weights, Batch(x, batch.y, (3, 3)), 1.0, scale=scale)
    expected = gradients.sums(weights, Batch(x[keep], batch.y[keep], (2, 3)), 1.0, scale=scale)
    assert torch.isfinite(got).all() and relative(got, expected.double()) <= 1e-6
    zero = CohortGradients.of(module, lambda p, y: (p * 0).sum(1), layout, path).sums(weights, batch, 1.0, scale=scale)
    assert torch.equal(zero, torch.zeros(2, layout.dim))


def test_the_norm_of_an_outer_product_is_not_too_small():
    """One token: within a hair of the truth, never below it, whichever side is longer."""
    for p, d in ((900, 20), (20, 900), (300, 300)):
        a, g = torch.randn(200, d) * wild(200, d, digits=3.0), torch.randn(200, p) * wild(200, 1, digits=8.0)
        scale = wild(200, p * d, digits=3.0)[:20]
        module = nn.Linear(d, p, bias=False)
        by = Scale(scale, Layout.of(module), Split((10,) * 20))
        got = by.of("weight").outer(a, g).double().sqrt() / by.bound(1.0)
        s = scale.view(20, p, d).repeat_interleave(10, 0).double()
        true = torch.stack([(g[i].double().outer(a[i].double()) / s[i]).norm() for i in range(200)])
        assert (got / true >= 1 - 1e-7).all() and (got / true <= 1 + 1e-5).all()


@pytest.mark.parametrize("limit", [1000, 12, 1])
@pytest.mark.parametrize("own", [False, True], ids=["one scale", "own scales"])
def test_the_padded_step_knows_the_scale(limit, own):
    for name in ("cnn", "words"):
        module, x = MODELS[name]()
        layout, weights, batch = case(module, x, SIZES, True)
        scale = wild(4, layout.dim) if own else wild(layout.dim)
        clip = naive_scaled(module, weights, batch, 1.0, scale)[1].median().item()
        got = Padded(book(module, layout), None).sums(weights, batch, clip, limit, scale=scale)
        assert relative(got, naive_scaled(module, weights, batch, clip, scale)[0]) <= 1e-5


def test_the_traced_step_knows_the_scale():
    """Traced with one set of tensors, right for another, broken record included."""
    module, _ = MODELS["cnn"]()
    layout, weights, batch = case(module, torch.randn(8, 2, 6, 6), (4, 4), True)
    scale, share = wild(2, layout.dim), torch.ones(8)
    steps = Padded(book(module, layout), None)
    graph = make_fx(steps._plain)(
        weights * 0 + 1, batch.x * 0, batch.y * 0, share * 0, torch.tensor(9.0), scale * 0 + 1
    )
    x = batch.x.clone()
    x[0] = float("nan")
    got = graph(weights, x, batch.y, share, torch.tensor(0.5), scale)
    rest = Batch(x[1:], batch.y[1:], (3, 4))
    assert relative(got, naive_scaled(module, weights, rest, 0.5, scale)[0]) <= 1e-5


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", ["mlp", "few-tokens", "cnn", "conv-wide", "words"])
@pytest.mark.parametrize(("stacked", "own"), [(False, False), (True, False), (True, True)], ids=str)
def test_on_a_gpu(stacked, own, name, monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    module, x = MODELS[name]()
    layout, weights, batch = case(module, x, SIZES, stacked)
    there = Batch(batch.x.cuda(), batch.y.cuda(), SIZES)
    scale = wild(4, layout.dim) if own else wild(layout.dim)
    gradients = CohortGradients.of(module, loss, layout)
    gradients.compiled = True
    for groups in (None, GROUPS):
        norms = naive_scaled(module, weights, batch, 1.0, scale, groups)[1]
        clip = norms[norms > 0].median().item()
        expected = naive_scaled(module, weights, batch, clip, scale, groups)[0]
        for _ in range(1 if groups else padded.PATIENCE + 1):  # as it is, then compiled
            got = gradients.sums(weights.cuda(), there, clip, scale=scale, groups=groups).cpu()
            assert relative(got, expected) <= 1e-5


def test_double_precision_is_kept():
    module, x = MODELS["mlp"]()
    layout, weights, batch = case(module.double(), x.double(), SIZES, True)
    weights, batch = weights.double(), Batch(batch.x, batch.y.double(), SIZES)
    scale = wild(4, layout.dim).double()
    got = CohortGradients.of(module, loss, layout).sums(weights, batch, 1e9, scale=scale)  # nothing is cut
    assert got.dtype == torch.float64 and relative(got, naive(module, weights, batch, None)) <= 1e-12
    assert naive(module, *singles(weights, batch), None).shape == (9, layout.dim)


@pytest.mark.parametrize(
    ("clip", "change", "words"),
    [
        (None, {}, "clip"),
        (1.0, {"scale": torch.ones(7)}, r"\[8\] or \[2, 8\], not \[7\]"),
        (1.0, {"scale": torch.ones(3, 8)}, r"not \[3, 8\]"),
        (1.0, {"scale": 2.0}, "tensor"),
        (1.0, {"scale": torch.tensor([1.0] * 7 + [0.0])}, "positive"),
        (1.0, {"scale": torch.tensor([1.0] * 7 + [-1.0])}, "positive"),
        (1.0, {"scale": torch.tensor([1.0] * 7 + [float("nan")])}, "positive and finite"),
        (1.0, {"scale": torch.tensor([1.0] * 7 + [float("inf")])}, "finite"),
        (1.0, {"scale": torch.tensor([1e-13] * 8)}, "below 1e-12"),
        (1.0, {"scale": torch.tensor([1e-3] * 7 + [1e10])}, "of its largest"),
        (None, {"layers": [1.0]}, "do not go together"),
    ],
    ids=str,
)
def test_a_wrong_scale_is_refused(clip, change, words):
    module = nn.Linear(3, 2)
    layout, weights, batch = case(module, torch.randn(4, 3), (2, 2), False)
    with pytest.raises(SpecError, match=words):
        CohortGradients.of(module, loss, layout).sums(weights, batch, clip, **{"scale": torch.ones(8), **change})
