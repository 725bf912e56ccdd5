"""Images in bfloat16: lengths of patches, and clipped sums, without the patches."""

import pytest
import torch
import torch.nn.functional as F
from reference import relative
from torch import nn

from sordino.core.types import Batch
from sordino.core.vector import Layout
from sordino.gradients import CohortGradients, cost, half
from sordino.gradients.layers import conv, images
from sordino.gradients.layers.patches import Geometry
from sordino.gradients.memory import channels_last, is_last
from sordino.gradients.terms import folded, squares

GEOMETRIES = {
    "one point": Geometry((1, 1), (1, 1), ((0, 0), (0, 0)), (1, 1), 1, (5, 7)),
    "one point, strided": Geometry((1, 1), (2, 2), ((0, 0), (0, 0)), (1, 1), 1, (8, 8)),
    "no border": Geometry((3, 3), (1, 1), ((0, 0), (0, 0)), (1, 1), 1, (6, 5)),
    "border": Geometry((3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1), 1, (6, 7)),
    "strided": Geometry((3, 3), (2, 2), ((1, 1), (1, 1)), (1, 1), 1, (8, 9)),
    "wide border": Geometry((3, 3), (1, 1), ((4, 4), (3, 3)), (1, 1), 1, (4, 4)),
    "not square": Geometry((5, 3), (1, 2), ((2, 1), (0, 1)), (1, 1), 1, (9, 8)),
    "dilated": Geometry((3, 5), (1, 1), ((2, 2), (4, 4)), (2, 2), 1, (7, 9)),
}
CUDA = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


def pair(shape, records=6, c=20, p=40, device="cpu"):
    """An input and a gradient of the output."""
    sizes = (records, c, *shape.size), (records, p, *shape.out)
    return tuple(channels_last(torch.randn(size).to(device, torch.bfloat16)) for size in sizes)


def rows(x, g, shape):
    """Both as rows of exact numbers."""
    return shape.patches(x.double().contiguous()), shape.tokens(g.double().contiguous())


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=CUDA)])
@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize("name", GEOMETRIES)
def test_the_reach_is_that_of_the_patches(name, width, device):
    shape = GEOMETRIES[name]
    x, g = pair(shape, device=device)
    x[0] = 0  # what is added for tiny numbers
    a, b = rows(x, g, shape)
    exact = (a.norm(dim=2) * b.norm(dim=2)).sum(1).view(-1, width).sum(1)
    got = images.reach(x, g, shape, width).double()
    assert ((got >= exact * (1 - 1e-6)) & (got <= exact * (1 + 1e-5) + 1e-10)).all()
    assert relative(got, half.reach(*(t.float() for t in rows(x, g, shape))).double().view(-1, width).sum(1)) <= 1e-5


def test_the_reach_of_numbers_that_vanish_when_squared_is_no_smaller():
    shape = GEOMETRIES["border"]
    x, g = pair(shape)
    for scale in (1e-20, 1e-30, 1e-38):
        small = (x.float() * scale).to(torch.bfloat16)
        a, b = rows(small, g, shape)
        exact = (a.norm(dim=2) * b.norm(dim=2)).sum(1)
        assert (images.reach(small, g, shape).double() >= exact * (1 - 1e-6)).all()


def by_patches(x, g, shape, width=1, keep=True):
    a, b = (folded(t, width) for t in (shape.patches(x), shape.tokens(g)))
    values = half.products(b.transpose(1, 2), a)
    return values if keep else values.new_empty(0), squares(values)


@pytest.fixture
def imitated(monkeypatch):
    """A processor on which the kernels run: their products, computed by patches."""
    calls = []

    def gradients(x, g, shape, width=1, keep=True):
        calls.append("hold" if keep else "discard")
        return by_patches(x, g, shape, width, keep)

    def added(x, g, shape):
        calls.append("added")
        return by_patches(x, g, shape, len(x))[0][0]

    monkeypatch.setattr(half, "DEVICES", ("cpu", "cuda"))
    monkeypatch.setattr(cost, "PATCHES", 0)
    monkeypatch.setattr(images, "TOKENS", 1)
    monkeypatch.setattr(images, "ours", lambda *x: all(t.dtype == torch.bfloat16 and is_last(t) for t in x))
    monkeypatch.setattr(images, "grouped", lambda *_: False)
    monkeypatch.setattr(images, "gradients", gradients)
    monkeypatch.setattr(images, "added", added)
    return calls


def given(predictions, targets):
    return (predictions * targets).flatten(1).sum(1)


def made(module, loss, rounded=True):
    found = CohortGradients.of(module, loss, Layout.of(module))
    found.autocast = rounded
    return found


def cancelling(records, c, p):
    """Images of two rows: one holds points a, the other -a, with output gradients g and the next number."""
    a, g = (half.narrow(torch.randn(records, n, 1, 4)).float() for n in (c, p))
    return torch.cat((a, -a), 2), torch.cat((g, g * (1 + 2.0**-7)), 2)


@pytest.mark.parametrize("way", ["ghost", "discard", "hold"])
def test_no_record_passes_the_clip_without_patches(way, imitated, monkeypatch):
    monkeypatch.setattr(cost, "way", lambda *_: way)
    x, g = cancelling(200, 3, 16)
    module = nn.Conv2d(3, 16, 1, bias=False)
    weights = torch.zeros(48)

    def longest(clip):
        return made(module, given).sums(weights, Batch(x, g, (1,) * 200), clip).double().norm(dim=1).max().item() / clip

    assert max(longest(clip) for clip in (0.01, 0.1, 0.37, 1.0)) <= 1
    assert set(imitated) == ({"hold"} if way == "hold" else {"discard", "added"})
    if way != "hold":
        monkeypatch.setattr(conv, "longest", lambda squared, lengths, t: squared)
        assert max(longest(clip) for clip in (0.01, 0.1, 0.37, 1.0)) > 1.05


@pytest.mark.parametrize("way", ["discard", "hold"])
@pytest.mark.parametrize("groups", [None, (2,) * 12])
def test_sums_without_patches_are_near_the_exact_ones(way, groups, imitated, monkeypatch):
    monkeypatch.setattr(cost, "way", lambda *_: way)
    torch.manual_seed(1)
    layers = nn.Conv2d(3, 8, 3, 1, 1), nn.GroupNorm(2, 8), nn.ReLU(), nn.Conv2d(8, 8, 3, 2, 1, bias=False)
    module = nn.Sequential(*layers, nn.Flatten(), nn.Linear(8 * 16, 3))
    x, y = torch.randn(24, 3, 8, 8), torch.arange(24) % 3
    x[3] = torch.nan
    weights, batch = Layout.of(module).read(module), Batch(x, y, (14, 0, 10))

    def loss(predictions, targets):
        return F.cross_entropy(predictions, targets, reduction="none")

    exact, rough = (made(module, loss, r).sums(weights, batch, 0.1, groups=groups) for r in (False, True))
    assert rough.isfinite().all() and 1e-4 < relative(rough, exact.double()) < 0.05
    assert imitated


def test_without_a_gpu_there_are_no_kernels():
    assert not images.ready(torch.device("cpu"))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", GEOMETRIES)
@pytest.mark.parametrize(("c", "p", "width"), [(3, 64, 1), (20, 40, 2), (64, 64, 1), (128, 130, 3)])
def test_on_a_gpu_products_are_those_of_patches(name, c, p, width, monkeypatch):
    shape = GEOMETRIES[name]
    x, g = pair(shape, 6, c, p, "cuda")
    a, b = rows(x, g, shape)
    each = torch.bmm(b.transpose(1, 2), a)
    units = each.view(-1, width, *each.shape[1:]).sum(1)
    values, norms = images.gradients(x, g, shape, width)
    assert relative(values, units) <= 1e-5
    assert relative(norms, units.square().sum((1, 2))) <= 1e-5
    assert torch.equal(images.gradients(x, g, shape, width, False)[1], norms)
    for parts in (1, 2048):
        monkeypatch.setattr(images, "PARTS", parts)
        assert relative(images.added(x, g, shape), each.sum(0)) <= 1e-5


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(
    ("c", "groups", "size"), [(64, 32, (32, 32)), (16, 16, (5, 7)), (512, 32, (4, 4)), (8, 1, (1, 1))]
)
def test_on_a_gpu_group_norms_are_those_of_pytorch(c, groups, size):
    x, slope = (channels_last(torch.randn(6, c, *size, device="cuda").bfloat16()) for _ in range(2))
    weight, bias = torch.randn(2, c, device="cuda")
    y, mean, rstd = images.group_norm(x, weight, bias, groups, 1e-5)
    found = images.group_norm_backward(slope, x, mean, rstd, weight, groups)
    for i in range(6):
        wide, w, b = (t.double().requires_grad_() for t in (x[i : i + 1].contiguous(), weight, bias))
        expected = F.group_norm(wide, groups, w, b, 1e-5)
        assert relative(y[i].float(), expected[0].detach()) <= 4e-3
        gx, gw, gb = torch.autograd.grad(expected, (wide, w, b), slope[i : i + 1].double())
        assert relative(found[0][i].float(), gx[0]) <= 4e-3
        assert relative(found[1][i], gw) <= 1e-4
        assert relative(found[2][i], gb) <= 1e-5


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_the_kernels_are_used():
    assert images.ready(torch.device("cuda"))
