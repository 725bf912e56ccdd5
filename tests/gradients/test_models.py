"""Whole models: which path they take, and that it is right."""

import pytest
import torch
import torch.nn.functional as F
from reference import case, loss, middle_norm, naive, relative
from torch import nn

from sordino.core.errors import ModelError, SpecError
from sordino.gradients import CohortGradients


class Attention(nn.Module):
    """One pre-norm encoder layer over embedded tokens."""

    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(11, 8), nn.Embedding(6, 8)
        self.norm, self.qkv, self.out = nn.LayerNorm(8), nn.Linear(8, 24), nn.Linear(8, 8)

    def forward(self, ids):
        x = self.words(ids) + self.places(torch.arange(6, device=ids.device).expand_as(ids))
        q, k, v = self.qkv(self.norm(x)).view(-1, 6, 3, 2, 4).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x.mean(1)


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 8, 3, 2, 1, bias=False), nn.Conv2d(8, 8, 3, 1, 1, bias=False)
        self.n, self.m, self.skip = nn.GroupNorm(4, 8), nn.GroupNorm(4, 8), nn.Conv2d(3, 8, 1, 2)

    def forward(self, x):
        return F.silu(self.m(self.b(F.silu(self.n(self.a(x))))) + self.skip(x)).mean((2, 3))


class Twice(nn.Module):
    """The same layers at two depths."""

    def __init__(self):
        super().__init__()
        self.linear, self.conv, self.norm = nn.Linear(5, 5), nn.Conv1d(2, 2, 3, padding=1), nn.LayerNorm(5)

    def forward(self, x):
        for _ in range(2):
            x = self.norm(self.linear(self.conv(x)).tanh())
        return x


class TwiceWords(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(5, 3)

    def forward(self, ids):
        return self.words(ids) * self.words(ids.flip(1))


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.head = nn.Embedding(7, 4), nn.Linear(4, 7, bias=False)
        self.head.weight = self.words.weight

    def forward(self, ids):
        return self.head(self.words(ids).tanh())


class Own(nn.Module):
    """Parameters of its own, one of them without dimensions, used in an einsum."""

    def __init__(self):
        super().__init__()
        self.weight, self.scale = nn.Parameter(torch.randn(4, 5)), nn.Parameter(torch.tensor(0.7))

    def forward(self, x):
        return torch.einsum("ntd,pd->ntp", x, self.weight).tanh() * self.scale


class Direct(nn.Module):
    """A layer's weight used behind its back."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(5, 4)

    def forward(self, x):
        return F.linear(x, self.linear.weight).tanh() + self.linear(x)


class TimeFirst(nn.Module):
    """Samples are not in the first dimension where the layer is called."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(5, 4)

    def forward(self, x):
        return self.linear(x.transpose(0, 1)).tanh().transpose(0, 1)


class Viewing(nn.Module):
    """The old way to flatten, which channels-last images do not allow."""

    def __init__(self):
        super().__init__()
        self.conv, self.linear = nn.Conv2d(3, 4, 3), nn.Linear(36, 2)

    def forward(self, x):
        return self.linear(self.conv(x).view(x.shape[0], -1))


class Special(nn.Linear):
    def forward(self, x):
        return super().forward(x) * 2


N = 7
IDS, IMAGES, ROWS = torch.randint(0, 5, (N, 6)), torch.randn(N, 3, 8, 8), torch.randn(N, 6, 5)
MODELS = {
    "attention": (Attention, IDS, "book-keeping"),
    "residual": (Residual, IMAGES, "book-keeping"),
    "twice": (Twice, torch.randn(N, 2, 5), "book-keeping"),
    "twice-words": (TwiceWords, IDS, "book-keeping"),
    "viewing": (Viewing, torch.randn(N, 3, 5, 5), "book-keeping"),
    "tied": (Tied, IDS, "vmap"),
    "own": (Own, ROWS, "vmap"),
    "direct": (Direct, ROWS, "vmap"),
    "time-first": (TimeFirst, torch.randn(N, N, 5), "vmap"),  # as many steps as samples
    "special": (lambda: nn.Sequential(Special(5, 3), nn.Tanh()), ROWS, "vmap"),
    "circular": (lambda: nn.Conv2d(3, 2, 3, padding=1, padding_mode="circular"), IMAGES, "vmap"),
    "attention-layer": (
        lambda: nn.TransformerEncoderLayer(4, 2, 8, 0.0, batch_first=True),
        torch.randn(N, 3, 4),
        "vmap",
    ),
}


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # vmap of fused attention
@pytest.mark.parametrize("sizes", [(4, 0, 1, 2), (7,)], ids=str)
@pytest.mark.parametrize("stacked", [False, True], ids=["shared", "own"])
@pytest.mark.parametrize("name", MODELS)
def test_models(name, stacked, sizes):
    make, x, path = MODELS[name]
    module = make()
    before = {k: v.clone() for k, v in module.state_dict().items()}
    layout, weights, batch = case(module, x, sizes, stacked)
    gradients = CohortGradients.of(module, loss, layout)
    clip = middle_norm(module, weights, batch)
    for bound in (clip, None):
        got = gradients.sums(weights, batch, bound)
        assert relative(got, naive(module, weights, batch, bound)) <= 1e-5
    assert gradients.path == path and gradients.reason
    assert all(torch.equal(before[k], v) for k, v in module.state_dict().items())
    assert all(p.grad is None for p in module.parameters())


def test_one_may_insist():
    module = Tied()
    layout, weights, batch = case(TimeFirst(), torch.randn(N, N, 5), (N,), False)
    with pytest.raises(ModelError, match="tied"):
        CohortGradients.of(module, loss, case(module, IDS, (N,), False)[0], "book-keeping")
    with pytest.raises(ModelError, match="rows"):
        CohortGradients.of(TimeFirst(), loss, layout, "book-keeping").sums(weights, batch, 1.0)


def test_batch_statistics_are_refused_by_name():
    module = nn.Sequential(nn.Linear(3, 4), nn.Sequential(nn.BatchNorm1d(4)))
    layout = case(module, torch.randn(2, 3), (2,), False)[0]
    with pytest.raises(ModelError, match=r"1\.0 is BatchNorm1d"):
        CohortGradients.of(module, loss, layout)
    assert CohortGradients.of(module.eval(), loss, layout).path == "vmap"


def test_a_loss_gives_one_number_a_sample():
    module = nn.Linear(5, 3)
    layout, weights, batch = case(module, torch.randn(N, 5), (N,), False)
    with pytest.raises(ModelError, match="reduction='none'"):
        CohortGradients.of(module, lambda p, y: p.mean(), layout).sums(weights, batch, 1.0)


def test_shapes_are_checked():
    module = nn.Linear(5, 3)
    layout, weights, batch = case(module, torch.randn(N, 5), (3, 4), False)
    with pytest.raises(SpecError, match="weights"):
        CohortGradients.of(module, loss, layout).sums(weights.expand(3, -1), batch, 1.0)
