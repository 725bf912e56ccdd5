"""What is said of the error of float sums, beside what the terms do and how far neighbouring sums are apart."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sordino.core.floats import gamma
from sordino.core.types import Batch
from sordino.core.vector import Layout
from sordino.gradients import cost
from sordino.gradients.engine import CohortGradients
from sordino.gradients.float_error import CHAIN, float_error
from sordino.gradients.layers.conv import Kernel
from sordino.gradients.terms import Lookup, Outer


class Twice(nn.Module):
    """A convolution that is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.out = nn.Conv2d(4, 4, 3, padding=1), nn.Linear(4, 3)

    def forward(self, x):
        return self.out(self.conv(self.conv(x).tanh()).mean((2, 3)))


class Text(nn.Module):
    def __init__(self, kind: type[nn.Module] | None) -> None:
        super().__init__()
        self.table = nn.Embedding(50, 8)
        self.cells = None if kind is None else kind(8, 6, batch_first=True)
        self.out = nn.Linear(8 if kind is None else 6, 3)

    def forward(self, x):
        h = self.table(x)
        return self.out(h.mean(1) if self.cells is None else self.cells(h)[0][:, -1])


def words(n: int) -> torch.Tensor:
    return torch.randint(0, 50, (1, n), generator=torch.Generator().manual_seed(n))


MODELS = {
    "mlp": (nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 3)), torch.randn(1, 1, 4, 4), True),
    "cnn": (
        nn.Sequential(nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3)),
        torch.randn(1, 1, 8, 8), True,
    ),
    "groups": (
        nn.Sequential(nn.Conv2d(4, 64, 3, groups=2), nn.Flatten(), nn.Linear(256, 3)), torch.randn(1, 4, 4, 4), True,
    ),
    "used twice": (Twice(), torch.randn(1, 4, 5, 5), True),
    "long tokens": (nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Flatten(), nn.Linear(80, 3)),
                    torch.randn(1, 20, 4), True),
    "one word": (Text(None), words(1), True),
    "long text": (Text(None), words(300), True),
    "few tokens": (nn.Sequential(nn.Linear(64, 64), nn.Flatten(), nn.Linear(128, 3)), torch.randn(1, 2, 64), False),
    "few patches": (
        nn.Sequential(nn.Conv2d(8, 64, 3), nn.Flatten(), nn.Linear(256, 3)), torch.randn(1, 8, 4, 4), False,
    ),
    "text": (Text(None), words(20), False),
    "lstm": (Text(nn.LSTM), words(2), False),
}  # fmt: skip
EVERY = pytest.mark.parametrize("name", MODELS)


def losses(out, y):
    return F.cross_entropy(out, y, reduction="none")


def ask(name, records=20, **more):
    module, sample, _ = MODELS[name]
    return float_error(module, Layout.of(module), sample, records, **({"clip": 1.0, "path": "book-keeping"} | more))


@EVERY
def test_it_is_bounded_where_sums_are_of_what_was_measured_and_nowhere_else(name, monkeypatch):
    """Looks into the terms as they are summed: held, of one token, or neither."""
    module, sample, closes = MODELS[name]
    safe = []

    def spy(kind, tokens):
        old = kind.sums

        def sums(self, split, factors):
            held = getattr(self, "values", None) is not None or getattr(self, "held", None) is not None
            if factors is not None:  # the first look clips nothing
                safe.append(held or tokens(self) == 1)
            return old(self, split, factors)

        monkeypatch.setattr(kind, "sums", sums)

    spy(Outer, lambda term: term.a.shape[1])
    spy(Kernel, lambda term: term._size[0])
    spy(Lookup, lambda term: term.g.shape[1])
    layout = Layout.of(module)
    gradients = CohortGradients.of(module, losses, layout, "book-keeping")
    weights = torch.cat([p.detach().flatten() for p in module.parameters()])
    x = sample.expand(3, *sample.shape[1:]).clone()
    gradients.sums(weights, Batch(x, torch.tensor([0, 1, 2]), (3,)), 1.0)
    assert safe and all(safe) == closes
    assert (ask(name).factor == ask(name, path="vmap").factor) == closes


@EVERY
def test_on_the_other_path_every_model_is_bounded(name):
    slots = len(Layout.of(MODELS[name][0]).slots)
    length = gamma(2 * CHAIN + slots) / 2
    assert ask(name, path="vmap").factor == pytest.approx(length / 2 + 20 * 23 * 2.0**-24, rel=0.05)


def test_a_guard_bounds_a_few_records_of_a_few_tokens():
    few = ask("few tokens", records=2)
    assert few.factor > ask("few tokens", records=2, path="vmap").factor
    many = ask("few tokens", records=60)
    assert many.factor is None and "of the clip" in many.reason


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"compiled": True}, "compiled"),
        ({"clip": 1e-9}, "clip is below"),
        ({"records": 5000}, "add up fewer"),
    ],
)
def test_where_there_is_no_bound_it_says_why(more, words):
    found = ask("mlp", **more)
    assert found.factor is None and words in found.reason


def test_gradients_that_are_formed_twice_have_no_bound(monkeypatch):
    monkeypatch.setattr(cost, "way", lambda t, d, p: "discard")
    assert "may cancel" in ask("long tokens").reason and ask("mlp").factor is not None


def test_a_large_convolution_summed_by_its_kernel_has_no_bound(monkeypatch):
    monkeypatch.setattr(cost, "PATCHES", 0)
    assert "kernel for convolutions" in ask("few patches").reason and ask("cnn").factor is not None


def test_groups_have_more_tokens_and_a_scale_holds_them():
    assert ask("mlp", width=4).factor != ask("mlp").factor  # one token has become four
    assert ask("few tokens", scaled=True).factor == pytest.approx(ask("few tokens", path="vmap", scaled=True).factor)


def test_a_tied_weight_has_no_rule_and_says_so():
    module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    module[1].weight = module[0].weight
    found = float_error(module, Layout.of(module), torch.zeros(1, 4), 5, clip=1.0, path="book-keeping")
    assert found.factor is None and "tied" in found.reason


def test_nothing_trained_is_nothing_off():
    module = nn.Linear(2, 2).requires_grad_(False)
    assert float_error(module, Layout.of(module), torch.zeros(1, 2), 5, clip=1.0, path="vmap").factor == 0.0


def test_asking_changes_nothing():
    module = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 2))
    before, state = [p.clone() for p in module.parameters()], torch.random.get_rng_state()
    float_error(module, Layout.of(module), torch.zeros(1, 4), 5, clip=1.0, path="book-keeping")
    assert torch.equal(state, torch.random.get_rng_state()) and not any(m._forward_hooks for m in module.modules())
    assert all(torch.equal(a, b) for a, b in zip(before, module.parameters(), strict=True))


@pytest.mark.parametrize("name", [name for name, (*_, closes) in MODELS.items() if closes])
@pytest.mark.parametrize("path", ["book-keeping", "vmap"])
@pytest.mark.parametrize("stretch", [1.0, 1e6])
def test_neighbouring_sums_are_no_further_apart(name, path, stretch):
    module, sample, _ = MODELS[name]
    layout, n = Layout.of(module), 20
    rng = torch.Generator().manual_seed(1)
    if sample.is_floating_point():
        x = stretch * torch.randn(n, *sample.shape[1:], generator=rng)
        x[1::2] = -x[::2]  # gradients that nearly cancel
    else:
        x = torch.randint(0, 50, (n, sample.shape[1]), generator=rng)
    y = torch.randint(0, 3, (n,), generator=rng)
    weights = torch.cat([p.detach().flatten() for p in module.parameters()])
    gradients = CohortGradients.of(module, losses, layout, path)
    factor = ask(name, records=n, path=path).factor
    everyone = gradients.sums(weights, Batch(x, y, (n,)), 1.0)[0].double()
    for gone in (0, 9, n - 1):
        rest = torch.arange(n) != gone
        others = gradients.sums(weights, Batch(x[rest], y[rest], (n - 1,)), 1.0)[0].double()
        assert float((everyone - others).norm()) <= 1 + 2 * factor
