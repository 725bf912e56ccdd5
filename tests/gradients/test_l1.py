"""CohortGradients clipped in the L1 norm: the naive loop, the bound and its rounding, what is refused."""

import math

import pytest
import torch
from reference import case, loss, naive_groups, owners, relative
from test_models import Attention, Tied, Twice
from torch import nn

from sordino.core.errors import SpecError
from sordino.core.types import Batch
from sordino.core.vector import Layout
from sordino.gradients import CohortGradients, cost, persample
from sordino.gradients import engine as engine_module
from sordino.gradients.bookkeeping import BookKeeping
from sordino.gradients.clipping import factors_l1
from sordino.gradients.persample import PerSample
from sordino.gradients.terms import Lookup, absolutes
from sordino.gradients.whole import clipped

SIZES = (4, 0, 2, 3)
GROUPS = (1, 0, 3, 2, 0, 1, 1, 1)


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.lstm, self.head = nn.Embedding(5, 4), nn.LSTM(4, 3, batch_first=True), nn.Linear(3, 2)

    def forward(self, ids):
        return self.head(self.lstm(self.words(ids))[0][:, -1])


class Again(nn.Module):
    """One linear layer, used twice."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 6)

    def forward(self, x):
        return self.linear(self.linear(x).tanh())


def frozen_body():
    module = nn.Sequential(nn.Conv2d(2, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(27, 4))
    module[0].requires_grad_(False)
    return module


IMAGES, IDS, ROWS = (9, 2, 5, 5), (9, 6), (9, 6)
MODELS = {  # how to make it, the shape of its input, whether its L1 norms are taken by the book
    "linear": (lambda: nn.Linear(6, 4), ROWS, True),
    "no-bias": (lambda: nn.Sequential(nn.Flatten(), nn.Linear(50, 4, bias=False)), IMAGES, True),
    "mlp": (lambda: nn.Sequential(nn.Linear(6, 7), nn.Tanh(), nn.Dropout(0.5), nn.Linear(7, 3)).eval(), ROWS, True),
    "tokens": (lambda: nn.Sequential(nn.Linear(6, 7), nn.Tanh(), nn.Linear(7, 3)), (9, 5, 6), True),
    "again": (Again, ROWS, True),
    "head": (frozen_body, IMAGES, True),
    "cnn": (lambda: nn.Sequential(nn.Conv2d(2, 8, 3), nn.Tanh(), nn.Flatten(), nn.Linear(72, 4)), IMAGES, True),
    "twice": (Twice, (9, 2, 5), True),
    "attention": (Attention, IDS, False),
    "lstm": (Reader, IDS, False),
    "tied": (Tied, IDS, False),
}


def example(name, stacked):
    make, shape, _ = MODELS[name]
    module = make()
    x = torch.randint(0, 5, shape) if shape == IDS and name in ("attention", "lstm", "tied") else torch.randn(shape)
    return module, *case(module, x, SIZES, stacked)


def naive(module, weights, batch, groups=None, norm=1):
    """[clients, dim] and a clip that cuts about half of the groups: float64, one group at a time."""
    groups = (1,) * sum(batch.sizes) if groups is None else groups
    rows = naive_groups(module, weights, batch, None, groups)[1]
    lengths = [sum(abs(v) ** norm for v in row) ** (1 / norm) for row in rows.tolist()]
    clip = sorted(n for n in lengths if n > 0)[sum(n > 0 for n in lengths) // 2]
    total = torch.zeros(len(batch.sizes), rows.shape[1], dtype=torch.float64)
    for row, length, k in zip(rows, lengths, owners(batch, groups), strict=True):
        total[k] += row * min(1.0, clip / max(length, 1e-300))
    return total, clip


def longest(rows):
    """The largest L1 norm among rows, correctly rounded."""
    return max(math.fsum(map(abs, row)) for row in rows.double().tolist())


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("groups", [None, GROUPS], ids=["records", "groups"])
@pytest.mark.parametrize("stacked", [False, True], ids=["shared", "own"])
@pytest.mark.parametrize("name", MODELS)
def test_it_is_the_naive_loop(name, stacked, groups, monkeypatch):
    """On either path; by the book where no embedding or recurrent layer is trained and only there."""
    module, layout, weights, batch = example(name, stacked)
    expected, clip = naive(module, weights, batch, groups)
    for path in ("auto", "vmap"):
        gradients = CohortGradients.of(module, loss, layout, path)
        gradients.sums(weights, batch, 1.0)
        with monkeypatch.context() as only:
            only.setattr(PerSample if MODELS[name][2] and path == "auto" else BookKeeping, "sums", None)
            got = gradients.sums(weights, batch, clip, groups=groups, norm=1)
        assert relative(got, expected) <= 1e-5
        assert not got[1].any()
        assert relative(gradients.sums(weights, batch, clip, groups=groups), expected) > 1e-2  # L2 is another


def test_the_default_is_the_l2_norm():
    module, layout, weights, batch = example("cnn", False)
    expected, clip = naive(module, weights, batch, norm=2)
    gradients = CohortGradients.of(module, loss, layout)
    assert relative(gradients.sums(weights, batch, clip), expected) <= 1e-5
    assert torch.equal(gradients.sums(weights, batch, clip), gradients.sums(weights, batch, clip, norm=2))


@pytest.mark.parametrize("name", ["linear", "tokens", "cnn"])
def test_chunks_do_not_show(name, monkeypatch):
    module, layout, weights, batch = example(name, True)
    expected, clip = naive(module, weights, batch, GROUPS)
    monkeypatch.setattr(persample, "ENTRIES", 2 * layout.dim)
    monkeypatch.setitem(cost.KEPT, "cpu", 2 * layout.dim)
    got = CohortGradients.of(module, loss, layout).sums(weights, batch, clip, groups=GROUPS, norm=1)
    assert relative(got, expected) <= 1e-5


def test_groups_too_long_for_memory(monkeypatch):
    module, layout, weights, batch = example("linear", True)
    expected, clip = naive(module, weights, batch, GROUPS)
    monkeypatch.setattr(engine_module.Call, "limit", 2)
    got = CohortGradients.of(module, loss, layout).sums(weights, batch, clip, groups=GROUPS, norm=1)
    assert relative(got, expected) <= 1e-5


@pytest.mark.parametrize("path", ["auto", "vmap"])
def test_dropout_follows_the_client_s_seed(path):
    module = nn.Sequential(nn.Linear(6, 30), nn.Dropout(0.5))
    layout, weights, batch = case(module, torch.randn(3, 6).repeat(3, 1), (3, 3, 3), False)
    same = Batch(batch.x, batch.y[:3].repeat(3), (3, 3, 3))
    gradients = CohortGradients.of(module, loss, layout, path)
    rows = gradients.sums(weights, same, 1.0, seeds=(1, 2, 1), norm=1)
    assert torch.equal(rows[0], rows[2]) and not torch.equal(rows[0], rows[1])
    with pytest.raises(SpecError, match="seed"):
        gradients.sums(weights, same, 1.0, norm=1)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 3e38])
@pytest.mark.parametrize("stacked", [False, True], ids=["shared", "own"])
@pytest.mark.parametrize("name", ["linear", "tokens", "cnn"])
def test_a_broken_sample_adds_exactly_nothing(name, stacked, bad):
    """The clients beside it keep every bit; 3e38 breaks the square of a prediction."""
    module, layout, weights, batch = example(name, stacked)
    square = lambda p, y: p.flatten(1).square().sum(1)  # noqa: E731
    gradients = CohortGradients.of(module, square, layout)
    clean = gradients.sums(weights, batch, 0.3, norm=1)
    x = batch.x.clone()
    x[:4] = bad
    got = gradients.sums(weights, Batch(x, batch.y, SIZES), 0.3, norm=1)
    assert torch.equal(got[1:], clean[1:])
    assert torch.isfinite(got).all() and longest(got[:1]) <= 4 * 0.3
    if not math.isfinite(bad) or name == "linear":  # tanh takes large numbers
        assert not got[0].any()


@pytest.mark.parametrize("path", ["auto", "vmap"])
def test_zero_gradients_survive(path):
    module, layout, weights, batch = example("linear", False)
    still = CohortGradients.of(module, lambda p, y: (p * 0).sum(1), layout, path)
    assert torch.equal(still.sums(weights, batch, 1.0, norm=1), torch.zeros(4, layout.dim))


def test_small_numbers_are_not_lost_beside_a_large_one():
    """1, then 50,000 times 2^-25: added one by one in float32 that is 1, too small by 1.5e-3."""
    row = torch.full((1, 50_001), 2.0**-25)
    row[0, 0] = 1.0
    true = 1 + 50_000 * 2.0**-25
    assert absolutes(row).item() == true
    assert row.numpy().cumsum()[-1] == 1.0  # so a sum in float32 may be
    for clip in (0.1, 1.0, 1.001):
        cut = clipped(row, clip, None, None, 1).unsqueeze(0)
        assert clip * (1 - 1e-5) <= longest(cut) <= clip


def wild(rows, dim, low, high):
    """Numbers of both signs, from 2^low to 2^high, all sizes alike."""
    return torch.randn(rows, dim).sign() * torch.rand(rows, dim).mul(high - low).add(low).exp2()


@pytest.mark.parametrize(
    "reach",
    [(-1, 0, -1, 0), (-30, 10, -20, 0), (-149, -100, -20, 0), (-140, 120, -20, 0), (100, 127, -149, -100)],
    ids=str,
)
@pytest.mark.parametrize("path", ["auto", "vmap"])
def test_the_bound_is_never_passed(path, reach):
    """Every record a client, a row is one clipped gradient, y xᵀ; all sizes float32 has, and its smallest steps."""
    module = nn.Linear(300, 3, bias=False)
    layout = Layout.of(module)
    batch = Batch(wild(60, 300, *reach[:2]), wild(60, 3, *reach[2:]), (1,) * 60)
    gradients = CohortGradients.of(module, lambda p, y: (p * y).sum(1), layout, path)
    each = gradients.sums(torch.zeros(layout.dim), batch, None)
    middle = each.double().abs().sum(1).median().item()
    for clip in (0.37 * middle, middle, 1e-3, 1.0, 1e6):
        rows = gradients.sums(torch.zeros(layout.dim), batch, clip, norm=1)
        assert torch.isfinite(rows).all()
        assert longest(rows) <= clip


def test_without_the_margin_the_bound_is_passed():
    """So the test above can see a rounding error."""
    rows = wild(500, 300, -1, 0)
    bare = rows * (1 / rows.abs().sum(1, keepdim=True))
    assert longest(bare) > 1
    factor = factors_l1(absolutes(rows), 1.0, torch.float32)
    assert 1 - 1e-5 <= longest(rows * factor.unsqueeze(1)) <= 1


@pytest.mark.parametrize("path", ["auto", "vmap"])
def test_a_long_gradient_keeps_the_bound(path):
    module = nn.Linear(100_000, 3)
    layout, weights, batch = case(module, torch.randn(2, 100_000), (1, 1), False)
    rows = CohortGradients.of(module, loss, layout, path).sums(weights, batch, 1e-3, norm=1)
    norms = rows.double().abs().sum(1)
    assert norms.max().item() <= 1e-3 and norms.min().item() >= 1e-3 * (1 - 1e-5)


@pytest.mark.parametrize(
    "how",
    [
        {"clip": None},
        {"clip": 1.0, "scale": torch.ones(28)},
        {"clip": None, "layers": (1.0,)},
        {"clip": 1.0, "layers": (1.0,)},
    ],
    ids=["none", "scale", "layers", "both"],
)
def test_one_clip_of_whole_gradients_and_nothing_else(how):
    module, layout, weights, batch = example("linear", False)
    with pytest.raises(SpecError, match="norm=1 bounds whole gradients by one clip"):
        CohortGradients.of(module, loss, layout).sums(weights, batch, norm=1, **how)


@pytest.mark.parametrize("norm", [0, 3, math.inf, "1", None])
def test_other_norms_are_refused(norm):
    module, layout, weights, batch = example("linear", False)
    with pytest.raises(SpecError, match="norm must be 1 or 2"):
        CohortGradients.of(module, loss, layout).sums(weights, batch, 1.0, norm=norm)


def test_terms_of_other_layers_have_no_l1_norm():
    with pytest.raises(TypeError, match="Lookup"):
        Lookup(torch.zeros(1, 2, dtype=torch.int64), torch.zeros(1, 2, 3), 5).absolute(1.0)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("stacked", [False, True], ids=["shared", "own"])
@pytest.mark.parametrize("name", ["linear", "mlp", "tokens", "cnn", "attention"])
@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_on_a_gpu_the_sums_are_those_of_the_naive_loop(name, stacked, monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    module, layout, weights, batch = example(name, stacked)
    expected, clip = naive(module, weights, batch)
    here = Batch(batch.x.cuda(), batch.y.cuda(), batch.sizes)
    found = CohortGradients.of(module.cuda(), loss, layout).sums(weights.cuda(), here, clip, norm=1)
    assert relative(found.cpu(), expected) <= 1e-4
