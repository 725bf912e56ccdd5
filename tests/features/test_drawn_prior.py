"""A network that no record has trained: public constants, applied to one record at a time."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from sordino.core.errors import DataError
from sordino.features import drawn_prior as module
from sordino.features.drawn_prior import GRIDS, NORM, drawn_prior, maps, network, scaled, stored, whitening

CPU = torch.device("cpu")
NUMBERS = 64 * 16 + 128 * 16 + 256 * 4


@pytest.fixture(scope="module")
def images() -> torch.Tensor:
    noise = torch.rand(5, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    return (F.interpolate(noise, size=(32, 32), mode="bilinear") * 255).to(torch.uint8)


def test_one_row_of_one_norm_a_picture(images):
    rows = drawn_prior(images)
    assert rows.shape == (5, NUMBERS) and rows.dtype == torch.float32 and not rows.requires_grad
    torch.testing.assert_close(rows.norm(dim=1), torch.full((5,), NORM))
    assert F.normalize(rows).mm(F.normalize(rows).T).fill_diagonal_(0).max() < 0.95  # and the pictures differ


def test_the_parts_of_a_row_weigh_the_same(images):
    parts = drawn_prior(images).split([64 * 16, 128 * 16, 256 * 4], 1)
    for part in parts:
        torch.testing.assert_close(part.norm(dim=1), torch.full((5,), NORM / len(GRIDS) ** 0.5))


def test_bytes_and_floats_are_the_same_picture(images):
    torch.testing.assert_close(drawn_prior(images.float() / 255), drawn_prior(images), rtol=1e-3, atol=1e-3)


def test_coloured_pictures_have_no_left_and_right_and_grey_ones_do(images):
    torch.testing.assert_close(drawn_prior(images.flip(3)), drawn_prior(images), rtol=1e-3, atol=1e-3)
    grey = images[:, 0]
    assert (drawn_prior(grey.flip(2)) - drawn_prior(grey)).norm(dim=1).min() > 1
    assert torch.equal(drawn_prior(grey), drawn_prior(grey.unsqueeze(1)))


def test_a_picture_touches_its_own_row_and_no_other(images):
    other = images.clone()
    other[3] = 255 - images[3]
    moved = (drawn_prior(other) - drawn_prior(images)).abs().amax(1)
    assert moved[3] > 0.1
    moved[3] = 0
    assert moved.max() < 1e-3


def test_chunks_change_nothing_and_bits_repeat(images, monkeypatch):
    before, rows = images.clone(), drawn_prior(images)
    assert torch.equal(drawn_prior(images), rows) and torch.equal(images, before)
    monkeypatch.setattr(module, "CHUNK", 3)
    torch.testing.assert_close(drawn_prior(images), rows, rtol=1e-3, atol=1e-3)
    assert drawn_prior(images[:0]).shape == (0, NUMBERS)


def test_the_network_is_the_file_of_weights():
    held = stored()
    for name, value in network(CPU).state_dict().items():
        assert torch.equal(value, held[f"backbone.{name}"].float())
    assert sum(value.numel() * value.element_size() for value in held.values()) < 12e6


@pytest.mark.parametrize("colour", [False, True])
def test_the_constants_are_those_of_pictures_and_not_of_noise(colour, images):
    """Whitened maps of pictures have about unit variance a channel; without the constants they do not."""
    x = images if colour else images[:, :1]
    for part, (mean, whiten) in zip(maps(network(CPU), scaled(x)), whitening(colour, CPU), strict=True):
        channels = part.shape[1]
        assert mean.shape == (channels,) and whiten.shape == (channels, channels)
        white = torch.einsum("ij,njhw->nihw", whiten, part - mean[:, None, None])
        assert 0.05 < white.square().mean() < 20


@pytest.mark.parametrize("shape", [(2, 3, 15, 32), (2, 3, 32, 65), (2, 4, 32, 32), (2, 32), (2, 3, 3, 32, 32)])
def test_other_pictures_are_refused(shape):
    with pytest.raises(DataError, match="the drawn prior needs pictures"):
        drawn_prior(torch.zeros(shape, dtype=torch.uint8))


@pytest.mark.parametrize("side", [16, 28, 33, 64])
def test_sides_of_all_sizes(side):
    x = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (2, side, side), np.uint8))
    assert drawn_prior(x).shape == (2, NUMBERS)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_cuda_agrees_with_the_processor(images):
    with torch.backends.cudnn.flags(enabled=True, deterministic=True, allow_tf32=False):
        torch.testing.assert_close(drawn_prior(images.cuda()).cpu(), drawn_prior(images), rtol=1e-2, atol=1e-2)
