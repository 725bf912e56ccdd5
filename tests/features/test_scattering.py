"""Public constants, applied to one record at a time, that forget how a digit was written."""

from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F

from sordino.core.errors import DataError
from sordino.features import scattering as module
from sordino.features.scattering import (
    NORM,
    deslant,
    public_fields,
    public_whitening,
    scatter,
    scattering,
    wavelets,
    windows,
)
from support.features import fewer_fields

DIM = 784


@pytest.fixture(scope="module", autouse=True)
def _fewer_fields() -> Iterator[None]:
    """A fifth of the public fields: quicker constants, the same laws."""
    yield from fewer_fields(module, 800)


@pytest.fixture(scope="module")
def images() -> torch.Tensor:
    """Blurred blots, [6, 28, 28] in [0, 1], empty towards the edge as scans are."""
    noise = torch.rand(6, 1, 12, 12, generator=torch.Generator().manual_seed(1))
    blots = F.interpolate((noise - 0.5).clamp(0, 0.4) / 0.4, size=(16, 16), mode="bilinear")
    return F.pad(blots, (6, 6, 6, 6))[:, 0]


def test_one_row_an_image_of_norm_root_dim(images):
    rows = scattering(images)
    assert rows.shape == (6, DIM) and rows.dtype == torch.float32
    torch.testing.assert_close(rows.norm(dim=1), torch.full((6,), NORM))
    assert F.normalize(rows).mm(F.normalize(rows).T).fill_diagonal_(0).max() < 0.9  # and the rows differ


def test_bytes_floats_and_a_channel_axis_are_the_same_image(images):
    whole = (images * 255).round().to(torch.uint8)
    rows = scattering(whole)
    torch.testing.assert_close(scattering(whole.float() / 255), rows, rtol=1e-4, atol=1e-4)
    assert torch.equal(scattering(whole[:, None]), rows)


def test_the_same_images_give_the_same_bits_and_stay_untouched(images):
    before = images.clone()
    assert torch.equal(scattering(images), scattering(images))
    assert torch.equal(images, before)


def test_the_constants_are_remade_bit_for_bit_and_see_no_image(images):
    scattering(images)
    first = [c.clone() for c in public_whitening(28, 28)]
    public_whitening.cache_clear()
    assert all(torch.equal(a, b) for a, b in zip(first, public_whitening(28, 28), strict=True))


def test_chunks_change_nothing(images, monkeypatch):
    rows = scattering(images)
    monkeypatch.setattr(module, "CHUNK", 4)
    torch.testing.assert_close(scattering(images), rows, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(scattering(images[2:3])[0], rows[2], rtol=1e-4, atol=1e-4)


def test_an_image_touches_its_own_row_and_no_other(images):
    other = images.clone()
    other[3] = images[3].T
    moved = (scattering(other) - scattering(images)).abs().amax(1)
    assert moved[3] > 0.1
    moved[3] = 0
    assert moved.max() < 1e-4


def test_contrast_is_forgotten(images):
    torch.testing.assert_close(scattering(0.5 * images), scattering(images), rtol=1e-3, atol=1e-3)


def test_small_shifts_move_coefficients_far_less_than_pixels(images):
    shifted = images.roll(1, dims=2)
    pixels = F.normalize(shifted.flatten(1)) - F.normalize(images.flatten(1))
    features = scatter(shifted[:, None]) - scatter(images[:, None])  # without deslanting, which centres
    assert (features.norm(dim=1) < 0.5 * pixels.norm(dim=1)).all()
    torch.testing.assert_close(scattering(shifted), scattering(images), rtol=0, atol=1e-2)  # centred


def test_deslanting_removes_the_second_moment_and_keeps_what_is_upright(images):
    t = torch.arange(28) - 13.5
    bell = torch.exp(-(t[:, None].square() / 40 + (t - 0.5 * t[:, None]).square() / 6))[None, None]  # leaning
    straight = deslant(bell)[0, 0]
    moment = lambda p: ((p / p.sum()) * t * t[:, None]).sum().abs()  # noqa: E731
    assert moment(bell[0, 0]) > 5 and moment(straight) < 0.1
    torch.testing.assert_close(deslant(straight[None, None])[0, 0], straight, atol=1e-2, rtol=0)


def test_wavelets_are_blind_to_constants_and_windows_average():
    assert wavelets().sum((2, 3)).abs().max() < 1e-6
    torch.testing.assert_close(windows(28, torch.ones(1)).sum(1), torch.ones(module.GRID))


def test_public_fields_come_out_centred_and_white_up_to_the_ridge():
    raw = scatter(deslant(public_fields(28, 28)))
    mean, whiten = public_whitening(28, 28)
    covariance = raw.T.cov()
    ridge = module.RIDGE * covariance.diagonal().mean() * torch.eye(DIM)
    assert ((raw - mean) @ whiten).mean(0).abs().max() < 1e-3
    torch.testing.assert_close(whiten.T @ (covariance + ridge) @ whiten, torch.eye(DIM), rtol=0, atol=1e-3)
    assert torch.linalg.cond(covariance + ridge) > 1000  # there was something to whiten


@pytest.mark.parametrize("blank", [torch.zeros(2, 28, 28), torch.ones(2, 28, 28)])
def test_blank_images_stay_finite(blank):
    assert scattering(blank).isfinite().all()


def test_other_sizes_have_the_same_dimension():
    rows = scattering(torch.rand(2, 21, 16, generator=torch.Generator().manual_seed(2)))
    assert rows.shape == (2, DIM) and rows.isfinite().all()


def test_no_images_give_no_rows():
    assert scattering(torch.zeros(0, 28, 28)).shape == (0, DIM)


@pytest.mark.parametrize("shape", [(28, 28), (2, 3, 28, 28)])
def test_colours_and_lone_images_are_refused(shape):
    with pytest.raises(DataError, match="grey images"):
        scattering(torch.zeros(shape))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_cuda_agrees_with_the_processor(images):
    torch.testing.assert_close(scattering(images.cuda()).cpu(), scattering(images), rtol=1e-2, atol=1e-2)
