"""Grey images -> fixed features, on which a linear model is enough.

A private model pays noise for every direction it must learn, so the better the features that need no
learning, the less there is to pay: Tramer & Boneh (2021), arXiv:2011.11660, Section 3.  Three steps, each
fixed before any data is seen and each acting on one record alone, so that none of them costs privacy:

1. Deslant: undo the shear found in the record's own second moments.  LeCun et al. (1998), "Gradient-based
   learning applied to document recognition", Section III.A.
2. Scatter: |x * psi| with Morlet wavelets psi, twice, then local averages.  Bruna & Mallat (2013),
   arXiv:1203.1513, Eqs. (6) and (12); Oyallon & Mallat (2015), arXiv:1412.8659, Section 2.
3. Whiten: decorrelate under a public model of images, clipped Gaussian fields with a power-law spectrum
   (Field 1987, "Relations between the statistics of natural images and the response properties of cortical
   cells").  Mean and covariance are those of the fields, never of the data.

Differs from the papers: the second scale reuses the filters of the first on halved maps (a cascade), the
square root tames strong strokes, and the whitening is by our public fields."""

import math
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["scattering"]

ANGLES = 6  # L: wavelet orientations
GRID = 4  # windows a side that every map is averaged over
RADIUS = 3  # wavelets are cut off at this many pixels
SIGMA, FREQUENCY = 0.8, math.pi / 2  # of the wavelet's envelope and wave at scale one
FIELDS, DECAY, RIDGE = 4000, 1.5, 0.1  # public fields, their amplitude's power law, share of identity added
CHUNK = 500  # images at a time: bounds memory, changes nothing


def scattering(images: Tensor) -> Tensor:
    """[n, H, W] or [n, 1, H, W], uint8 or float in [0, 1] -> [n, (1 + ANGLES)^2 * GRID^2] float32.

    Every row has norm sqrt(dim), so its coordinates are about one."""
    x = images.reshape(-1, 1, *images.shape[-2:])
    x = x.float() / 255 if x.dtype == torch.uint8 else x.float()
    mean, factor = (c.to(x.device) for c in public_moments(x.shape[-2], x.shape[-1]))
    rows = torch.empty(len(x), len(mean), device=x.device)
    for i in range(0, len(x), CHUNK):
        centred = scatter(deslant(x[i : i + CHUNK])) - mean
        white = torch.linalg.solve_triangular(factor, centred.T, upper=False).T
        rows[i : i + CHUNK] = F.normalize(white) * math.sqrt(len(mean))
    return rows


def deslant(x: Tensor) -> Tensor:
    """Move the centre of mass to the middle and shear until the moment <dx dy> is zero.  [n, 1, H, W] -> same."""
    height, width = x.shape[-2:]
    v = torch.arange(height, device=x.device)[:, None] - (height - 1) / 2
    u = torch.arange(width, device=x.device)[None, :] - (width - 1) / 2
    p = x / x.sum((-2, -1), keepdim=True).clamp_min(1e-6)
    mu, mv = ((p * t).sum((1, 2, 3)) for t in (u, v))
    shear = ((p * u * v).sum((1, 2, 3)) - mu * mv) / ((p * v * v).sum((1, 2, 3)) - mv * mv).clamp_min(1e-3)
    one, zero = torch.ones_like(shear), torch.zeros_like(shear)
    rows = [one, shear * height / width, mu * 2 / width, zero, one, mv * 2 / height]
    grid = F.affine_grid(torch.stack(rows, 1).view(-1, 2, 3), list(x.shape), align_corners=False)
    return F.grid_sample(x, grid, align_corners=False)


def scatter(x: Tensor) -> Tensor:
    """Square roots of the scattering coefficients of order 0, 1 and 2, as unit rows.  [n, 1, H, W] -> [n, dim]."""
    first = modulus(x)  # |x * psi_1|
    halved = F.avg_pool2d(torch.cat([x, first], 1), 3, stride=2, padding=1)
    maps = [x, first, modulus(halved)]  # the last: |x * psi_2| and ||x * psi_1| * psi_2|
    rows = torch.cat([windows(m.shape[-2], m) @ m @ windows(m.shape[-1], m).T for m in maps], 1)
    return F.normalize(rows.flatten(1).clamp_min(0).sqrt())


def modulus(x: Tensor) -> Tensor:
    """|x * psi_angle| for every map and angle.  [n, maps, H, W] -> [n, maps * ANGLES, H, W]."""
    n, maps, height, width = x.shape
    y = F.conv2d(x.reshape(n * maps, 1, height, width), wavelets().to(x.device), padding=RADIUS)
    real, imaginary = y.view(n, maps, 2, ANGLES, height, width).unbind(2)
    return torch.sqrt(real.square() + imaginary.square()).view(n, maps * ANGLES, height, width)


@lru_cache
def wavelets() -> Tensor:
    """Morlet wavelets, real parts then imaginary parts.  [2 * ANGLES, 1, side, side]; Bruna & Mallat, Eq. (1)."""
    t = torch.arange(-RADIUS, RADIUS + 1.0)
    angle = torch.arange(ANGLES)[:, None, None] * math.pi / ANGLES
    u = t * angle.cos() + t[:, None] * angle.sin()
    v = t[:, None] * angle.cos() - t * angle.sin()
    bell = torch.exp(-(u.square() + (4 * v / ANGLES).square()) / (2 * SIGMA**2))
    bell = bell / bell.sum((1, 2), keepdim=True)
    wave = bell * torch.cos(FREQUENCY * u)
    wave = wave - bell * wave.sum((1, 2), keepdim=True)  # blind to a constant
    return torch.cat([wave, bell * torch.sin(FREQUENCY * u)])[:, None]


def windows(size: int, like: Tensor) -> Tensor:
    """GRID Gaussian averages along one side of a map.  [GRID, size]"""
    centre = (torch.arange(GRID, device=like.device) + 0.5) * size / GRID - 0.5
    w = torch.exp(-((torch.arange(size, device=like.device) - centre[:, None]) * 2 * GRID / size).square() / 2)
    return w / w.sum(1, keepdim=True)


@lru_cache
def public_moments(height: int, width: int) -> tuple[Tensor, Tensor]:
    """Mean and Cholesky factor of the features' covariance over public fields: no data.  [dim], [dim, dim]"""
    noise = torch.randn(FIELDS, height, width, generator=torch.Generator().manual_seed(0))
    k = torch.hypot(torch.fft.fftfreq(height)[:, None], torch.fft.fftfreq(width))
    k[0, 0] = 1
    field = torch.fft.ifft2(torch.fft.fft2(noise) / k**DECAY).real
    field = (field / field.std((1, 2), keepdim=True) - 0.5).clamp(0, 1)[:, None]
    rows = torch.cat([scatter(deslant(chunk)) for chunk in field.split(CHUNK)]).double()
    covariance = torch.cov(rows.T)
    covariance.diagonal().add_(RIDGE * covariance.diagonal().mean())
    return rows.mean(0).float(), torch.linalg.cholesky(covariance).float()
