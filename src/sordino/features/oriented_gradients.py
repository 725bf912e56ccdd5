"""Fixed features of grey or colour pictures, for a linear model.

Histograms of oriented gradients: Dalal & Triggs (2005), "Histograms of oriented gradients for human detection",
Section 6: square roots of the pixels, gradients by differences, each voting with its magnitude for a direction and a
cell, and cells normalised within overlapping blocks of four, clipped at 0.2 ("L2-Hys"). Everything a private model must
learn is learnt under noise, so features that need no learning are worth most: Tramer & Boneh (2021), arXiv:2011.11660.
Every constant is public and every step acts on one record alone, so no step costs privacy.

Differences from the paper: directions cover the full circle; there are few cells (GRID per side, for pictures of any
size) and two scales; colours are represented by one brightness and two opponent channels, each with its own histograms;
local averages of the channels are added to the histograms; and the features are whitened under a public model of
pictures as in `scattering`: mean and covariance are those of Gaussian fields with a power-law spectrum (Field 1987),
never those of the data. The constants were chosen on training records of CIFAR-10 by benchmarks/feature_constants.py;
the table is in docs/results/features.md."""

import math
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from sordino.core.errors import DataError

__all__ = ["oriented_gradients"]

BINS = (18, 9, 9)  # directions for brightness and for the two opponent colours
GRID = 4  # cells per side
SCALES = (1, 2)  # pixels per side that are averaged before gradients are taken
HYS = 1.0  # clip of a normalised block; 1 clips nothing
COLOUR = 1.0  # weight of the local averages
LEAST = 8  # smallest side in pixels: a cell has at least one pixel at the coarser scale
FIELDS, DECAY, CHROMA, RIDGE = 4000, 2.0, 0.1, 0.3  # number, amplitude |k|^-DECAY, colourfulness, identity added
NORM = 10.0  # norm of every row: a clip of 1 then suits a linear model
CHUNK = 500  # pictures processed at a time, to bound the memory

OPPONENT = ((1.0, 1.0, 1.0), (1.0, -1.0, 0.0), (0.5, 0.5, -1.0))  # brightness, red - green, yellow - blue


def oriented_gradients(images: Tensor) -> Tensor:
    """Return the features of pictures [n, dim] as float32, every row with norm NORM.

    dim is 1,312 for grey and 2,640 for colour pictures of any size.

    Args:
        images: [n, H, W], [n, 1, H, W] or [n, 3, H, W], uint8 or float in [0, 1].
    """
    x = images[:, None] if images.ndim == 3 else images
    if x.ndim != 4 or x.shape[1] not in (1, 3) or min(x.shape[2:]) < LEAST:
        raise DataError(
            f"oriented gradients need pictures [n, H, W], [n, 1, H, W] or [n, 3, H, W] of {LEAST} pixels a side or "
            f"more, not {list(images.shape)}."
        )
    mean, whiten = (constant.to(x.device) for constant in public_whitening(*x.shape[1:]))
    rows = torch.empty(len(x), len(mean), device=x.device)
    for i in range(0, len(x), CHUNK):
        chunk = x[i : i + CHUNK].float() / (255 if x.dtype == torch.uint8 else 1)
        rows[i : i + CHUNK] = F.normalize((histograms(chunk) - mean) @ whiten) * NORM
    return rows


def histograms(x: Tensor) -> Tensor:
    """Return the blocks of every channel and scale, then local averages.  [n, channels, H, W] in [0, 1] -> [n, dim]"""
    x = opponent(x.sqrt())
    parts = []
    for scale in SCALES:
        across, down = gradients(F.avg_pool2d(x, scale))
        for channel in range(x.shape[1]):
            parts.append(blocks(cells(votes(across[:, channel], down[:, channel], BINS[channel]))))
    area = math.prod(x.shape[2:]) / GRID**2
    return torch.cat([*parts, COLOUR * cells(x).flatten(1) / area], 1)


def opponent(x: Tensor) -> Tensor:
    """Return brightness and two colour differences, each by a unit vector; grey pictures are returned unchanged."""
    if x.shape[1] == 1:
        return x
    return torch.einsum("ij,njhw->nihw", F.normalize(x.new_tensor(OPPONENT)), x)


def gradients(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return differences of the neighbours on both sides, across and down, with edges repeated."""
    p = F.pad(x, (1, 1, 1, 1), mode="replicate")
    return p[:, :, 1:-1, 2:] - p[:, :, 1:-1, :-2], p[:, :, 2:, 1:-1] - p[:, :, :-2, 1:-1]


def votes(across: Tensor, down: Tensor, bins: int) -> Tensor:
    """Divide the magnitude of each gradient between the two nearest directions.  [n, H, W] -> [n, bins, H, W]"""
    turn = torch.atan2(down, across) * (bins / (2 * math.pi))
    apart = turn[:, None] - torch.arange(bins, device=turn.device).view(-1, 1, 1)
    apart = (apart + bins / 2).remainder(bins) - bins / 2  # difference on the circle
    return (1 - apart.abs()).clamp_min(0) * torch.hypot(across, down)[:, None]


def cells(x: Tensor) -> Tensor:
    """Sum over GRID x GRID cells; a pixel is divided between the nearest cells.  [n, c, H, W] -> [n, c, GRID, GRID]"""
    return windows(x.shape[2], x) @ x @ windows(x.shape[3], x).T


def windows(size: int, like: Tensor) -> Tensor:
    """Return triangular windows around GRID points along one side.  [GRID, size]"""
    centre = (torch.arange(GRID, device=like.device)[:, None] + 0.5) * size / GRID - 0.5
    return (1 - (torch.arange(size, device=like.device) - centre).abs() * GRID / size).clamp_min(0)


def blocks(h: Tensor) -> Tensor:
    """Normalise every block of 2 x 2 neighbouring cells to a unit vector, clip it, and normalise it again.

    [n, bins, GRID, GRID] -> [n, 4 bins (GRID - 1)^2]"""
    corners = [h[:, :, i : i + GRID - 1, j : j + GRID - 1] for i in (0, 1) for j in (0, 1)]
    block = torch.cat(corners, 1)
    block = (block / (block.square().sum(1, keepdim=True) + 1e-3).sqrt()).clamp_max(HYS)
    return (block / (block.square().sum(1, keepdim=True) + 1e-6).sqrt()).flatten(1)


def public_fields(channels: int, height: int, width: int, decay: float = DECAY, chroma: float = CHROMA) -> Tensor:
    """Return random fields used in place of pictures; no data.  [FIELDS, channels, height, width] in [0, 1]"""
    noise = torch.randn(FIELDS, channels, height, width, generator=torch.Generator().manual_seed(0))
    k = torch.hypot(torch.fft.fftfreq(height)[:, None], torch.fft.fftfreq(width))
    k[0, 0] = k[0, 1]
    field: Tensor = torch.fft.ifft2(torch.fft.fft2(noise) / k**decay).real
    field = field / field.std((2, 3), keepdim=True)
    if channels == 3:  # brightness varies more than colour does
        field = field * torch.tensor([1, chroma, chroma]).view(3, 1, 1)
        field = torch.einsum("ij,nihw->njhw", F.normalize(torch.tensor(OPPONENT)), field)
    return (0.5 + 0.25 * field).clamp(0, 1)


@lru_cache
def public_whitening(channels: int, height: int, width: int) -> tuple[Tensor, Tensor]:
    """Return the mean of the public fields' features and a whitening matrix.  [dim], [dim, dim]"""
    chunks = public_fields(channels, height, width, DECAY, CHROMA).split(CHUNK)
    rows = torch.cat([histograms(chunk) for chunk in chunks]).double()
    covariance = rows.T.cov()
    covariance.diagonal().add_(RIDGE * covariance.diagonal().mean())
    factor = torch.linalg.cholesky(covariance)
    identity = torch.eye(len(factor), dtype=factor.dtype)
    return rows.mean(0).float(), torch.linalg.solve_triangular(factor, identity, upper=False).T.float()
