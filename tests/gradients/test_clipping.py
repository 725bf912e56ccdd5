"""The bound is kept, zero survives, broken samples vanish."""

import pytest
import torch
from reference import case, loss, middle_norm, naive, relative, small
from torch import nn

from sordino.core.errors import SpecError
from sordino.core.types import Batch
from sordino.core.vector import Layout
from sordino.gradients import CohortGradients, padded
from sordino.gradients.clipping import factors, full_products
from sordino.gradients.terms import Lookup, ghost

PATHS = ["book-keeping", "vmap"]


def singles(batch):
    """Every sample a client of its own, so that a row is one clipped gradient."""
    return Batch(batch.x, batch.y, (1,) * batch.x.shape[0])


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("clip", [1e-6, 0.37, 3.0, 1e4])
def test_no_clipped_gradient_is_longer_than_the_clip(path, clip):
    module = small()
    layout, weights, batch = case(module, torch.randn(200, 2, 5, 5) * 3, (200,), False)
    rows = CohortGradients.of(module, loss, layout, path).sums(weights, singles(batch), clip)
    norms = rows.double().norm(dim=1)
    assert norms.max().item() <= clip
    if clip < 1:  # all are cut, and to the clip, not far below it
        assert norms.min().item() >= clip * (1 - 1e-5)


@pytest.mark.parametrize("path", PATHS)
def test_a_long_gradient_is_not_longer_than_the_clip(path):
    """Two million parameters: a norm added up one by one in float32 comes out too small by 1e-4."""
    module = nn.Linear(400_000, 5)
    layout, weights, batch = case(module, torch.randn(2, 400_000), (1, 1), False)
    rows = CohortGradients.of(module, loss, layout, path).sums(weights, batch, 1e-3)
    norms = torch.stack([row.double().norm() for row in rows])
    assert norms.max().item() <= 1e-3 and norms.min().item() >= 1e-3 * (1 - 1e-5)


def test_tokens_that_cancel_do_not_hide_their_norm():
    """a_t all alike and g_t summing to almost nothing: the Gram matrices lose all digits, the guard does not."""
    g = torch.randn(1000, 16, 8)
    g[:, -1] = -g[:, :-1].sum(1) * (1 + 1e-6)
    a = torch.randn(1000, 1, 8).expand(-1, 16, -1).contiguous()
    true = torch.einsum("ntp,ntd->npd", g.double(), a.double()).flatten(1).norm(dim=1)
    assert (ghost(a, g).double().sqrt() >= true).float().mean() > 0.99


def test_words_that_cancel_do_not_hide_their_norm():
    """The same for a table: one word many times, its gradients summing to almost nothing."""
    g = torch.randn(1000, 16, 8)
    g[:, -1] = -g[:, :-1].sum(1) * (1 + 1e-6)
    true = g.double().sum(1).norm(dim=1)
    assert (Lookup(torch.zeros(1000, 16, dtype=torch.int64), g, 5).squared().double().sqrt() >= true).all()
    bare = torch.bmm(g, g.transpose(1, 2)).sum((1, 2)).clamp(min=0).sqrt()
    assert (bare.double() < true).float().mean() > 0.1  # without the guard it does


@pytest.mark.parametrize("path", PATHS)
def test_zero_gradients_survive(path):
    module = nn.Linear(3, 2)
    layout, weights, batch = case(module, torch.randn(4, 3), (3, 1), False)
    still = CohortGradients.of(module, lambda p, y: (p * 0).sum(1), layout, path)
    assert torch.equal(still.sums(weights, batch, 1.0), torch.zeros(2, layout.dim))
    assert torch.equal(factors(torch.zeros(3), 1.0), torch.ones(3))


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e30])
@pytest.mark.parametrize("stacked", [False, True], ids=["shared", "own"])
@pytest.mark.parametrize("path", PATHS)
def test_a_broken_sample_adds_exactly_nothing(path, stacked, bad):
    module = nn.Sequential(nn.Conv2d(2, 30, 2), nn.ReLU(), nn.Flatten(), nn.Linear(480, 4))
    square = lambda p, y: p.square().sum(1)  # noqa: E731
    layout, weights, batch = case(module, torch.randn(6, 2, 5, 5), (3, 3), stacked)
    gradients = CohortGradients.of(module, square, layout, path)
    x = batch.x.clone()
    x[1] = bad
    got = gradients.sums(weights, Batch(x, batch.y, (3, 3)), 1.0)
    keep = torch.tensor([0, 2, 3, 4, 5])
    expected = gradients.sums(weights, Batch(x[keep], batch.y[keep], (2, 3)), 1.0)
    assert torch.isfinite(got).all()
    assert relative(got, expected.double()) <= 1e-6


def test_without_a_clip_nothing_is_hidden():
    module = nn.Linear(3, 2)
    layout, weights, batch = case(module, torch.full((2, 3), float("nan")), (2,), False)
    assert CohortGradients.of(module, loss, layout).sums(weights, batch, None).isnan().any()


@pytest.mark.parametrize("clip", [0.0, -1.0, float("nan")])
def test_a_clip_is_positive(clip):
    module = nn.Linear(3, 2)
    layout, weights, batch = case(module, torch.randn(2, 3), (2,), False)
    with pytest.raises(SpecError, match="clip"):
        CohortGradients.of(module, loss, layout).sums(weights, batch, clip)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("stacked", [False, True], ids=["shared", "own"])
def test_frozen_parameters_neither_move_nor_count(path, stacked):
    module = nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Conv2d(4, 4, 2), nn.Flatten(), nn.Linear(16, 3)
    )
    module[0].requires_grad_(False)  # a whole layer
    module[1].bias.requires_grad_(False)
    module[3].weight.requires_grad_(False)  # a trainable bias on a frozen weight
    module[5].bias.requires_grad_(False)
    layout, weights, batch = case(module, torch.randn(6, 2, 5, 5), (4, 0, 2), stacked)
    assert {s.name for s in layout.slots} == {"1.weight", "3.bias", "5.weight"}
    clip = middle_norm(module, weights, batch)
    got = CohortGradients.of(module, loss, layout, path).sums(weights, batch, clip)
    assert relative(got, naive(module, weights, batch, clip)) <= 1e-5


def test_nothing_to_do_is_done():
    module = nn.Linear(3, 2)
    layout = Layout.of(module)
    empty = Batch(torch.zeros(0, 3), torch.zeros(0), (0, 0))
    got = CohortGradients.of(module, loss, layout).sums(layout.read(module), empty, 1.0)
    assert torch.equal(got, torch.zeros(2, layout.dim))


@pytest.fixture
def products():
    """torch's switches of matrix products, put back afterwards."""
    before = torch.backends.cuda.matmul.allow_tf32
    yield torch.backends.cuda.matmul
    torch.backends.cuda.matmul.allow_tf32 = before


def test_tf32_products_are_switched_off_where_gradients_are_clipped(products):
    for allowed in (True, False):
        products.allow_tf32 = allowed
        full_products(torch.device("cpu"))
        assert products.allow_tf32 == allowed
    full_products(torch.device("cuda"))  # nothing to tell
    products.allow_tf32 = True
    with pytest.warns(UserWarning, match="TF32 matrix products are switched off"):
        full_products(torch.device("cuda"))
    assert not products.allow_tf32


def even(predictions, targets):
    """What comes out is its own gradient's weight: nothing in it depends on how a GPU rounds the forward pass."""
    signs = torch.linspace(-3, 3, predictions[0].numel(), device=predictions.device).sin().view(predictions.shape[1:])
    return (predictions * signs).flatten(1).sum(1) * (1 + targets)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("stacked", [False, True], ids=["shared", "own"])
@pytest.mark.filterwarnings("ignore:TF32 matrix products")
def test_on_a_gpu_no_sum_is_made_of_products_in_tf32(stacked, monkeypatch, products):
    """A kernel too large to be held, its norms from Gram matrices; a sum in TF32 is off by 3e-4, as a plain one is.

    Against our own sum on a CPU: it has the same guard, which takes more than that off the naive one."""
    monkeypatch.setattr(padded, "SMALL", 10**12)  # shared weights go to PyTorch's kernels
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    products.allow_tf32 = True
    module = nn.Conv2d(128, 128, 3, padding=1, bias=False)
    layout, weights, batch = case(module, torch.randn(120, 128, 4, 4), (64, 40, 16), stacked)
    expected = [CohortGradients.of(module, even, layout).sums(weights, batch, clip) for clip in (None, 50.0)]
    here, gradients = (
        Batch(batch.x.cuda(), batch.y.cuda(), batch.sizes),
        CohortGradients.of(module.cuda(), even, layout),
    )
    plain, got = (gradients.sums(weights.cuda(), here, clip).cpu() for clip in (None, 50.0))
    if relative(plain, expected[0]) < 1e-4:
        pytest.skip("this GPU does not round to TF32")
    assert relative(got, expected[1]) <= 1e-5
