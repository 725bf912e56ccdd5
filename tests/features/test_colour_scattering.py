"""Public constants, applied to one record at a time, that keep where edges and colours are."""

import math
from collections.abc import Iterator

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from sordino.core.errors import DataError
from sordino.features import colour_scattering as module
from sordino.features.colour_scattering import (
    ANGLES,
    GRID,
    NORM,
    RADIUS,
    averages,
    colour_scattering,
    modulus,
    public_whitening,
    scatter,
)
from sordino.features.oriented_gradients import public_fields
from sordino.features.scattering import FREQUENCY, wavelets, windows
from support.features import fewer_fields

CHANNELS = 267


@pytest.fixture(scope="module", autouse=True)
def _fewer_fields() -> Iterator[None]:
    """A tenth of the public fields: quicker constants, the same laws."""
    yield from fewer_fields(module, 100)


@pytest.fixture(scope="module")
def images() -> torch.Tensor:
    noise = torch.rand(5, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    return (F.interpolate(noise, size=(32, 32), mode="bilinear") * 255).to(torch.uint8)


def test_one_block_of_maps_a_picture_of_one_norm(images):
    maps = colour_scattering(images)
    assert maps.shape == (5, CHANNELS, GRID, GRID) and maps.dtype == torch.float32
    rows = maps.flatten(1)
    torch.testing.assert_close(rows.norm(dim=1), torch.full((5,), NORM))
    assert F.normalize(rows).mm(F.normalize(rows).T).fill_diagonal_(0).max() < 0.9  # and the pictures differ


def test_bytes_and_floats_are_the_same_picture(images):
    torch.testing.assert_close(colour_scattering(images.float() / 255), colour_scattering(images), rtol=1e-4, atol=1e-4)


def test_a_picture_touches_its_own_maps_and_no_other(images):
    other = images.clone()
    other[3] = images[3].flip(2)
    moved = (colour_scattering(other) - colour_scattering(images)).abs().amax((1, 2, 3))
    assert moved[3] > 0.1
    moved[3] = 0
    assert moved.max() < 1e-4


def test_chunks_change_nothing_and_bits_repeat(images, monkeypatch):
    before, maps = images.clone(), colour_scattering(images)
    assert torch.equal(colour_scattering(images), maps) and torch.equal(images, before)
    monkeypatch.setattr(module, "CHUNK", 3)
    torch.testing.assert_close(colour_scattering(images), maps, rtol=1e-4, atol=1e-4)


def test_the_constants_see_no_picture_and_no_global_generator(images):
    colour_scattering(images)
    first = [c.clone() for c in public_whitening(32, 32)]
    public_whitening.cache_clear()
    state = torch.get_rng_state()
    assert all(torch.equal(a, b) for a, b in zip(first, public_whitening(32, 32), strict=True))
    assert torch.equal(torch.get_rng_state(), state)


def test_public_fields_come_out_centred_and_white_up_to_the_ridge():
    raw = scatter(public_fields(3, 32, 32, module.DECAY, module.CHROMA)[: module.FIELDS])
    rows = raw.permute(0, 2, 3, 1).reshape(-1, CHANNELS)
    mean, whiten = public_whitening(32, 32)
    covariance, identity = rows.T.cov(), torch.eye(CHANNELS)
    ridge = module.RIDGE * covariance.diagonal().mean() * identity
    assert ((rows - mean) @ whiten.T).mean(0).abs().max() < 1e-3
    torch.testing.assert_close(whiten @ (covariance + ridge) @ whiten.T, identity, rtol=0, atol=2e-3)


@pytest.mark.parametrize("step", range(ANGLES))
def test_a_wave_answers_to_its_own_angle(step):
    angle, t = step * math.pi / ANGLES, torch.arange(32.0)
    wave = torch.cos(FREQUENCY * (t * math.cos(angle) + t[:, None] * math.sin(angle)))
    energy = modulus(wave[None, None])[0, :, 8:-8, 8:-8].mean((1, 2))
    assert energy.argmax() == step


def test_moduli_and_averages_are_the_naive_ones():
    x = torch.rand(1, 2, 16, 16, generator=torch.Generator().manual_seed(3))
    padded = np.pad(x[0].numpy(), ((0, 0), (RADIUS,) * 2, (RADIUS,) * 2), mode="reflect")
    filters, side = wavelets(ANGLES)[:, 0].numpy(), 2 * RADIUS + 1
    found, means = modulus(x)[0].numpy(), averages(x)[0].numpy()
    for m, a, i, j in ((0, 0, 0, 0), (1, 3, 7, 15), (1, 7, 9, 2)):
        patch = padded[m, i : i + side, j : j + side]
        expected = math.hypot((patch * filters[a]).sum(), (patch * filters[ANGLES + a]).sum())
        assert found[m * ANGLES + a, i, j] == pytest.approx(expected, rel=1e-4)
    bell = np.exp(-(((np.arange(16) - (2 * np.arange(GRID)[:, None] + 0.5)) / 1.0) ** 2) / 2)
    bell /= bell.sum(1, keepdims=True)
    np.testing.assert_allclose(means, bell @ x[0].numpy() @ bell.T, rtol=1e-4)


def test_wavelets_are_blind_to_constants_and_windows_average():
    assert wavelets(ANGLES).sum((2, 3)).abs().max() < 1e-6
    torch.testing.assert_close(windows(32, torch.ones(1), GRID).sum(1), torch.ones(GRID))


def test_grey_pictures_have_no_colour_in_their_moduli():
    grey = torch.rand(1, 1, 32, 32, generator=torch.Generator().manual_seed(4)).expand(-1, 3, -1, -1)
    first = scatter(grey)[0, 3 : 3 + 3 * ANGLES]
    assert first[:ANGLES].min() > 0.01 and first[ANGLES:].abs().max() < 1e-3


@pytest.mark.parametrize("blank", [0, 255])
def test_blank_pictures_stay_finite_and_none_give_none(blank):
    assert colour_scattering(torch.full((2, 3, 32, 32), blank, dtype=torch.uint8)).isfinite().all()
    assert colour_scattering(torch.zeros(0, 3, 32, 32)).shape == (0, CHANNELS, GRID, GRID)


@pytest.mark.parametrize("shape", [(3, 32, 32), (2, 1, 32, 32), (2, 32, 32, 3), (2, 3, 15, 32)])
def test_what_is_no_colour_picture_is_refused(shape):
    with pytest.raises(DataError, match="colour scattering needs colour pictures"):
        colour_scattering(torch.zeros(shape))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_cuda_agrees_with_the_processor(images):
    torch.testing.assert_close(colour_scattering(images.cuda()).cpu(), colour_scattering(images), rtol=1e-2, atol=1e-2)
