"""Passes in bfloat16: no record adds more than the clip, whatever it holds and however a layer sums its gradients."""

import pytest
import torch
import torch.nn.functional as F
from reference import relative
from torch import nn

from sordino.core.types import Batch
from sordino.core.vector import Layout
from sordino.gradients import CohortGradients, cost, half, terms
from sordino.gradients.layers import conv

WAYS = ("ghost", "discard", "hold")
NEEDS = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
NEXT = 1 + 2.0**-7  # the next number above 1 in bfloat16


@pytest.fixture(autouse=True)
def on_this_processor(monkeypatch):
    """The arithmetic is that of a GPU: exact products, added in float32."""
    monkeypatch.setattr(half, "DEVICES", ("cpu", "cuda"))


def gradients(module, loss, rounded=True):
    made = CohortGradients.of(module, loss, Layout.of(module))
    made.autocast = rounded
    return made


def given(predictions, targets):
    """Its gradient with respect to the predictions is the targets."""
    return (predictions * targets).flatten(1).sum(1)


def entropy(predictions, targets):
    return F.cross_entropy(predictions, targets, reduction="none")


def cancelling(records, tokens, features, outputs):
    """Pairs of tokens a and -a with output gradients g and the next number: what is left is 1/128 of each."""
    a = half.narrow(torch.randn(records, tokens // 2, features)).float()
    g = half.narrow(torch.randn(records, tokens // 2, outputs)).float()
    return torch.cat((a, -a), 1), torch.cat((g, g * NEXT), 1)


def pictures(records, tokens, outputs):
    """The same for a convolution over a row whose kernel is one point wide."""
    a, g = cancelling(records, tokens, 3, outputs)
    return a.transpose(1, 2).contiguous(), g.transpose(1, 2).contiguous()


CASES = {
    "linear": lambda: (nn.Linear(24, 32, bias=False), *cancelling(200, 8, 24, 32)),
    "one token": lambda: (nn.Linear(24, 32, bias=False), *(x[:, :1] for x in cancelling(200, 2, 24, 32))),
    "convolution": lambda: (nn.Conv1d(3, 16, 1, bias=False), *pictures(200, 8, 16)),
    "grouped convolution": lambda: (nn.Conv1d(3, 15, 1, groups=3, bias=False), *pictures(200, 8, 15)),
    "convolution in pieces": lambda: (nn.Conv1d(3, 16, 1, bias=False), *pictures(200, 8, 16)),
    "bias": lambda: (nn.Linear(24, 32), *cancelling(200, 8, 24, 32)),
}


def force(monkeypatch, way, name):
    """Let layers take their norms in this way, and a convolution make its patches a few records at a time."""
    monkeypatch.setattr(cost, "way", lambda *_: way)
    if name == "convolution in pieces":
        monkeypatch.setattr(cost, "PATCHES", 0)
        monkeypatch.setitem(cost.CHUNK, "cpu", 500)


def longest(module, x, y, clip, loss=given, owned=False):
    """Return the longest contribution over the clip: of records alone, each as a client."""
    made = gradients(module, loss)
    weights = torch.zeros(made._layout.dim)
    rows = made.sums(weights.expand(len(x), -1) if owned else weights, Batch(x, y, (1,) * len(x)), clip)
    assert made.path == "book-keeping"
    return rows.double().norm(dim=1).max().item() / clip


@pytest.mark.parametrize("owned", [False, True], ids=["shared", "own"])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", CASES)
def test_no_record_passes_the_clip(name, way, owned, monkeypatch):
    force(monkeypatch, way, name)
    module, x, y = CASES[name]()
    for clip in (0.01, 0.1, 0.37, 1.0):
        assert longest(module, x, y, clip, owned=owned) <= 1


@pytest.mark.parametrize("name", ["linear", "convolution", "convolution in pieces"])
def test_without_the_bound_records_would_pass_it(name, monkeypatch):
    """The norm of the gradient alone is not that of what is summed: a second rounding does not cancel.

    Gram matrices have a guard for the rounding of float32, which is longer than this one in these records."""
    force(monkeypatch, "discard", name)
    for part in (terms, conv):
        monkeypatch.setattr(part, "bounded", lambda squared, a, g: squared)
    module, x, y = CASES[name]()
    assert max(longest(module, x, y, clip) for clip in (0.01, 0.1, 0.37, 1.0)) > 1.05


@pytest.mark.parametrize("way", WAYS)
def test_one_record_more_moves_a_sum_by_the_clip_at_most(way, monkeypatch):
    monkeypatch.setattr(cost, "way", lambda *_: way)
    module, x, y = CASES["linear"]()
    made = gradients(module, given)
    weights = torch.zeros(made._layout.dim)
    whole = made.sums(weights, Batch(x, y, (200,)), 0.37).double()
    for i in range(20):
        fewer = made.sums(weights, Batch(x[i + 1 :], y[i + 1 :], (199 - i,)), 0.37).double()
        assert 0.2 * 0.37 < (whole - fewer).norm() <= 0.37 * (1 + 1e-4)
        whole = fewer


class Words(nn.Module):
    """Every kind of layer with a rule: embedding, recurrent, norms, convolution, attention by products, linear."""

    def __init__(self):
        super().__init__()
        self.words, self.norm = nn.Embedding(9, 16), nn.LayerNorm(16)
        self.lstm, self.conv = nn.LSTM(16, 8, batch_first=True), nn.Conv1d(8, 8, 3, padding=1)
        self.groups, self.query, self.out = nn.GroupNorm(2, 8), nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x):
        x = self.lstm(self.norm(self.words(x)))[0]
        x = self.groups(self.conv(x.transpose(1, 2))).transpose(1, 2)
        x = torch.bmm((self.query(x) @ x.transpose(1, 2)).softmax(2), x)
        return self.out(x.mean(1))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("sizes", [(30,), (10, 10, 10), (1,) * 30, (7, 0, 23)])
def test_all_kinds_of_layers_are_clipped_and_near_the_exact_sum(way, sizes, monkeypatch):
    monkeypatch.setattr(cost, "way", lambda *_: way)
    torch.manual_seed(1)
    module = Words()
    layout = Layout.of(module)
    x, y = torch.randint(0, 9, (30, 6)), torch.randint(0, 3, (30,))
    weights = layout.read(module)
    for own in (weights, weights + 0.01 * torch.randn(len(sizes), layout.dim)):
        batch = Batch(x, y, sizes)
        exact, rough = (gradients(module, entropy, rounded).sums(own, batch, 0.1) for rounded in (False, True))
        assert 1e-4 < relative(rough, exact.double()) < 0.05
        assert (rough.double().norm(dim=1) <= 0.1 * torch.tensor(sizes) * (1 + 1e-6)).all()


def test_records_that_are_not_finite_or_huge_add_nothing():
    module, x, y = CASES["linear"]()
    x[0], y[1], x[2], x[3], y[3] = torch.inf, torch.nan, 3e38, 1e30, 1e30
    made = gradients(module, given)
    weights = torch.zeros(made._layout.dim)
    whole = made.sums(weights, Batch(x, y, (200,)), 0.1)
    rest = made.sums(weights, Batch(x[4:], y[4:], (196,)), 0.1)
    assert whole.isfinite().all() and relative(whole, rest.double()) <= 1e-4


def test_numbers_too_small_for_bfloat16_are_no_way_around():
    module, x, y = CASES["linear"]()
    for scale in (1e-20, 1e-30, 1e-38):
        assert longest(module, x / scale**0.5, y * scale, 1e-9) <= 1


def test_groups_layers_and_other_norms():
    torch.manual_seed(2)
    module = nn.Sequential(nn.Linear(24, 32), nn.Tanh(), nn.Flatten(), nn.Linear(8 * 32, 3))
    x, y = torch.randn(30, 8, 24), torch.randint(0, 3, (30,))
    exact, rough = gradients(module, entropy, False), gradients(module, entropy)
    weights, batch = Layout.of(module).read(module), Batch(x, y, (12, 18))
    for how in ({"clip": 0.1, "groups": (4, 4, 4, 6, 6, 6)}, {"clip": None, "layers": (0.1, 0.1)}):
        a, b = (made.sums(weights, batch, **how) for made in (exact, rough))
        assert 1e-5 < relative(b, a.double()) < 0.05
    for how in ({"norm": 1}, {"scale": torch.rand(weights.shape) + 0.5}):  # these stay in float32
        assert torch.equal(*(made.sums(weights, batch, 0.1, **how) for made in (exact, rough)))


def test_double_precision_is_not_rounded():
    module, x, y = CASES["bias"]()
    module, x, y = module.double(), x.double(), y.double()
    weights = Layout.of(module).read(module)
    batch = Batch(x, y, (200,))
    assert torch.equal(*(gradients(module, given, r).sums(weights, batch, 0.1) for r in (False, True)))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", CASES)
def test_on_a_gpu_no_record_passes_the_clip(name, way, monkeypatch):
    force(monkeypatch, way, name)
    module, x, y = CASES[name]()
    module, x, y = module.cuda(), x.cuda(), y.cuda()
    for clip in (0.01, 0.1, 0.37, 1.0):
        made = gradients(module, given)
        rows = made.sums(torch.zeros(made._layout.dim, device="cuda"), Batch(x, y, (1,) * len(x)), clip)
        assert rows.double().norm(dim=1).max() <= clip * (1 + 1e-6)
        together = made.sums(torch.zeros(made._layout.dim, device="cuda"), Batch(x, y, (len(x),)), clip)
        assert relative(together.cpu(), rows.sum(0, keepdim=True).double().cpu()) <= 1e-2


class Pictures(nn.Module):
    """Convolutions and group norms with the user's own code between them, as in a residual network."""

    def __init__(self, view=False):
        super().__init__()
        self.view, self.first, self.norm = view, nn.Conv2d(3, 8, 3, 1, 1, bias=False), nn.GroupNorm(4, 8)
        self.second, self.again = nn.Conv2d(8, 8, 3, 2, 1), nn.GroupNorm(2, 8)
        self.skip, self.out = nn.Conv2d(8, 8, 1, 2, bias=False), nn.Linear(8 * 16, 3)

    def forward(self, x):
        x = F.relu(self.norm(self.first(x)))
        x = F.relu(self.again(self.second(x)) + self.skip(x))
        return self.out(x.view(x.shape[0], -1) if self.view else x.flatten(1))


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, NEEDS])])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("sizes", [(30,), (10, 10, 10), (1,) * 30, (7, 0, 23)])
def test_images_stay_in_bfloat16_between_layers(way, sizes, device, monkeypatch):
    monkeypatch.setattr(cost, "way", lambda *_: way)
    torch.manual_seed(1)
    module = Pictures()
    layout = Layout.of(module)
    x, y = torch.randn(30, 3, 8, 8), torch.randint(0, 3, (30,))
    seen = []
    relu = F.relu
    monkeypatch.setattr(F, "relu", lambda x, **how: seen.append(x.dtype) or relu(x, **how))
    weights = layout.read(module)
    for own in (weights, weights + 0.01 * torch.randn(len(sizes), layout.dim)):
        batch, own = Batch(x.to(device), y.to(device), sizes), own.to(device)
        exact = gradients(module, entropy, False).sums(own, batch, 0.1).cpu()
        assert torch.bfloat16 not in seen
        made = gradients(module, entropy)
        rough = made.sums(own, batch, 0.1).cpu()
        assert torch.bfloat16 in seen and made._fast.images
        assert 1e-4 < relative(rough, exact.double()) < 0.05
        assert (rough.double().norm(dim=1) <= 0.1 * torch.tensor(sizes) * (1 + 1e-6)).all()
        seen.clear()


def test_images_return_to_float32_for_code_that_needs_contiguous_memory():
    torch.manual_seed(1)
    module = Pictures(view=True)
    weights, batch = Layout.of(module).read(module), Batch(torch.randn(9, 3, 8, 8), torch.arange(9) % 3, (9,))
    exact, made = gradients(module, entropy, False).sums(weights, batch, 0.1), gradients(module, entropy)
    assert 1e-4 < relative(made.sums(weights, batch, 0.1), exact.double()) < 0.05
    assert not made._fast.images


def test_two_images_of_one_weight_and_their_groups():
    """A convolution that is used twice, dilated and with a wide border, with records clipped in pairs."""

    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.out = nn.Conv2d(3, 3, 3, padding=2, dilation=2), nn.Linear(3, 3)

        def forward(self, x):
            return self.out(self.conv(torch.tanh(self.conv(x))).mean((2, 3)))

    module = Twice()
    weights, batch = Layout.of(module).read(module), Batch(torch.randn(12, 3, 8, 8), torch.arange(12) % 3, (8, 4))
    exact, rough = (gradients(module, entropy, r).sums(weights, batch, 0.1, groups=(2,) * 6) for r in (False, True))
    assert 1e-4 < relative(rough, exact.double()) < 0.05
