"""Public constants, applied to one record at a time, that keep where edges are and how they run."""

import math
from collections.abc import Iterator

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from sordino.core.errors import DataError
from sordino.features import oriented_gradients as module
from sordino.features.oriented_gradients import (
    BINS,
    GRID,
    HYS,
    NORM,
    blocks,
    cells,
    histograms,
    opponent,
    oriented_gradients,
    public_fields,
    public_whitening,
    votes,
)
from support.features import fewer_fields

DIM = {1: 1312, 3: 2640}


@pytest.fixture(scope="module", autouse=True)
def _fewer_fields() -> Iterator[None]:
    """A tenth of the public fields: quicker constants, the same laws."""
    yield from fewer_fields(module, 400)


@pytest.fixture(scope="module", params=[1, 3], ids=["grey", "colour"])
def images(request) -> torch.Tensor:
    noise = torch.rand(6, request.param, 8, 8, generator=torch.Generator().manual_seed(1))
    return (F.interpolate(noise, size=(24, 24), mode="bilinear") * 255).to(torch.uint8)


def wave(angle: float, size: int = 24) -> torch.Tensor:
    """Brightness that rises along one direction; 0 is to the right, a quarter turn is down.  [1, size, size]"""
    t = torch.arange(size) - (size - 1) / 2
    return (0.5 + (t * math.cos(angle) + t[:, None] * math.sin(angle)) / (2 * size))[None]


def test_one_row_a_picture_of_one_norm(images):
    rows = oriented_gradients(images)
    assert rows.shape == (6, DIM[images.shape[1]]) and rows.dtype == torch.float32
    torch.testing.assert_close(rows.norm(dim=1), torch.full((6,), NORM))
    assert F.normalize(rows).mm(F.normalize(rows).T).fill_diagonal_(0).max() < 0.9  # and the rows differ


def test_bytes_floats_and_a_channel_axis_are_the_same_picture(images):
    rows = oriented_gradients(images)
    torch.testing.assert_close(oriented_gradients(images.float() / 255), rows, rtol=1e-4, atol=1e-4)
    if images.shape[1] == 1:
        assert torch.equal(oriented_gradients(images[:, 0]), rows)


def test_a_picture_touches_its_own_row_and_no_other(images):
    other = images.clone()
    other[3] = images[3].flip(2)
    moved = (oriented_gradients(other) - oriented_gradients(images)).abs().amax(1)
    assert moved[3] > 0.1
    moved[3] = 0
    assert moved.max() < 1e-4


def test_chunks_change_nothing_and_bits_repeat(images, monkeypatch):
    before, rows = images.clone(), oriented_gradients(images)
    assert torch.equal(oriented_gradients(images), rows) and torch.equal(images, before)
    monkeypatch.setattr(module, "CHUNK", 4)
    torch.testing.assert_close(oriented_gradients(images), rows, rtol=1e-4, atol=1e-4)


def test_the_constants_see_no_picture(images):
    shape = images.shape[1:]
    oriented_gradients(images)
    first = [c.clone() for c in public_whitening(*shape)]
    public_whitening.cache_clear()
    state = torch.get_rng_state()
    assert all(torch.equal(a, b) for a, b in zip(first, public_whitening(*shape), strict=True))
    assert torch.equal(torch.get_rng_state(), state)  # and no global generator


def test_public_fields_come_out_centred_and_white_up_to_the_ridge():
    raw = histograms(public_fields(1, 24, 24))
    mean, whiten = public_whitening(1, 24, 24)
    covariance = raw.T.cov()
    ridge = module.RIDGE * covariance.diagonal().mean() * torch.eye(DIM[1])
    assert ((raw - mean) @ whiten).mean(0).abs().max() < 1e-3
    torch.testing.assert_close(whiten.T @ (covariance + ridge) @ whiten, torch.eye(DIM[1]), rtol=0, atol=1e-3)


@pytest.mark.parametrize("step", range(BINS[0]))
def test_a_slope_votes_for_its_own_direction(step):
    across, down = module.gradients(wave(2 * math.pi * step / BINS[0])[None])
    share = votes(across[:, 0], down[:, 0], BINS[0])[0].sum((1, 2))
    assert share.argmax() == step and share[step] > 0.85 * share.sum()  # the edge of the picture votes otherwise


def test_votes_keep_the_magnitude_and_cells_keep_the_votes():
    g = torch.Generator().manual_seed(2)
    across, down = torch.randn(2, 3, 16, 16, generator=g)
    each = votes(across, down, 8)
    torch.testing.assert_close(each.sum(1), torch.hypot(across, down))
    inner = each.clone()
    inner[:, :, :2] = inner[:, :, -2:] = inner[..., :2] = inner[..., -2:] = 0  # half a cell from the edge counts less
    torch.testing.assert_close(cells(inner).sum((2, 3)), inner.sum((2, 3)))


def test_cells_and_blocks_are_the_naive_ones():
    x = torch.rand(2, 3, 12, 16, generator=torch.Generator().manual_seed(3))
    got, expected = cells(x).numpy(), np.zeros((2, 3, GRID, GRID))
    for i in range(GRID):
        for j in range(GRID):
            for r in range(12):
                for c in range(16):
                    near_r = max(0, 1 - abs(r - (3 * i + 1)) / 3)
                    near_c = max(0, 1 - abs(c - (4 * j + 1.5)) / 4)
                    expected[:, :, i, j] += near_r * near_c * x[:, :, r, c].numpy()
    np.testing.assert_allclose(got, expected, rtol=1e-4)
    out = blocks(torch.from_numpy(got)).view(2, 12, GRID - 1, GRID - 1).numpy()
    for i in range(GRID - 1):
        for j in range(GRID - 1):
            v = np.concatenate([got[0, :, i + a, j + b] for a in (0, 1) for b in (0, 1)])
            v = np.minimum(v / np.sqrt((v**2).sum() + 1e-3), HYS)
            np.testing.assert_allclose(out[0, :, i, j], v / np.sqrt((v**2).sum() + 1e-6), rtol=1e-4)


def test_grey_in_colour_has_no_colour():
    grey = torch.rand(2, 1, 8, 8, generator=torch.Generator().manual_seed(4))
    bright, red, yellow = opponent(grey.expand(-1, 3, -1, -1)).unbind(1)
    torch.testing.assert_close(bright, grey[:, 0] * 3**0.5)
    assert red.abs().max() < 1e-6 and yellow.abs().max() < 1e-6
    assert opponent(torch.tensor([1.0, 0, 0]).view(1, 3, 1, 1))[0, 1] > 0.5


def test_contrast_is_nearly_forgotten_by_the_histograms():
    x = 0.3 + 0.4 * torch.rand(3, 1, 24, 24, generator=torch.Generator().manual_seed(5))
    edges = DIM[1] - GRID**2
    a, b = (histograms(v.square())[:, :edges] for v in (x, 0.6 * x))  # squared, as the first step takes roots
    assert (a - b).norm(dim=1).max() < 0.02 * a.norm(dim=1).min()


@pytest.mark.parametrize("blank", [0, 255])
def test_blank_pictures_stay_finite(blank):
    assert oriented_gradients(torch.full((2, 3, 24, 24), blank, dtype=torch.uint8)).isfinite().all()


def test_other_sizes_have_the_same_dimension_and_none_give_none():
    rows = oriented_gradients(torch.rand(2, 21, 9, generator=torch.Generator().manual_seed(2)))
    assert rows.shape == (2, DIM[1]) and rows.isfinite().all()
    assert oriented_gradients(torch.zeros(0, 24, 24)).shape == (0, DIM[1])


@pytest.mark.parametrize("shape", [(28, 28), (2, 2, 28, 28), (2, 7, 28), (2, 28, 28, 3)])
def test_what_is_no_picture_is_refused(shape):
    with pytest.raises(DataError, match="oriented gradients need pictures"):
        oriented_gradients(torch.zeros(shape))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_cuda_agrees_with_the_processor(images):
    torch.testing.assert_close(
        oriented_gradients(images.cuda()).cpu(), oriented_gradients(images), rtol=1e-2, atol=1e-2
    )
