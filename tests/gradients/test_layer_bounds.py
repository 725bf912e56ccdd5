"""One bound for every layer instead of one for the whole gradient."""

import pytest
import torch
from reference import CLOSE, case, loss, naive, naive_layers, relative
from test_models import Own
from test_scale import GROUPS, MODELS, PATHS, SIZES, book
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

from sordino.core.errors import SpecError
from sordino.core.types import Batch
from sordino.core.vector import Layout
from sordino.gradients import CohortGradients, cost, padded, persample
from sordino.gradients.clipping import shrink
from sordino.gradients.padded import Padded


class Two(nn.Module):
    """Two layers side by side, each with inputs of its own."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(3, 2), nn.Linear(3, 2)

    def forward(self, x):
        return self.a(x[:, :3]) + self.b(x[:, 3:])


def middle(module, weights, batch, groups=None):
    """Bounds that cut about half of the parts of every layer; they differ from layer to layer."""
    some = [1.0] * len(Layout.of(module).layers())
    norms = naive_layers(module, weights, batch, some, groups)[1]
    return norms[norms[:, 0] > 0].median(0).values.tolist()


def test_a_layer_is_a_module_with_parameters():
    inner = nn.Sequential(nn.Linear(2, 3), nn.Sequential(nn.ReLU(), nn.LayerNorm(3)), nn.LSTM(3, 2, 2))
    module = nn.ModuleDict({"body": inner, "head": nn.Linear(2, 2, bias=False)})
    module["body"][0].weight.requires_grad_(False)
    layout = Layout.of(module)
    layers = layout.layers()
    assert list(layers) == ["body.0", "body.1.1", "body.2", "head"]
    assert layers["body.0"] == slice(0, 3) and layers["body.1.1"] == slice(3, 9)
    assert layers["head"] == slice(layers["body.2"].stop, layout.dim) == slice(layout.dim - 4, layout.dim)
    assert set(layout.layer_of()) == {s.name for s in layout.slots}
    assert layout.layer_of()["body.1.1.bias"] == 1 and layout.layer_of()["body.2.weight_hh_l1"] == 2
    assert list(Layout.of(Own()).layers()) == [""] and Layout(()).layers() == {}


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # vmap of a fused LSTM
@pytest.mark.parametrize(
    ("path", "stacked", "groups"),
    [
        ("book-keeping", False, None),
        ("book-keeping", True, None),
        ("book-keeping", True, GROUPS),
        ("vmap", True, GROUPS),
        ("vmap", False, None),
    ],
    ids=str,
)
@pytest.mark.parametrize("name", MODELS)
def test_sums_are_those_of_the_naive_loop(name, path, stacked, groups):
    module, x = MODELS[name]()
    layout, weights, batch = case(module, x, SIZES, stacked)
    bounds = middle(module, weights, batch, groups)
    expected, norms = naive_layers(module, weights, batch, bounds, groups)
    assert (norms > torch.tensor(bounds)).any(0).all()  # something of every layer is cut
    gradients = CohortGradients.of(module, loss, layout, path)
    assert relative(gradients.sums(weights, batch, None, layers=bounds, groups=groups), expected) <= CLOSE
    if len(bounds) > 1:  # bounds in another order are noticed
        other = gradients.sums(weights, batch, None, layers=[9 * bounds[0], *bounds[1:]], groups=groups)
        assert relative(other, expected) > 1e-3


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("size", [1e-6, 0.1, 1e4])
def test_no_part_is_longer_than_its_bound(path, size):
    module = nn.Sequential(nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.Tanh(), nn.Flatten(), nn.Linear(36, 300))
    x = torch.randn(80, 2, 5, 5) * 10 ** (6 * torch.rand(80, 1, 1, 1) - 3)
    layout, weights, batch = case(module, x, (80,), False)
    bounds = [size, 3 * size, size / 7]
    each = Batch(batch.x, batch.y, (1,) * 80)
    rows = CohortGradients.of(module, loss, layout, path).sums(weights, each, None, layers=bounds)
    for part, bound in zip(layout.layers().values(), bounds, strict=True):
        norms = rows[:, part].double().norm(dim=1)
        assert norms.max().item() <= bound
        if size < 1e-3:
            assert norms.median().item() >= bound * (1 - 1e-5)


@pytest.mark.parametrize("path", PATHS)
def test_one_layer_is_one_clip(path):
    module = nn.Linear(5, 3)
    layout, weights, batch = case(module, torch.randn(7, 5), (4, 3), True)
    gradients = CohortGradients.of(module, loss, layout, path)
    got = gradients.sums(weights, batch, None, layers=(0.5,))
    assert relative(got, gradients.sums(weights, batch, 0.5).double()) <= 1e-6


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e25])
@pytest.mark.parametrize("path", PATHS)
def test_what_is_broken_in_one_layer_adds_nothing_to_any(path, bad):
    module = Two()
    layout, weights, batch = case(module, torch.randn(6, 6), (3, 3), False)
    total = lambda p, y: p.sum(1) * (1 + y)  # noqa: E731  (the gradient of b does not depend on what a is given)
    x, keep = batch.x.clone(), torch.tensor([0, 2, 3, 4, 5])
    x[1, :3] = bad
    gradients = CohortGradients.of(module, total, layout, path)
    got = gradients.sums(weights, Batch(x, batch.y, (3, 3)), None, layers=[1.0, 2.0])
    rest = Batch(x[keep], batch.y[keep], (2, 3))
    assert relative(got, naive_layers(module, weights, rest, [1.0, 2.0], None, total)[0]) <= 1e-5
    wrong = gradients.sums(weights, batch, None, layers=[1.0, 2.0])  # with the sample as it was
    assert relative(wrong, got.double()) > 0.05
    together = gradients.sums(weights, Batch(x, batch.y, (3, 3)), None, layers=[1.0, 2.0], groups=(1, 2, 3))
    rest = Batch(x[[0, 3, 4, 5]], batch.y[[0, 3, 4, 5]], (1, 3))
    assert relative(together, naive_layers(module, weights, rest, [1.0, 2.0], (1, 3), total)[0]) <= 1e-5


def test_factors_of_layers():
    first, second = torch.tensor([4.0, 0.0, float("inf"), 1.0]), torch.tensor([1.0, 9.0, 1.0, float("nan")])
    got = shrink([first, second], torch.tensor([1.0, 1.5]))
    assert torch.allclose(torch.stack(got), torch.tensor([[0.5, 1.0, 0.0, 0.0], [1.0, 0.5, 0.0, 0.0]]), rtol=1e-5)


@pytest.mark.parametrize("stacked", [False, True], ids=["shared", "own"])
def test_chunks_and_wide_groups_do_not_show(stacked, monkeypatch):
    module = nn.Sequential(nn.Conv2d(2, 8, 3, padding=1), nn.Tanh(), nn.Flatten(), nn.Linear(200, 4))
    lengths = (2, 2, 7, 1, 5, 3)
    layout, weights, batch = case(module, torch.randn(20, 2, 5, 5), (11, 1, 0, 8), stacked)
    bounds = middle(module, weights, batch, lengths)
    expected = naive_layers(module, weights, batch, bounds, lengths)[0]
    monkeypatch.setattr(cost, "records", lambda *_: 4)
    monkeypatch.setitem(cost.CHUNK, "cpu", 100)
    monkeypatch.setattr(persample, "SAMPLES", 4)
    monkeypatch.setattr("sordino.gradients.engine.ENTRIES", 2000)
    for path in PATHS:
        got = CohortGradients.of(module, loss, layout, path).sums(weights, batch, None, layers=bounds, groups=lengths)
        assert relative(got, expected) <= 1e-5


@pytest.mark.parametrize("limit", [1000, 12, 1])
def test_the_padded_step_knows_layers(limit):
    for name in ("cnn", "words"):
        module, x = MODELS[name]()
        layout, weights, batch = case(module, x, SIZES, True)
        bounds = middle(module, weights, batch)
        got = Padded(book(module, layout), None).sums(weights, batch, torch.tensor(bounds), limit)
        assert relative(got, naive_layers(module, weights, batch, bounds)[0]) <= 1e-5


def test_the_traced_step_knows_layers():
    module, _ = MODELS["cnn"]()
    layout, weights, batch = case(module, torch.randn(8, 2, 6, 6), (4, 4), True)
    share, bounds = torch.ones(8), torch.tensor([0.1, 0.2, 0.3])
    graph = make_fx(Padded(book(module, layout), None)._plain)(
        weights * 0 + 1, batch.x * 0, batch.y * 0, share * 0, bounds * 0 + 9
    )
    x = batch.x.clone()
    x[0] = float("nan")
    got = graph(weights, x, batch.y, share, bounds)
    rest = Batch(x[1:], batch.y[1:], (3, 4))
    assert relative(got, naive_layers(module, weights, rest, bounds.tolist())[0]) <= 1e-5


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", ["mlp", "few-tokens", "cnn", "conv-wide", "words"])
@pytest.mark.parametrize("stacked", [False, True], ids=["shared", "own"])
def test_on_a_gpu(stacked, name, monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    module, x = MODELS[name]()
    layout, weights, batch = case(module, x, SIZES, stacked)
    there = Batch(batch.x.cuda(), batch.y.cuda(), SIZES)
    gradients = CohortGradients.of(module, loss, layout)
    gradients.compiled = True
    for groups in (None, GROUPS):
        bounds = middle(module, weights, batch, groups)
        expected = naive_layers(module, weights, batch, bounds, groups)[0]
        for _ in range(1 if groups else padded.PATIENCE + 1):  # as it is, then recorded
            got = gradients.sums(weights.cuda(), there, None, layers=bounds, groups=groups).cpu()
            assert relative(got, expected) <= CLOSE


def test_dropout_follows_the_seed_here_too():
    module = nn.Sequential(nn.Linear(5, 30), nn.Dropout(0.5), nn.Linear(30, 3))
    layout, weights, batch = case(module, torch.randn(6, 5), (3, 3), False)
    gradients = CohortGradients.of(module, loss, layout)
    rows = [gradients.sums(weights, batch, None, layers=[1.0, 1.0], seeds=seeds) for seeds in ((1, 2), (3, 2))]
    assert torch.equal(rows[0][1], rows[1][1]) and not torch.equal(rows[0][0], rows[1][0])
    with pytest.raises(SpecError, match="seed"):
        gradients.sums(weights, batch, None, layers=[1.0, 1.0])
    assert relative(
        CohortGradients.of(module.eval(), loss, layout).sums(weights, batch, None, layers=[1e9, 1e9]),
        naive(module, weights, batch, None),
    ) <= 1e-5  # fmt: skip


@pytest.mark.parametrize(
    ("clip", "layers", "words"),
    [
        (None, [1.0], r"each of 2 layers, not 1; they are 0, 2"),
        (None, [1.0, 1.0, 1.0], "not 3"),
        (None, 1.0, "not 1.0"),
        (None, [1.0, 0.0], r"layers\[1\] must be positive, not 0.0"),
        (None, [-1.0, 1.0], r"layers\[0\] must be positive"),
        (None, [1.0, float("inf")], "finite"),
        (None, [1.0, "a"], "number"),
        (1.0, [1.0, 1.0], "clip must be None, not 1.0"),
    ],
    ids=str,
)
def test_wrong_bounds_are_refused(clip, layers, words):
    module = nn.Sequential(nn.Linear(3, 2), nn.ReLU(), nn.Linear(2, 2))
    layout, weights, batch = case(module, torch.randn(4, 3), (2, 2), False)
    with pytest.raises(SpecError, match=words):
        CohortGradients.of(module, loss, layout).sums(weights, batch, clip, layers=layers)
