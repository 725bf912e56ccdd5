"""Groups of records clipped as one: a user's records, the views of one record."""

from functools import partial

import pytest
import torch
from reference import CLOSE, case, loss, naive, naive_groups, relative, small
from test_layers import MODELS as LAYERS
from test_models import MODELS as WHOLE
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

from sordino.core.errors import DataError, SpecError
from sordino.core.types import Batch
from sordino.gradients import CohortGradients, cost, groups, persample
from sordino.gradients.bookkeeping import BookKeeping
from sordino.gradients.clone import plan
from sordino.gradients.code import Code
from sordino.gradients.padded import Padded
from sordino.gradients.split import Split

SIZES = (4, 0, 2, 2)
RAGGED = (1, 0, 3, 2, 0, 1, 1)
VIEWS = (2, 2, 2, 2)
PATHS = ["book-keeping", "vmap"]


def middle(rows):
    """A clip that cuts about half of the groups."""
    norms = rows.norm(dim=1)
    return norms[norms > 0].median().item()


def grid(*choices):
    return pytest.mark.parametrize(("stacked", "lengths"), choices, ids=lambda v: str(v))


@pytest.mark.filterwarnings("ignore:Using padding='same'")
@grid((False, VIEWS), (True, RAGGED))
@pytest.mark.parametrize("name", LAYERS)
def test_every_layer_is_the_naive_loop(name, stacked, lengths):
    module, x = LAYERS[name]()
    layout, weights, batch = case(module, x, SIZES, stacked)
    gradients = CohortGradients.of(module, loss, layout, "book-keeping")
    clip = middle(naive_groups(module, weights, batch, None, lengths)[1])
    for bound in (clip, None):
        expected, _ = naive_groups(module, weights, batch, bound, lengths)
        near = 1e-5 if bound is None else CLOSE
        assert relative(gradients.sums(weights, batch, bound, groups=lengths), expected) <= near


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@grid((True, (3, 1, 1, 2)), (False, (1, 1, 1, 1, 2, 1)))
@pytest.mark.parametrize("name", ["attention", "residual", "twice", "twice-words", "tied", "own", "direct"])
def test_whole_models_on_either_path(name, stacked, lengths):
    make, x, path = WHOLE[name]
    module = make()
    layout, weights, batch = case(module, x, (4, 0, 1, 2) if stacked else (2, 2, 3), stacked)
    clip = middle(naive_groups(module, weights, batch, None, lengths)[1])
    for asked in {"auto", "vmap"}:
        gradients = CohortGradients.of(module, loss, layout, asked)
        for bound in (clip, None):
            expected, _ = naive_groups(module, weights, batch, bound, lengths)
            assert relative(gradients.sums(weights, batch, bound, groups=lengths), expected) <= 1e-5
        assert gradients.path == (path if asked == "auto" else "vmap")


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("wrong", ["records", "sums"])
def test_the_comparison_sees_what_is_clipped_wrongly(wrong, path):
    """Records clipped instead of groups, or a group's sum instead of its mean, are far off."""
    module = small()
    layout, weights, batch = case(module, torch.randn(9, 2, 5, 5), (5, 4), True)
    lengths = (3, 2, 1, 3)
    expected, rows = naive_groups(module, weights, batch, None, lengths)
    clip = middle(rows)
    expected, _ = naive_groups(module, weights, batch, clip, lengths)
    gradients = CohortGradients.of(module, loss, layout, path)
    assert relative(gradients.sums(weights, batch, clip, groups=lengths), expected) <= CLOSE
    if wrong == "records":
        other = naive(module, weights, batch, clip)
    else:
        scaled = rows * torch.tensor(lengths)[:, None]
        scaled *= (clip / scaled.norm(dim=1)).clamp(max=1)[:, None]
        other = torch.stack([scaled[:2].sum(0), scaled[2:].sum(0)])
    assert relative(other.float(), expected) > 0.02


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("clip", [1e-6, 0.02, 1e4])
def test_no_clipped_group_is_longer_than_the_clip(path, clip):
    """One group a client, so that a row is one clipped group; some groups almost cancel."""
    module = small()
    lengths = tuple(1 + k % 7 for k in range(60))
    x = torch.randn(sum(lengths), 2, 5, 5) * 3
    layout, weights, _ = case(module, x, lengths, False)
    sign = lambda p, y: p.sum(1) * y  # noqa: E731
    y = torch.where(torch.arange(len(x)) % 2 == 0, 1.0, -1.0)
    x = x.view(-1, 2, 2, 5, 5)[:, :1].expand(-1, 2, -1, -1, -1).reshape(x.shape)  # pairs alike, signs apart
    gradients = CohortGradients.of(module, sign, layout, path)
    norms = gradients.sums(weights, Batch(x, y, lengths), clip, groups=lengths).double().norm(dim=1)
    assert norms.max().item() <= clip
    if clip < 1e-3:
        assert norms[0].item() >= clip * (1 - 1e-5)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e30])
@grid((True, (2, 2, 2, 2)), (True, (1, 3, 2, 2)), (False, (2, 2, 2, 2)))
def test_a_broken_record_takes_its_group_with_it_and_no_other(path, bad, stacked, lengths, monkeypatch):
    monkeypatch.setattr(cost, "PATCHES", 0)  # shared weights by PyTorch's kernels
    module = nn.Sequential(nn.Conv2d(2, 30, 2), nn.ReLU(), nn.Conv2d(30, 64, 4), nn.Flatten(), nn.Linear(64, 4))
    square = lambda p, y: p.square().sum(1)  # noqa: E731
    layout, weights, batch = case(module, torch.randn(8, 2, 5, 5), (4, 4), stacked)
    gradients = CohortGradients.of(module, square, layout, path)
    x = batch.x.clone()
    x[3] = bad  # in the second group
    got = gradients.sums(weights, Batch(x, batch.y, (4, 4)), 1.0, groups=lengths)
    keep = torch.tensor([i for i in range(8) if not lengths[0] <= i < 4])
    rest = Batch(x[keep], batch.y[keep], (lengths[0], 4))
    expected = gradients.sums(weights, rest, 1.0, groups=(lengths[0], 2, 2))
    assert torch.isfinite(got).all() and relative(got, expected.double()) <= 1e-6


@pytest.mark.parametrize("stacked", [False, True], ids=["shared", "own"])
@pytest.mark.parametrize("path", PATHS)
def test_groups_of_one_are_records(path, stacked):
    module = small()
    layout, weights, batch = case(module, torch.randn(7, 2, 5, 5), (4, 0, 3), stacked)
    gradients = CohortGradients.of(module, loss, layout, path)
    for clip in (0.5, None):
        got = gradients.sums(weights, batch, clip, groups=(1, 1, 0, 1, 1, 1, 1, 1))
        assert relative(got, gradients.sums(weights, batch, clip).double()) <= 1e-6


@pytest.mark.parametrize("limit", [1000, 4])  # records at a time: below 5 some groups are too wide
@pytest.mark.parametrize("path", PATHS)
def test_row_k_depends_on_client_k_alone(path, limit, monkeypatch):
    """Bit for bit: the others' records, weights and lengths of groups leave no trace, not even in dropout."""
    monkeypatch.setattr(cost, "records", lambda *_: limit)
    module = nn.Sequential(small(), nn.Dropout(0.5))
    layout, weights, batch = case(module, torch.randn(30, 2, 5, 5), (10, 9, 11), True)
    gradients = CohortGradients.of(module, loss, layout, path)
    clean = gradients.sums(weights, batch, 0.5, groups=(5, 5, 3, 1, 5, 11), seeds=(1, 2, 3))
    x, weights = batch.x.clone(), weights.clone()
    x[:10], x[19:], weights[0] = float("nan"), -x[19:], 5.0
    got = gradients.sums(weights, Batch(x, batch.y, (10, 9, 11)), 0.5, groups=(10, 3, 1, 5, 1, 2, 8), seeds=(9, 2, 8))
    assert torch.equal(got[1], clean[1]) and torch.equal(got[0], torch.zeros_like(got[0]))
    other = gradients.sums(weights, batch, 0.5, groups=(5, 5, 3, 1, 5, 11), seeds=(1, 5, 3))
    assert not torch.equal(other[1], clean[1])
    with pytest.raises(SpecError, match="seed"):
        gradients.sums(weights, batch, 0.5, groups=(10, 9, 11))


@pytest.mark.parametrize("path", PATHS)
def test_dropout_differs_from_view_to_view_and_width_to_width(path):
    """The bias gradient of a sum is 2 where a unit was kept: the mean over a group counts its views."""
    module = nn.Sequential(nn.Linear(3, 500), nn.Dropout(0.5))
    lengths = (1, 2, 2, 4)
    layout, weights, batch = case(module, torch.randn(9, 3), lengths, False)
    total = lambda p, y: p.sum(1)  # noqa: E731
    gradients = CohortGradients.of(module, total, layout, path)
    rows = gradients.sums(weights, batch, 1e9, seeds=(7, 7, 8, 7), groups=lengths)[:, 1500:]
    for row, n in zip(rows, lengths, strict=True):
        counts = torch.bincount((row * n / 2).round().long(), minlength=n + 1) / 500
        law = torch.distributions.Binomial(n, torch.tensor(0.5)).log_prob(torch.arange(n + 1.0)).exp()
        assert (counts - law).abs().max() < 0.1  # one mask for all views would put half on 0
    assert (rows[0] > 0).eq(rows[1] > 0).float().mean() < 0.7  # not the mask of another width: then 1/2 at most


@pytest.mark.parametrize("stacked", [False, True], ids=["shared", "own"])
def test_chunks_and_wide_groups_do_not_show(stacked, monkeypatch):
    module = small()
    lengths = (2, 2, 7, 1, 5, 3, 2, 18)
    layout, weights, batch = case(module, torch.randn(40, 2, 5, 5), (11, 1, 0, 8, 20), stacked)
    clip = middle(naive_groups(module, weights, batch, None, lengths)[1])
    expected, _ = naive_groups(module, weights, batch, clip, lengths)
    monkeypatch.setattr(cost, "records", lambda *_: 4)
    monkeypatch.setitem(cost.CHUNK, "cpu", 100)
    monkeypatch.setattr(persample, "SAMPLES", 4)
    monkeypatch.setattr("sordino.gradients.engine.ENTRIES", 2000)
    for path in PATHS:
        got = CohortGradients.of(module, loss, layout, path).sums(weights, batch, clip, groups=lengths)
        assert relative(got, expected) <= 1e-5


def test_chunks_never_cut_a_group():
    for limit in (1, 4, 7, 100):
        stop, seen = 0, torch.zeros(4, dtype=torch.int64)
        for clients, records, sizes in Split((6, 0, 15, 3)).chunks(limit, 3):
            assert records.start == stop and all(n % 3 == 0 for n in sizes) and sum(sizes) <= max(3, limit)
            assert sum(sizes) == records.stop - records.start
            stop = records.stop
            seen[clients] += torch.tensor(sizes)
        assert seen.tolist() == [6, 0, 15, 3]


def test_parts_hold_every_group_once():
    lengths = (*range(40), 17, 17, 0, 33)
    n = sum(lengths)
    batch = Batch(torch.arange(n), torch.zeros(n), (sum(lengths[:20]), sum(lengths[20:])))
    total, widths = torch.zeros(n), []
    for part in groups.parts(lengths, batch, total):
        assert sum(part.batch.sizes) == len(part.share) and len(part.share) % part.width == 0
        assert torch.allclose(part.share.view(-1, part.width).sum(1), torch.ones(1))
        total[part.batch.x[part.share > 0]] += 1
        widths.append(part.width)
    assert torch.equal(total, torch.ones(n)) and widths == sorted(set(widths)) and len(widths) < 32


@pytest.mark.parametrize("limit", [1000, 12, 1])
@pytest.mark.parametrize("clipped", [True, False])
def test_the_padded_step_knows_groups(limit, clipped):
    module = nn.Sequential(small(), nn.Unflatten(1, (2, 2)), nn.Flatten())
    layout, weights, batch = case(module, torch.randn(24, 2, 5, 5), (6, 0, 15, 3), True)
    clip = middle(naive_groups(module, weights, batch, None, (3,) * 8)[1]) if clipped else None
    expected, _ = naive_groups(module, weights, batch, clip, (3,) * 8)
    steps = Padded(BookKeeping(Code(module, loss), layout, plan(module, layout)), None)
    got = steps.sums(weights, batch, clip, limit, 3 if clipped else 1, torch.full((24,), 1 / 3))
    assert relative(got, expected) <= CLOSE


def test_the_traced_step_knows_groups():
    """Traced with one set of tensors, right for another, broken group included."""
    module = small()
    layout, weights, batch = case(module, torch.randn(12, 2, 5, 5), (6, 6), True)
    steps = Padded(BookKeeping(Code(module, loss), layout, plan(module, layout)), None)
    step, share, clip = partial(steps._plain, width=3), torch.full((12,), 1 / 3), torch.tensor(0.1)
    graph = make_fx(step)(weights * 0 + 1, batch.x * 0, batch.y * 0, share * 0, torch.tensor(9.0))
    x = batch.x.clone()
    x[1] = float("nan")
    got = graph(weights, x, batch.y, share, clip)
    rest = Batch(x[3:], batch.y[3:], (3, 6))
    assert relative(got, naive_groups(module, weights, rest, 0.1, (3, 3, 3))[0]) <= CLOSE


@pytest.mark.parametrize(
    ("lengths", "kind", "words"),
    [
        ((3, 5), DataError, "client 0"),
        ((4, 4, 1), DataError, "add up to 9"),
        ((4, -1, 5), SpecError, "below zero"),
        ((4, 2.0, 2), SpecError, "whole"),
    ],
    ids=str,
)
def test_groups_are_checked(lengths, kind, words):
    module = nn.Linear(3, 2)
    layout, weights, batch = case(module, torch.randn(8, 3), (4, 4), False)
    with pytest.raises(kind, match=words):
        CohortGradients.of(module, loss, layout).sums(weights, batch, 1.0, groups=lengths)
