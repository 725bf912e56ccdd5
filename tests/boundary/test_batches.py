"""A record's loss is its own at every size of the batch and at every call, whatever a model or a loss would like.

The attack: code that looks at the whole batch, or back at earlier ones, but only where a look at a few records does not
show it. What is measured is what the noise is made for: how far sums move when one record comes or goes."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sordino.core.errors import ModelError
from sordino.core.types import Batch
from sordino.core.vector import Layout
from sordino.gradients import CohortGradients, code

CLIP = 0.5
SLACK = 1e-4  # of the clip: rounding
MEANS: list[torch.Tensor] = []
SEEN = 0


def squared(predictions, targets):
    return (predictions.flatten(1) - targets.unsqueeze(1)).square().mean(1)


class Between(nn.Module):
    """Two linear layers with a function of the model and of what is between them."""

    def __init__(self, between):
        super().__init__()
        self.a, self.b, self.between, self.calls, self.mean = nn.Linear(5, 6), nn.Linear(6, 3), between, 0, None
        self.counter, self.past = iter(range(1, 10**9)), []
        self.register_buffer("running", torch.zeros(6))

    def forward(self, x):
        self.calls += 1
        return self.b(self.between(self, self.a(x)).tanh())


def normal(h):
    return (h - h.mean(0)) / (h.std(0, correction=0) + 1e-3)


def kept_mean(m, h):
    """A running mean in a plain attribute."""
    before = h.new_zeros(6) if m.mean is None else m.mean
    m.mean = 0.5 * before + 0.5 * h.detach().mean(0)
    return h - m.mean


def kept_number(m, h):
    m.past.append(float(h.detach().mean()))
    return h - sum(m.past)


def in_place(m, h):
    with torch.no_grad():
        m.running.mul_(0.5).add_(h.detach().mean(0))
    return h - m.running


def behind(m, h):
    """Write in place, past the count of versions."""
    m.running.data.mul_(0.5).add_(h.detach().mean(0))
    return h - m.running


def in_a_global(m, h):
    MEANS.append(h.detach().mean(0))
    return h - sum(MEANS)


def rebound_global(m, h):
    global SEEN
    SEEN = SEEN + float(h.detach().mean())
    return h - SEEN


def in_a_default(m, h, past=[]):  # noqa: B006
    past.append(h.detach().mean(0))
    return h - sum(past)


def on_the_class(m, h):
    type(m).total = getattr(type(m), "total", 0) + h.detach().mean(0)
    return h - type(m).total


class Mixed(torch.autograd.Function):
    """An operation with a rule of its own for vmap, in which all records meet."""

    @staticmethod
    def forward(x):
        return x.clone()

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, grad):
        return grad

    @staticmethod
    def vmap(info, in_dims, x):
        return x - x.mean(in_dims[0], keepdim=True), in_dims[0]


def closure():
    past = torch.zeros(6)

    def between(m, h):
        nonlocal past
        past = 0.5 * past + 0.5 * h.detach().mean(0)
        return h - past

    return between


MODULES = {
    "more-than-8": lambda: Between(lambda m, h: normal(h) if len(h) > 8 else h),
    "exactly-37": lambda: Between(lambda m, h: normal(h) if len(h) == 37 else h),
    "exactly-60-or-240": lambda: Between(lambda m, h: normal(h) if len(h) in (60, 240) else h),
    "odd": lambda: Between(lambda m, h: h - 3 * h.mean(0) if h.shape[0] % 2 and len(h) > 3 else h),
    "even": lambda: Between(lambda m, h: normal(h) if h.shape[0] % 2 == 0 else h),
    "size-in-the-value": lambda: Between(lambda m, h: h * (1 + len(h) // 16)),
    "every-5th-call": lambda: Between(lambda m, h: normal(h) if m.calls % 5 == 0 else h),
    "after-30-calls": lambda: Between(lambda m, h: normal(h) if m.calls > 30 else h),
    "running-mean": lambda: Between(kept_mean),
    "list": lambda: Between(kept_number),
    "buffer": lambda: Between(in_place),
    "buffer-behind": lambda: Between(behind),
    "global": lambda: Between(in_a_global),
    "global-number": lambda: Between(rebound_global),
    "default": lambda: Between(in_a_default),
    "class": lambda: Between(on_the_class),
    "closure": lambda: Between(closure()),
    "vmap-rule": lambda: Between(lambda m, h: Mixed.apply(h)),
}


def centred(p, y):
    each = squared(p, y)
    return each if len(each) <= 8 else squared(p - p.mean(0), y)


class Running:
    """A loss that weighs records by a running mean of losses."""

    def __init__(self):
        self.mean = None

    def __call__(self, p, y):
        each = squared(p, y)
        self.mean = each.detach().mean() if self.mean is None else 0.5 * (self.mean + each.detach().mean())
        return each / (1e-2 + self.mean)


class Bank:
    """A loss that remembers predictions, as losses with a memory bank do."""

    def __init__(self):
        self.bank = []

    def __call__(self, p, y):
        past = sum(self.bank) if self.bank else 0.0
        self.bank.append(float(p.detach().sum()))
        return squared(p - past, y)


def attribute(p, y):
    attribute.past = getattr(attribute, "past", 0.0) + p.detach().mean(0)
    return squared(p - attribute.past, y)


LOSSES = {
    "centred": lambda: centred,
    "running": Running,
    "bank": Bank,
    "attribute": lambda: attribute,
    "bound-method": lambda: Running().__call__,
}


def data(n, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x, y = torch.randn(n, 5, generator=generator), torch.rand(n, generator=generator)
    x[n // 2] = 1e4  # the record that comes and goes
    return x, y


def cohort(n):
    """Sizes of three clients, of whom the second has the record."""
    return n // 4, n - n // 4 - n // 5, n // 5


def batch(n, record=True):
    x, y = data(n)
    sizes, keep = cohort(n), torch.ones(n, dtype=torch.bool)
    if not record:
        keep[n // 2] = False
        sizes = (sizes[0], sizes[1] - 1, sizes[2])
    return Batch(x[keep], y[keep], sizes)


def run(make, make_loss, n, record, stacked=False):
    """The sums of a few rounds: in the first the record takes part, or not; after it, all is the same."""
    torch.manual_seed(1)
    module = make()
    layout = Layout.of(module)
    weights = layout.read(module).float()
    if stacked:
        weights = weights.expand(3, -1).contiguous()
    gradients = CohortGradients.of(module, make_loss(), layout)
    gradients.sums(weights, batch(60, False), CLIP)
    first = gradients.sums(weights, batch(n, record), CLIP)
    x, y = data(40, seed=3)
    rest = [gradients.sums(weights, Batch(x[:20], y[:20], (10, 5, 5)), CLIP) for _ in range(6)]
    return first, torch.stack(rest)


def moves(make, make_loss, n, stacked=False):
    """How far all clients' sums move in the round of the record, and in the rounds after it, in clips."""
    with_it, without = run(make, make_loss, n, True, stacked), run(make, make_loss, n, False, stacked)
    return [float((a - b).double().norm() / CLIP) for a, b in zip(with_it, without, strict=True)]


@pytest.fixture(autouse=True)
def _clean():
    """Whatever state a test leaves in globals, the next one starts without it."""
    global SEEN
    MEANS.clear()
    SEEN = 0
    in_a_default.__defaults__[0].clear()
    vars(attribute).pop("past", None)
    if "total" in vars(Between):
        del Between.total


def check(make, make_loss, n, stacked):
    try:
        now, later = moves(make, make_loss, n, stacked)
    except ModelError as error:
        assert "\n" not in str(error)
        return
    assert now <= 1 + SLACK and later <= SLACK


@pytest.mark.parametrize("stacked", [False, True], ids=["shared", "own"])
@pytest.mark.parametrize("n", [37, 60, 240])
@pytest.mark.parametrize("name", MODULES)
def test_a_model_moves_sums_by_one_clip(name, n, stacked):
    check(MODULES[name], lambda: squared, n, stacked)


@pytest.mark.parametrize("n", [60, 240])
@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("known", [True, False], ids=["known", "own"])
def test_so_does_a_loss(known, name, n):
    make = (lambda: nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3))) if known else MODULES["more-than-8"]
    check(make, LOSSES[name], n, False)


@pytest.mark.parametrize("name", ["more-than-8", "exactly-60-or-240", "list", "buffer", "global-number"])
def test_the_attack_is_real(name, monkeypatch):
    """Taken for known, the same code moves sums by many clips."""
    monkeypatch.setattr(code, "known_module", lambda module: True)
    monkeypatch.setattr(code, "known_loss", lambda loss: True)
    assert max(moves(MODULES[name], lambda: squared, 60)) > 3


def test_so_is_that_of_a_loss(monkeypatch):
    monkeypatch.setattr(code, "known_loss", lambda loss: True)
    for make_loss in (lambda: centred, Bank):
        assert max(moves(lambda: nn.Linear(5, 3), make_loss, 60)) > 3


@pytest.mark.parametrize("groups", [None, (5,) * 12])
def test_with_groups_and_without_a_clip_nothing_is_carried_over_to_others(groups):
    """A client's records belong together where its whole update is clipped, but those of others do not count."""
    for name in ("more-than-8", "running-mean", "global", "class"):
        torch.manual_seed(1)
        module = MODULES[name]()
        layout = Layout.of(module)
        weights = layout.read(module).float()
        x, y = data(60)
        other = x.clone()
        other[30] = 0.0
        for clip in (CLIP, None):
            gradients = [CohortGradients.of(module, squared, layout) for _ in range(2)]
            sums = [
                g.sums(weights, Batch(rows, y, (20, 20, 20)), clip, groups=groups)
                for g, rows in zip(gradients, (x, other), strict=True)
            ]
            assert torch.allclose(sums[0][[0, 2]], sums[1][[0, 2]], rtol=1e-5, atol=1e-6)


def test_what_cannot_be_put_back_is_refused():
    """The place in an iterator is not to be seen from outside; that the same record gives other losses is."""
    module = Between(lambda m, h: h * (2 if next(m.counter) % 5 == 0 else 1))
    layout = Layout.of(module)
    x, y = data(20)
    with pytest.raises(ModelError, match="other numbers for the same record"):
        CohortGradients.of(module, squared, layout).sums(layout.read(module), Batch(x, y, (20,)), CLIP)


def test_a_model_that_overwrites_its_weights_is_refused():
    frozen = nn.Parameter(torch.ones(6), requires_grad=False)

    def between(m, h):
        with torch.no_grad():
            m.scale.mul_(0.5)
        return h * m.scale

    module = Between(between)
    module.scale = frozen
    layout = Layout.of(module)
    x, y = data(20)
    with pytest.raises(ModelError, match="overwrites a parameter"):
        CohortGradients.of(module, squared, layout).sums(layout.read(module), Batch(x, y, (20,)), CLIP)


def test_parameters_may_move_between_rounds():
    module = Between(lambda m, h: h)
    layout = Layout.of(module)
    x, y = data(20)
    gradients, sums = CohortGradients.of(module, squared, layout), []
    for _ in range(2):
        sums.append(gradients.sums(layout.read(module), Batch(x, y, (20,)), CLIP))
        with torch.no_grad():
            module.a.weight.add_(0.1)
    assert not torch.equal(*sums)


class Attending(nn.Module):
    """Self-attention over a short sequence, with a mask that depends on the record."""

    def __init__(self, dropout=0.0):
        super().__init__()
        self.inward, self.qkv, self.out = nn.Linear(5, 8), nn.Linear(8, 24), nn.Linear(8, 3)
        self.norm, self.drop, self.maps = nn.LayerNorm(8), nn.Dropout(dropout), None

    def forward(self, x):
        h = self.inward(torch.stack((x, x.flip(1), x * x), 1))
        q, k, v = self.qkv(self.norm(h)).view(len(x), 3, 3, 2, 4).permute(2, 0, 3, 1, 4)
        mask = (x[:, :3] > -2)[:, None, None, :]
        self.maps = (q @ k.transpose(-1, -2)).detach()  # kept for a picture
        h = h + F.scaled_dot_product_attention(q, k, v, mask).transpose(1, 2).flatten(2)
        return self.drop(self.out(h.mean(1)))


class Remembering(nn.Module):
    """Recurrent, sequence first, with a mask that is made once and kept."""

    def __init__(self):
        super().__init__()
        self.cell, self.head, self.mask = nn.GRU(1, 4), nn.Linear(4, 3), None

    def forward(self, x):
        if self.mask is None:
            self.mask = torch.arange(x.shape[1], device=x.device).add(1).float()
        start = x.new_zeros(1, len(x), 4)
        steps, _ = self.cell((x / self.mask).t().unsqueeze(2), start)
        return self.head(steps[-1])


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv2d(1, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.Linear(4, 3)

    def forward(self, x):
        h = x.reshape(-1, 1, 1, 5)
        return self.head((F.silu(self.norm(self.conv(h))) + h).mean((2, 3)))


class Frozen(nn.Module):
    """Its own loop over frozen layers, and a branch on what it is made of."""

    def __init__(self):
        super().__init__()
        self.frozen = nn.ModuleList(nn.Linear(5, 5).requires_grad_(False) for _ in range(3))
        self.head, self.wide = nn.Linear(5, 3), True

    def forward(self, x):
        for layer in self.frozen:
            x = F.relu(layer(x)) + x
        return self.head(x) if self.wide else x


class Dividing(nn.Module):
    """Asks for a number of its data, which a record alone may decide."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(5, 3)

    def forward(self, x):
        return self.linear(x) / max(1.0, float(x.abs().max()))


HONEST = {
    "attention": (Attending, "book-keeping"),
    "recurrent": (Remembering, "book-keeping"),
    "residual": (Residual, "book-keeping"),
    "frozen": (Frozen, "book-keeping"),
    "asking": (Dividing, "vmap"),
}


def checking(p, y):
    """A loss that looks at its targets first, which no vmap allows."""
    if bool((y < 0).any()):
        raise ValueError("targets are positive")
    return squared(p, y)


def one_by_one(module, weights, x, y, sizes, loss):
    """Plain autograd in float64, a record at a time."""
    model, rows = copy.deepcopy(module).double(), []
    parameters = [p for p in model.parameters() if p.requires_grad]
    nn.utils.vector_to_parameters(weights.double(), parameters)
    for i in range(len(x)):
        grads = torch.autograd.grad(loss(model(x[i : i + 1].double()), y[i : i + 1].double()).sum(), parameters)
        row = torch.cat([g.reshape(-1) for g in grads])
        rows.append(row * min(1.0, CLIP / float(row.norm())))
    return torch.stack([part.sum(0) for part in torch.stack(rows).split(sizes)])


@pytest.mark.parametrize("loss", [squared, checking])
@pytest.mark.parametrize("name", HONEST)
def test_honest_models_train_as_ever(name, loss):
    torch.manual_seed(2)
    make, path = HONEST[name]
    module = make()
    layout = Layout.of(module)
    weights, (x, y), sizes = layout.read(module).float(), data(60), (20, 0, 25, 15)
    gradients = CohortGradients.of(module, loss, layout)
    expected = one_by_one(module, weights, x, y, sizes, loss)
    for _ in range(2):
        got = gradients.sums(weights, Batch(x, y, sizes), CLIP).double()
        assert float((got - expected).norm() / expected.norm()) <= 5e-5
    assert gradients.path == path


def test_it_is_told_how_code_is_run_and_what_is_forgotten():
    x, y = data(10)
    whole = nn.Sequential(nn.Linear(5, 3), nn.Tanh())
    for module, loss, words in (
        (whole, squared, "the loss is given one record at a time"),
        (Residual(), squared, "own code is given one record at a time"),
        (Attending(), squared, "what it keeps is forgotten after every call (Attending)"),
    ):
        layout = Layout.of(module)
        gradients = CohortGradients.of(module, loss, layout)
        gradients.sums(layout.read(module), Batch(x, y, (10,)), CLIP)
        assert words in gradients.reason and gradients.path == "book-keeping"


def test_dropout_depends_on_the_client_alone():
    torch.manual_seed(0)
    module = Attending(dropout=0.5)
    layout = Layout.of(module)
    weights, (x, y) = layout.read(module), data(30)
    gradients = CohortGradients.of(module, squared, layout)
    all_of_them = gradients.sums(weights, Batch(x, y, (10, 12, 8)), CLIP, seeds=(1, 2, 3))
    alone = gradients.sums(weights, Batch(x[10:22], y[10:22], (12,)), CLIP, seeds=(2,))
    other = gradients.sums(weights, Batch(x[10:22], y[10:22], (12,)), CLIP, seeds=(4,))
    assert torch.allclose(all_of_them[1], alone[0], atol=1e-6) and not torch.allclose(alone, other, atol=1e-3)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", ["more-than-8", "running-mean", "buffer", "attention", "residual"])
def test_on_a_gpu(name):
    """Recorded steps, too: the same batch often enough."""
    torch.manual_seed(1)
    module = MODULES[name]() if name in MODULES else HONEST[name][0]()
    layout = Layout.of(module)
    weights = layout.read(module).float()
    sums = []
    for record in (True, False):
        held = batch(60, record)
        on = Batch(held.x.cuda(), held.y.cuda(), held.sizes)
        gradients = CohortGradients.of(module, squared, layout)
        own = weights.cuda().expand(3, -1).contiguous()
        sums.append(torch.stack([gradients.sums(own, on, CLIP) for _ in range(6)]).cpu())
    assert all(float((a - b).norm() / CLIP) <= 1 + SLACK for a, b in zip(*sums, strict=True))
    assert torch.allclose(sums[0], sums[0][:1], atol=1e-5)
