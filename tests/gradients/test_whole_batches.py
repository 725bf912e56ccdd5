"""A record's gradient is its own, whatever is beside it: where a model mixes its records, no book is kept.

Each model is compared with the naive loop, which gives it one record at a time."""

import pytest
import torch
import torch.nn.functional as F
from reference import CLOSE, case, loss, middle_norm, naive, relative
from torch import nn
from torch.utils.checkpoint import checkpoint

from sordino.core.errors import ModelError
from sordino.core.types import Batch
from sordino.gradients import CohortGradients

N = 6


class Around(nn.Module):
    """Two linear layers with something between them."""

    def __init__(self, between):
        super().__init__()
        self.a, self.b, self.between = nn.Linear(5, 4), nn.Linear(4, 3), between
        self.register_buffer("factor", torch.tensor(0.5))

    def forward(self, x):
        return self.b(self.between(self, self.a(x)))


def zero_start(between):
    """The last layer starts from zero: its outputs are the same for every input."""
    module = Around(between)
    nn.init.zeros_(module.b.weight)
    return module


MIXING = {
    "centred": lambda: Around(lambda m, h: h - h.mean(0)),
    "centred-a-little": lambda: Around(lambda m, h: h - 0.01 * h.mean(0)),
    "centred-zero-start": lambda: zero_start(lambda m, h: h - h.mean(0)),
    "scaled-by-the-largest": lambda: Around(lambda m, h: h / h.abs().max()),
    "counted": lambda: Around(lambda m, h: h / len(h)),
    "neighbour": lambda: Around(lambda m, h: h + h.roll(1, 0)),
    "sorted": lambda: Around(lambda m, h: h.sort(0)[0]),
    "branch": lambda: Around(lambda m, h: h.sin() if h.sum() > -1e9 else h.cos()),
    "number": lambda: Around(lambda m, h: h * min(h.sum().item(), -1e9) / -1e9),
    "list": lambda: Around(lambda m, h: h * (1 if max(h[0].tolist()) > -1e9 else 2)),
}


def balanced(predictions, targets):
    """Weighted by how often a record's class is met in the batch."""
    kinds = (targets > 0.5).long()
    weight = torch.stack(((kinds == 0).sum(), (kinds == 1).sum()))[kinds] / len(kinds)
    return loss(predictions, targets) / weight


@pytest.mark.parametrize("stacked", [False, True], ids=["shared", "own"])
@pytest.mark.parametrize("name", MIXING)
def test_models_that_mix_their_records_are_given_them_one_by_one(name, stacked):
    module = MIXING[name]()
    layout, weights, batch = case(module, torch.randn(N, 5), (2, 3, 1), stacked)
    gradients = CohortGradients.of(module, loss, layout)
    clip = middle_norm(module, weights, batch)
    rows = gradients.sums(weights, batch, clip)
    assert gradients.path == "vmap" and ("record" in gradients.reason or "number" in gradients.reason)
    assert relative(rows, naive(module, weights, batch, clip)) <= CLOSE
    x = batch.x.clone()
    x[-1] *= 100
    assert torch.equal(gradients.sums(weights, Batch(x, batch.y, batch.sizes), clip)[:2], rows[:2])


@pytest.mark.parametrize("records", [1, 2, N])
@pytest.mark.parametrize("name", [name for name in MIXING if name != "list"])
def test_few_records_are_enough_to_notice(name, records):
    module = MIXING[name]()
    layout, weights, batch = case(module, torch.randn(N, 5), (records,), False)
    with pytest.raises(ModelError, match=r"no book can be kept: the (loss of a record depends|model's forward asks)"):
        CohortGradients.of(module, loss, layout, "book-keeping").sums(weights, batch, 1.0)


@pytest.mark.parametrize(
    "each", [balanced, lambda p, y: loss(p, y) / len(y), lambda p, y: loss(p, y) - loss(p, y).mean()]
)
def test_so_are_losses(each):
    module = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))
    layout, weights, batch = case(module, torch.randn(N, 5), (2, 3, 1), False)
    gradients = CohortGradients.of(module, each, layout)
    got = gradients.sums(weights, batch, 0.5)
    assert gradients.path == "vmap" and relative(got, naive(module, weights, batch, 0.5, each)) <= CLOSE


class Hot(nn.Module):
    """One-hot inputs, whose range torch checks."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(9, 3)
        self.register_buffer("one", torch.ones(()))

    def forward(self, ids):
        return self.linear(F.one_hot(ids, 9) * self.one)


class Columns(nn.Module):
    """A table a column: the first column's numbers are no rows of the second's table, nor the other way round."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Embedding(3, 4), nn.Embedding(90, 4)

    def forward(self, x):
        return (self.a(x[:, 0]) * self.b(x[:, 1])).tanh()


def guarded(predictions, targets):
    if (targets < 0).any():
        raise ValueError("negative targets")
    return loss(predictions, targets)


FINE = {
    "buffer": lambda: (Around(lambda m, h: h * m.factor.item() if m.factor > 0 else h), torch.randn(N, 5)),
    "shapes": lambda: (Around(lambda m, h: h.view(len(h), -1) if h.dim() == 2 else h), torch.randn(N, 5)),
    "one-hot": lambda: (Hot(), torch.randint(0, 9, (N, 4))),
    "words": lambda: (nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 2)), torch.randint(0, 9, (N, 4))),
    "word": lambda: (nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 2)), torch.randint(0, 9, (N,))),
    "columns": lambda: (Columns(), torch.stack((torch.randint(0, 3, (N,)), torch.randint(0, 90, (N,))), 1)),
    "same": lambda: (Around(lambda m, h: h.tanh()), torch.ones(N, 5)),
    "zeros": lambda: (Around(lambda m, h: h.tanh()), torch.zeros(N, 5)),
    "large": lambda: (Around(lambda m, h: h.tanh()), 1e4 * torch.randn(N, 5)),
}


@pytest.mark.parametrize("sizes", [(1,), (2, 0, 4)], ids=str)
@pytest.mark.parametrize("name", FINE)
def test_models_that_do_not_keep_their_book(name, sizes):
    module, x = FINE[name]()
    layout, weights, batch = case(module, x, sizes, False)
    gradients = CohortGradients.of(module, guarded, layout)
    got = gradients.sums(weights, batch, 0.5)
    assert gradients.path == "book-keeping"
    assert relative(got, naive(module, weights, batch, 0.5)) <= CLOSE


def test_dropout_keeps_its_book():
    module = nn.Sequential(nn.Linear(5, 40), nn.Dropout(0.5), nn.Linear(40, 30), nn.Dropout(0.2), nn.Linear(30, 3))
    layout, weights, batch = case(module, torch.randn(N, 5), (2, 4), False)
    gradients = CohortGradients.of(module, loss, layout)
    state = torch.random.get_rng_state()
    gradients.sums(weights, batch, 0.5, seeds=(1, 2))
    assert gradients.path == "book-keeping" and torch.equal(state, torch.random.get_rng_state())


@pytest.mark.parametrize("broken", [0, 1, slice(0, N)])
def test_broken_records_do_not_look_like_mixing(broken):
    module = Around(lambda m, h: h.tanh())
    layout, weights, batch = case(module, torch.randn(N, 5), (2, 4), False)
    batch.x[broken] = torch.nan
    gradients = CohortGradients.of(module, loss, layout)
    assert gradients.sums(weights, batch, 0.5).isfinite().all() and gradients.path == "book-keeping"


def test_what_is_recomputed_between_layers_goes_one_by_one():
    """Records are given alone, all at once, which torch.utils.checkpoint does not go with."""
    module = Around(lambda m, h: checkpoint(lambda t: t.sin() * t, h, use_reentrant=False))
    layout, weights, batch = case(module, torch.randn(N, 5), (2, 0, 4), False)
    gradients = CohortGradients.of(module, loss, layout)
    assert relative(gradients.sums(weights, batch, 0.5), naive(module, weights, batch, 0.5)) <= CLOSE
    assert gradients.path == "vmap"


LATE = {  # they mix where a look at three records does not show it
    "more-than-eight": lambda m, h: h - h.mean(0) if len(h) > 8 else h,
    "a-certain-size": lambda m, h: h / h.abs().max() if len(h) in (7, 37, 60) else h,
}


@pytest.mark.parametrize("sizes", [(37,), (20, 0, 30, 10)], ids=str)
@pytest.mark.parametrize("stacked", [False, True], ids=["shared", "own"])
@pytest.mark.parametrize("name", LATE)
def test_those_that_mix_in_large_batches_only_are_given_one_record_at_a_time(name, stacked, sizes):
    module = Around(LATE[name])
    layout, weights, batch = case(module, torch.randn(60, 5), sizes, stacked)
    gradients = CohortGradients.of(module, loss, layout)
    clip = middle_norm(module, weights, batch)
    assert relative(gradients.sums(weights, batch, clip), naive(module, weights, batch, clip)) <= CLOSE
    assert gradients.path == "book-keeping" and "one record at a time" in gradients.reason


class Recomputing(nn.Module):
    def __init__(self, reentrant):
        super().__init__()
        self.a, self.b, self.c, self.reentrant = nn.Linear(5, 4), nn.Linear(4, 4), nn.Linear(4, 3), reentrant

    def forward(self, x):
        return self.c(checkpoint(self.b, self.a(x), use_reentrant=self.reentrant).tanh())


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
@pytest.mark.parametrize("clip", [1.0, None])
@pytest.mark.parametrize("reentrant", [False, True])
def test_layers_that_are_recomputed_are_refused_in_one_line(reentrant, clip):
    module = Recomputing(reentrant)
    layout, weights, batch = case(module, torch.randn(N, 5), (2, 4), False)
    with pytest.raises(ModelError, match=r"torch\.utils\.checkpoint.*switch checkpointing off"):
        CohortGradients.of(module, loss, layout).sums(weights, batch, clip)


def frozen(norm):
    with torch.no_grad():
        for value in [*norm.parameters(), *norm.buffers()]:
            if value.is_floating_point():
                value.uniform_(0.5, 2)
    return norm.eval().requires_grad_(False)


class Functional(nn.Module):
    def forward(self, x):
        return F.instance_norm(x)


class Subclass(nn.InstanceNorm2d):
    pass


BETWEEN = {  # name -> layer between two convolutions, channels in and out, path
    "instance-norm": (lambda: nn.InstanceNorm2d(8), 8, "book-keeping"),
    "instance-norm-trained": (lambda: nn.InstanceNorm2d(8, affine=True), 8, "book-keeping"),
    "instance-norm-frozen": (lambda: frozen(nn.InstanceNorm2d(8, affine=True)), 8, "book-keeping"),
    "instance-norm-running": (lambda: frozen(nn.InstanceNorm2d(8, track_running_stats=True)), 8, "vmap"),
    "instance-norm-functional": (Functional, 8, "vmap"),
    "instance-norm-subclass": (lambda: Subclass(8), 8, "vmap"),
    "batch-norm-frozen": (lambda: frozen(nn.BatchNorm2d(8)), 8, "book-keeping"),
    "batch-norm-frozen-bare": (lambda: frozen(nn.BatchNorm2d(8, affine=False)), 8, "book-keeping"),
    "group-norm": (lambda: nn.GroupNorm(2, 8, affine=False), 8, "book-keeping"),
    "group-norm-frozen": (lambda: frozen(nn.GroupNorm(2, 8)), 8, "book-keeping"),
    "layer-norm": (lambda: nn.LayerNorm((8, 6, 6), elementwise_affine=False), 8, "book-keeping"),
    "max-pool": (lambda: nn.MaxPool2d(2), 8, "book-keeping"),
    "avg-pool": (lambda: nn.AvgPool2d(2), 8, "book-keeping"),
    "adaptive-avg-pool": (lambda: nn.AdaptiveAvgPool2d(4), 8, "book-keeping"),
    "adaptive-max-pool": (lambda: nn.AdaptiveMaxPool2d(4), 8, "book-keeping"),
    "upsample": (lambda: nn.Upsample(scale_factor=2), 8, "book-keeping"),
    "upsample-bilinear": (lambda: nn.Upsample(scale_factor=2, mode="bilinear"), 8, "book-keeping"),
    "pixel-shuffle": (lambda: nn.PixelShuffle(2), 2, "book-keeping"),
    "reflection": (lambda: nn.ReflectionPad2d(1), 8, "book-keeping"),
    "transposed-frozen": (lambda: frozen(nn.ConvTranspose2d(8, 8, 2)), 8, "book-keeping"),
}


@pytest.mark.parametrize("stacked", [False, True], ids=["shared", "own"])
@pytest.mark.parametrize("sizes", [(1,), (1, 2)], ids=str)
@pytest.mark.parametrize("name", BETWEEN)
def test_one_record_alone_with_its_channels_last(name, sizes, stacked):
    """PyTorch's own backward pass of instance_norm is off by its own length here."""
    make, channels, path = BETWEEN[name]
    module = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), make(), nn.SiLU(), nn.Conv2d(channels, 4, 3, padding=1))
    layout, weights, batch = case(module, torch.randn(3, 3, 6, 6), sizes, stacked)
    gradients = CohortGradients.of(module, loss, layout)
    for clip in (None, middle_norm(module, weights, batch)):
        assert relative(gradients.sums(weights, batch, clip), naive(module, weights, batch, clip)) <= CLOSE
    assert gradients.path == path


@pytest.mark.parametrize("dim", [1, 3])
def test_one_record_of_other_dimensions(dim):
    conv, norm = (nn.Conv1d, nn.InstanceNorm1d) if dim == 1 else (nn.Conv3d, nn.InstanceNorm3d)
    module = nn.Sequential(conv(3, 4, 3, padding=1), norm(4), nn.SiLU(), conv(4, 2, 3, padding=1))
    layout, weights, batch = case(module, torch.randn(2, 3, *(4,) * dim), (1,), False)
    gradients = CohortGradients.of(module, loss, layout)
    assert relative(gradients.sums(weights, batch, 0.5), naive(module, weights, batch, 0.5)) <= CLOSE
    assert gradients.path == "book-keeping"
    first = batch.x[:1]
    alone = CohortGradients.of(module, loss, layout).sums(weights, Batch(first, batch.y[:1], (1,)), 1e9)
    assert relative(alone, naive(module, weights, Batch(first, batch.y[:1], (1,)), 1e9)) <= CLOSE


def test_an_instance_of_one_number_is_refused():
    module = nn.Sequential(nn.Conv2d(3, 8, 3), nn.InstanceNorm2d(8), nn.Flatten(), nn.Linear(8, 2))
    layout, weights, batch = case(module, torch.randn(2, 3, 3, 3), (2,), False)
    with pytest.raises(ModelError, match="one number a channel"):
        CohortGradients.of(module, loss, layout).sums(weights, batch, 1.0)
