"""Records made to be taken for shorter than they are, or to wipe out what others add: no bound is passed."""

from itertools import product

import pytest
import torch
import torch.nn.functional as F
from reference import loss, naive, relative
from torch import nn

from sordino.core.errors import SpecError
from sordino.core.types import Batch
from sordino.core.vector import Layout
from sordino.gradients import CohortGradients
from sordino.gradients.clipping import LEAST, full_products, rough
from sordino.gradients.padded import Padded
from sordino.gradients.terms import ghost

HUGE = 2.0**40


def linear(predictions, targets):
    return (predictions * targets).flatten(1).sum(1)


def entropy(predictions, targets):
    return F.cross_entropy(predictions, targets, reduction="none")


def almost_opposite(n, t, d, apart):
    """Half of the tokens u, half about -u: what is left is small beside each of them."""
    u = torch.rand(n, 1, d) + 0.5
    v = -u * (1 + apart * torch.randn(n, 1, d))
    return torch.cat((u.expand(-1, t // 2, -1), v.expand(-1, t // 2, -1)), 1).contiguous()


def longest(module, x, y, sample_loss, clip, **how):
    """Of single records, over the clip."""
    layout = Layout.of(module)
    rows = CohortGradients.of(module, sample_loss, layout).sums(
        torch.zeros(layout.dim), Batch(x, y, (1,) * len(x)), clip, **how
    )
    return rows.double().norm(dim=1).max().item() / clip


@pytest.mark.parametrize("apart", [1e-4, 3e-4, 1e-3])
def test_tokens_that_almost_cancel(apart):
    x = almost_opposite(16, 60, 256, apart)
    out = nn.Linear(256, 256, bias=False)
    assert longest(out, x, torch.ones(16, 1, 256), linear, 0.01) <= 1
    words = torch.ones(16, 60, dtype=torch.long)
    assert longest(nn.Embedding(5, 256), words, x, linear, 0.01) <= 1


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("t", [40, 300])
def test_words_that_cancel_leave_the_others_alone(t, scaled):
    """Beyond 256 tokens they are added up row by row."""
    module = nn.Embedding(5, 16)
    layout = Layout.of(module)
    x, y = torch.randint(0, 5, (20, t)), torch.randn(20, t, 16)
    more = torch.zeros(1, t, 16)
    more[0, 0::2], more[0, 1::2] = HUGE, -HUGE
    sums = CohortGradients.of(module, linear, layout).sums
    how = {"scale": torch.rand(layout.dim) + 0.5} if scaled else {}
    before = sums(torch.zeros(layout.dim), Batch(x, y, (20,)), 1.0, **how)
    both = torch.cat((x, torch.ones(1, t, dtype=torch.long))), torch.cat((y, more))
    after = sums(torch.zeros(layout.dim), Batch(*both, (21,)), 1.0, **how)
    assert before.norm() > 1 and (after - before).norm() <= 1e-2
    fine = naive(module, torch.zeros(layout.dim), Batch(x, y, (20,)), 1.0, linear)
    assert scaled or relative(before, fine) <= 2e-3  # the guard's part grows with the tokens


class Tokens(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(64, 64), nn.Linear(64, 3)

    def forward(self, x):
        return self.b(self.a(x).mean(1).tanh())


def erasers():
    """A model, its data, and a record (or a user of two) whose parts cancel."""
    big = HUGE * torch.randn(1, 784).sign()
    plain = nn.Linear(784, 10, bias=False)
    nn.init.zeros_(plain.weight)
    yield plain, torch.rand(40, 784), 10, torch.cat((big, -big)), [2] * 20, [2]
    token = HUGE * torch.randn(1, 1, 64).sign()
    yield Tokens(), torch.randn(30, 4, 64), 3, torch.cat((token, token, -token, -token), 1), None, None
    signs = torch.tensor([1.0, -1.0, 1.0, -1.0]).expand(4, 4)
    picture = (HUGE * torch.randn(32).sign()).view(1, 32, 1, 1) * signs
    body = nn.Sequential(nn.Conv2d(32, 64, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 3))
    yield body, torch.randn(30, 32, 4, 4), 3, picture, None, None


@pytest.mark.parametrize("scaled", [False, True])
def test_what_cancels_leaves_the_others_alone(scaled):
    for module, x, classes, more, groups, last in erasers():
        layout = Layout.of(module)
        weights, y = layout.read(module), torch.randint(0, classes, (len(x),))
        sums = CohortGradients.of(module, entropy, layout).sums
        how = {"scale": torch.ones(layout.dim)} if scaled else {}
        before = sums(weights, Batch(x, y, (len(x),)), 1.0, groups=groups, **how)
        both = Batch(
            torch.cat((x, more)), torch.cat((y, torch.zeros(len(more), dtype=torch.long))), (len(x) + len(more),)
        )
        after = sums(weights, both, 1.0, groups=None if groups is None else groups + last, **how)
        assert before.norm() > 1 and (after - before).norm() <= 1 + 1e-4


def test_sums_of_products_that_run_over_are_not_taken_for_nothing():
    """Partial sums of the products become -inf while every token's own length is finite."""
    found = 0
    for t, lane, size in product((128, 192, 224), range(0, 32, 4), (2e19, 3e19, 5e19, 8e19)):
        s = torch.zeros(t)
        s[: t // 2] = 1.0
        s[: t // 2][lane::32] = 0
        s *= size / s.sum()
        own = torch.arange(t // 2, t)[lane::32]
        s[own] = -0.8 * size / len(own)
        if torch.outer(s, s).sum().item() == -torch.inf:  # in one way of adding up, which may be that of `ghost`
            a, g = torch.zeros(1, t, 4), torch.zeros(1, t, 3)
            a[0, :, 0], g[0, :, 0] = s, 1.0
            assert not ghost(a, g).item() < 3e38
            found += 1
    if not found:
        pytest.skip("sums are added up in another order here")


@pytest.mark.parametrize("d", [784, 3072])
def test_squares_that_vanish(d):
    x, y = torch.full((1, d), 2.6e-23), torch.tensor([9e18])
    assert longest(nn.Linear(d, 1, bias=False), x, y, lambda p, y: (p[:, 0] - y).square(), 0.01) <= 1


@pytest.mark.parametrize("clip", [1.0, 1e-3, 1e-6])
@pytest.mark.parametrize("tokens", [1, 3])
def test_huge_inputs_under_a_scale(clip, tokens):
    x = 10 ** torch.empty(100, 1, 40).uniform_(36, 38)
    y = 1e-32 * torch.randn(100, 1, 40)
    module = nn.Linear(40, 40, bias=False)
    assert longest(module, x.expand(-1, tokens, -1), y, linear, clip, scale=torch.ones(1600)) <= 1


def test_bounds_too_small_for_squares_are_refused():
    module = nn.Linear(3, 2)
    layout = Layout.of(module)
    gradients, batch = CohortGradients.of(module, loss, layout), Batch(torch.randn(2, 3), torch.rand(2), (2,))
    for how in ({"clip": LEAST / 2}, {"clip": None, "layers": [LEAST / 2]}):
        with pytest.raises(SpecError, match="at least 1e-12"):
            gradients.sums(layout.read(module), batch, **how)
    gradients.sums(layout.read(module), batch, LEAST)
    gradients.sums(layout.read(module), batch, LEAST / 2, norm=1)


def test_autocast_from_outside_rounds_nothing():
    module = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Tanh(), nn.Flatten(), nn.Linear(8 * 36, 4))
    layout = Layout.of(module)
    batch = Batch(torch.randn(6, 3, 8, 8), torch.rand(6), (1,) * 6)
    gradients = CohortGradients.of(module, loss, layout)
    for norm in (2, 1):
        plain = gradients.sums(layout.read(module), batch, 0.01, norm=norm)
        with torch.autocast("cpu", torch.bfloat16):
            assert torch.equal(gradients.sums(layout.read(module), batch, 0.01, norm=norm), plain)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 3e38])
def test_a_broken_record_breaks_its_own_client_alone(bad):
    """Padded and not clipped, as local training on a GPU: what fills up counts nothing, but 0 times nan is nan."""
    module = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))
    layout = Layout.of(module)
    weights = layout.read(module) + 0.1 * torch.randn(5, layout.dim)
    x, y, sizes = torch.randn(14, 6), torch.randint(0, 3, (14,)), (3, 5, 0, 2, 4)
    x[0] = bad * x[0].sign()
    gradients = CohortGradients.of(module, entropy, layout)
    expected = gradients.sums(weights, Batch(x, y, sizes), None)
    for limit in (1000, 9):
        got = Padded(gradients._fast, None).sums(weights, Batch(x, y, sizes), None, limit)
        assert torch.allclose(got[1:], expected[1:], atol=1e-6) and not got[2].any()


class Newer:
    """A switch that was set by `fp32_precision`: the older one raises."""

    fp32_precision = "tf32"

    @property
    def allow_tf32(self):
        raise RuntimeError("mix of the legacy and new APIs")

    @allow_tf32.setter
    def allow_tf32(self, value):
        raise RuntimeError("mix of the legacy and new APIs")


def test_tf32_switches_of_either_kind(monkeypatch):
    newer = Newer()
    monkeypatch.setattr(torch.backends.cuda, "matmul", newer)
    assert rough(newer)
    with pytest.warns(UserWarning, match="TF32"):
        full_products(torch.device("cuda"))
    assert newer.fp32_precision == "ieee"
