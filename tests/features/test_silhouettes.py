"""Public constants, applied to one record at a time, that take out what pictures of single objects share."""

from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F

from sordino.core.errors import DataError
from sordino.features import silhouettes as module
from sordino.features.oriented_gradients import histograms
from sordino.features.scattering import scatter
from sordino.features.silhouettes import NORM, parts, public_objects, public_whitening, silhouettes
from support.features import fewer_fields

DIM = 2096


@pytest.fixture(scope="module", autouse=True)
def _fewer_fields() -> Iterator[None]:
    """A tenth of the public objects: quicker constants, the same laws."""
    yield from fewer_fields(module, 400)


@pytest.fixture(scope="module")
def images() -> torch.Tensor:
    noise = torch.rand(6, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    blots = F.interpolate(noise, size=(20, 20), mode="bilinear")
    return (F.pad(blots, (4, 4, 4, 4))[:, 0] * 255).to(torch.uint8)


def test_one_row_a_picture_of_one_norm_both_parts_alike(images):
    rows = silhouettes(images)
    assert rows.shape == (6, DIM) and rows.dtype == torch.float32
    torch.testing.assert_close(rows.norm(dim=1), torch.full((6,), NORM))
    torch.testing.assert_close(rows[:, :784].norm(dim=1), rows[:, 784:].norm(dim=1))
    assert F.normalize(rows).mm(F.normalize(rows).T).fill_diagonal_(0).max() < 0.9  # and the rows differ


def test_bytes_floats_and_a_channel_axis_are_the_same_picture(images):
    rows = silhouettes(images)
    torch.testing.assert_close(silhouettes(images.float() / 255), rows, rtol=1e-4, atol=1e-4)
    assert torch.equal(silhouettes(images[:, None]), rows)


def test_a_picture_touches_its_own_row_and_no_other(images):
    other = images.clone()
    other[3] = images[3].T
    moved = (silhouettes(other) - silhouettes(images)).abs().amax(1)
    assert moved[3] > 0.1
    moved[3] = 0
    assert moved.max() < 1e-4


def test_chunks_change_nothing_and_bits_repeat(images, monkeypatch):
    before, rows = images.clone(), silhouettes(images)
    assert torch.equal(silhouettes(images), rows) and torch.equal(images, before)
    monkeypatch.setattr(module, "CHUNK", 4)
    torch.testing.assert_close(silhouettes(images), rows, rtol=1e-4, atol=1e-4)


def test_the_constants_see_no_picture_and_no_global_generator(images):
    silhouettes(images)
    first = [c.clone() for pair in public_whitening(28, 28) for c in pair]
    public_whitening.cache_clear()
    state = torch.get_rng_state()
    again = [c for pair in public_whitening(28, 28) for c in pair]
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert torch.equal(torch.get_rng_state(), state)


def test_public_objects_come_out_centred_and_white_up_to_the_ridge():
    raw = parts(public_objects(28, 28))
    for rows, (mean, whiten), ridge in zip(raw, public_whitening(28, 28), module.RIDGES, strict=True):
        covariance = rows.T.cov()
        identity = torch.eye(len(mean))
        added = ridge * covariance.diagonal().mean() * identity
        assert ((rows - mean) @ whiten).mean(0).abs().max() < 1e-3
        torch.testing.assert_close(whiten.T @ (covariance + added) @ whiten, identity, rtol=0, atol=1e-3)


def test_public_objects_fill_the_middle_and_leave_the_edge_empty():
    x = public_objects(28, 28)[:, 0]
    assert x.min() >= 0 and x.max() <= 1
    middle, edges = x[:, 12:16, 12:16].mean(), (x[:, [0, -1]].mean(), x[:, :, [0, -1]].mean())
    assert middle > 0.5 and max(edges) < middle / 5


def test_what_objects_share_is_taken_out():
    """Fresh objects: of the rows before centring the mean is much, of the features it is much less."""
    fresh = module._field(module.SHAPE, 28, 28, torch.Generator().manual_seed(5))[:300]
    t = (torch.arange(28) - 13.5) / 14
    x = 0.7 * (fresh + 3 * (0.5 - t.square() - t[:, None].square()) > 0).float()
    share = lambda rows: rows.mean(0).norm() / rows.norm(dim=1).mean()  # noqa: E731
    before = share(scatter(x[:, None])), share(histograms(x[:, None]))
    assert before[0] > 0.9 and before[1] > 0.6 and share(silhouettes(x)) < 0.6 * min(before)


def test_other_sizes_have_the_same_dimension_and_none_give_none():
    rows = silhouettes(torch.rand(2, 21, 16, generator=torch.Generator().manual_seed(2)))
    assert rows.shape == (2, DIM) and rows.isfinite().all()
    assert silhouettes(torch.zeros(0, 28, 28)).shape == (0, DIM)


@pytest.mark.parametrize("blank", [0.0, 1.0])
def test_blank_pictures_stay_finite(blank):
    assert silhouettes(torch.full((2, 28, 28), blank)).isfinite().all()


@pytest.mark.parametrize("shape", [(28, 28), (2, 3, 28, 28), (2, 7, 28)])
def test_what_is_no_grey_picture_is_refused(shape):
    with pytest.raises(DataError, match="silhouettes need grey pictures"):
        silhouettes(torch.zeros(shape))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_cuda_agrees_with_the_processor(images):
    torch.testing.assert_close(silhouettes(images.cuda()).cpu(), silhouettes(images), rtol=1e-2, atol=1e-2)
