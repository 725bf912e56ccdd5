"""Fixed features of grey images, for a linear model.

Everything a private model must learn is learnt under noise, so features that need no learning are worth most:
Tramer & Boneh (2021), arXiv:2011.11660.  There are three steps. Their constants are public and each acts on one
record alone, so no step costs privacy:

1. Deslant: undo the shear measured by the record's own second moments.  LeCun et al. (1998), "Gradient-based
   learning applied to document recognition", Section III.A.
2. Scatter: moduli of Morlet wavelet transforms, twice, then local averages.  Bruna & Mallat (2013),
   arXiv:1203.1513, Section 2; Oyallon & Mallat (2015), arXiv:1412.8659.
3. Whiten: decorrelate under a public model of images, clipped Gaussian fields with a power-law spectrum
   (Field 1987, "Relations between the statistics of natural images and the response properties of cortical
   cells").  Mean and covariance are those of the fields, never those of the data.

Differences from the papers: the second scale reuses the wavelets of the first on halved maps (a cascade), square
roots damp strong strokes, and the covariance is that of random fields."""

import math
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from sordino.core.errors import DataError

__all__ = ["scattering"]

ANGLES = 6  # L, number of orientations of the wavelets
GRID = 4  # averaging windows per side of every map
RADIUS = 3  # pixels from the centre at which wavelets are cut off
SIGMA, FREQUENCY = 1.0, math.pi / 2  # of a wavelet's Gaussian envelope and of its wave
FIELDS, DECAY, RIDGE = 4000, 1.5, 0.03  # number, amplitude |k|^-DECAY, share of the identity added
NORM = 10.0  # norm of every row: a clip of 1 then suits a linear model
CHUNK = 200  # images processed at a time, to bound the memory


def scattering(images: Tensor) -> Tensor:
    """Return the features of grey images [n, dim] as float32, every row with norm NORM.

    dim = (1 + ANGLES)^2 GRID^2 for images of any size.

    Args:
        images: [n, H, W] or [n, 1, H, W], uint8 or float in [0, 1].
    """
    if images.ndim != 3 and (images.ndim != 4 or images.shape[1] != 1):
        raise DataError(f"scattering needs grey images [n, H, W] or [n, 1, H, W], not {list(images.shape)}.")
    height, width = images.shape[-2:]
    x = images.reshape(-1, 1, height, width)
    mean, whiten = (constant.to(x.device) for constant in public_whitening(height, width))
    rows = torch.empty(len(x), len(mean), device=x.device)
    for i in range(0, len(x), CHUNK):
        chunk = x[i : i + CHUNK].float() / (255 if x.dtype == torch.uint8 else 1)
        rows[i : i + CHUNK] = F.normalize((scatter(deslant(chunk)) - mean) @ whiten) * NORM
    return rows


def deslant(x: Tensor) -> Tensor:
    """Centre the mass of each image and shear its rows until E[uv] = 0.  [n, 1, H, W] -> [n, 1, H, W]"""
    height, width = x.shape[-2:]
    v = torch.arange(height, device=x.device)[:, None] - (height - 1) / 2
    u = torch.arange(width, device=x.device) - (width - 1) / 2
    mass = x / x.sum((2, 3), keepdim=True).clamp_min(1e-6)
    mu, mv, uv, vv = ((mass * t).sum((1, 2, 3)) for t in (u, v, u * v, v * v))
    shear = (uv - mu * mv) / (vv - mv * mv).clamp_min(1e-3)
    ones, zeros = torch.ones_like(shear), torch.zeros_like(shear)
    affine = torch.stack([ones, shear * height / width, mu * 2 / width, zeros, ones, mv * 2 / height], 1)
    grid = F.affine_grid(affine.view(-1, 2, 3), list(x.shape), align_corners=False)
    return F.grid_sample(x, grid, align_corners=False)


def scatter(x: Tensor) -> Tensor:
    """Return square roots of the coefficients of order 0, 1 and 2 as unit rows.  [n, 1, H, W] -> [n, dim]"""
    first = modulus(x)  # |x * psi_1|
    halved = F.avg_pool2d(torch.cat([x, first], 1), 2)
    maps = [x, first, modulus(halved)]  # the last: |x * psi_2| and ||x * psi_1| * psi_2|
    rows = torch.cat([windows(m.shape[2], m) @ m @ windows(m.shape[3], m).T for m in maps], 1)
    return F.normalize(rows.flatten(1).clamp_min(0).sqrt())


def modulus(x: Tensor) -> Tensor:
    """Return |x * psi| for every map and angle.  [n, maps, H, W] -> [n, maps * ANGLES, H, W]"""
    n, maps, height, width = x.shape
    y = F.conv2d(x.reshape(-1, 1, height, width), wavelets().to(x.device), padding=RADIUS)
    real, imaginary = y.view(n * maps, 2, ANGLES, height, width).unbind(1)
    return real.square().addcmul_(imaginary, imaginary).sqrt_().view(n, -1, height, width)


@lru_cache
def wavelets(angles: int = ANGLES) -> Tensor:
    """Return Morlet wavelets, Gaussian-windowed waves with zero mean; real parts first.  [2 angles, 1, side, side]"""
    t = torch.arange(-RADIUS, RADIUS + 1)
    angle = torch.arange(angles)[:, None, None] * math.pi / angles
    u = t * angle.cos() + t[:, None] * angle.sin()
    v = t[:, None] * angle.cos() - t * angle.sin()
    bell = torch.exp(-(u.square() + (v * 4 / angles).square()) / (2 * SIGMA**2))
    bell = bell / bell.sum((1, 2), keepdim=True)
    wave = bell * torch.cos(FREQUENCY * u)
    wave = wave - bell * wave.sum((1, 2), keepdim=True)
    return torch.cat([wave, bell * torch.sin(FREQUENCY * u)])[:, None]


def windows(size: int, like: Tensor, grid: int = GRID) -> Tensor:
    """Return Gaussian averaging windows around `grid` points along one side.  [grid, size]"""
    cell = size / grid
    centre = (torch.arange(grid, device=like.device)[:, None] + 0.5) * cell - 0.5
    w = torch.exp(-((torch.arange(size, device=like.device) - centre) / (cell / 2)).square() / 2)
    return w / w.sum(1, keepdim=True)


def public_fields(height: int, width: int) -> Tensor:
    """Return random fields used in place of images; no data.  [FIELDS, 1, height, width] in [0, 1]"""
    noise = torch.randn(FIELDS, height, width, generator=torch.Generator().manual_seed(0))
    k = torch.hypot(torch.fft.fftfreq(height)[:, None], torch.fft.fftfreq(width))
    k[0, 0] = 1
    field: Tensor = torch.fft.ifft2(torch.fft.fft2(noise) / k**DECAY).real
    return (field / field.std((1, 2), keepdim=True) - 0.5).clamp(0, 1)[:, None]


@lru_cache
def public_whitening(height: int, width: int) -> tuple[Tensor, Tensor]:
    """Return the mean of the public fields' features and a whitening matrix.  [dim], [dim, dim]"""
    chunks = public_fields(height, width).split(CHUNK)
    rows = torch.cat([scatter(deslant(chunk)) for chunk in chunks]).double()
    covariance = rows.T.cov()
    covariance.diagonal().add_(RIDGE * covariance.diagonal().mean())
    factor = torch.linalg.cholesky(covariance)
    identity = torch.eye(len(factor), dtype=factor.dtype)
    return rows.mean(0).float(), torch.linalg.solve_triangular(factor, identity, upper=False).T.float()
