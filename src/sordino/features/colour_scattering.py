"""Fixed feature maps [channels, 8, 8] of colour pictures, for a linear model or two small convolutions.

Scattering: moduli of Morlet wavelet transforms, twice, then local averages, which preserve positions.  Bruna & Mallat
(2013), arXiv:1203.1513, Section 2; for colour pictures Oyallon & Mallat (2015), arXiv:1412.8659; under noise Tramer &
Boneh (2021), arXiv:2011.11660: everything a private model must learn is learnt under noise, so features that need no
learning are worth most.

Differences from the papers: colours are represented by one brightness and two opponent channels; scales are computed by
halving the maps and reusing the wavelets (a cascade); there is a third scale, of first order only; square roots damp
strong edges; and channels are decorrelated under a public model of pictures, Gaussian fields with a power-law spectrum
(Field 1987), as in `oriented_gradients`. Mean and covariance are those of the fields, never those of the data, and
every step acts on one record alone, so no step costs privacy. The constants were chosen on training records of CIFAR-10
by benchmarks/feature_constants.py; the table is in docs/results/features.md."""

from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from sordino.core.errors import DataError
from sordino.features.oriented_gradients import opponent, public_fields
from sordino.features.scattering import RADIUS, wavelets, windows

__all__ = ["colour_scattering"]

ANGLES = 8  # L, number of orientations of the wavelets
GRID = 8  # averaging windows per side of every map
FIELDS, DECAY, CHROMA, RIDGE = 1000, 2.0, 0.2, 0.003  # number, amplitude |k|^-DECAY, colourfulness, identity added
LEAST = 16  # smallest side in pixels: a quarter of it, the third scale, must exceed the wavelets' radius
NORM = 10.0  # norm of every record: a clip of 1 then suits a linear model
CHUNK = 200  # pictures processed at a time, to bound the memory


def colour_scattering(images: Tensor) -> Tensor:
    """Return the scattering maps of colour pictures [n, 267, GRID, GRID] as float32, every record with norm NORM.

    The number of channels is 267 = 3 ((1 + ANGLES)^2 + ANGLES) for pictures of any size.

    Args:
        images: [n, 3, H, W], uint8 or float in [0, 1].
    """
    if images.ndim != 4 or images.shape[1] != 3 or min(images.shape[2:]) < LEAST:
        raise DataError(
            f"colour scattering needs colour pictures [n, 3, H, W] of {LEAST} pixels a side or more, not "
            f"{list(images.shape)}."
        )
    mean, whiten = (constant.to(images.device) for constant in public_whitening(*images.shape[2:]))
    out = torch.empty(len(images), len(mean), GRID, GRID, device=images.device)
    for i in range(0, len(images), CHUNK):
        chunk = images[i : i + CHUNK].float() / (255 if images.dtype == torch.uint8 else 1)
        maps = torch.einsum("ij,njhw->nihw", whiten, scatter(chunk) - mean[:, None, None])
        out[i : i + CHUNK] = F.normalize(maps.flatten(1)).view_as(maps) * NORM
    return out


def scatter(x: Tensor) -> Tensor:
    """Return local averages of colours and square roots of those of moduli.  [n, 3, H, W] -> [n, 267, GRID, GRID]"""
    x = opponent(x)
    first = modulus(x)  # |x * psi_1|
    halved = F.avg_pool2d(torch.cat([x, first], 1), 2)
    quarter = F.avg_pool2d(halved[:, :3], 2)
    moduli = [first, modulus(halved), modulus(quarter)]  # |x * psi_2|, ||x * psi_1| * psi_2|; |x * psi_3|
    return torch.cat([averages(x), *(averages(m).clamp_min(0).sqrt() for m in moduli)], 1)


def modulus(x: Tensor) -> Tensor:
    """Return |x * psi| for every map and angle, with reflected edges.  [n, maps, H, W] -> [n, maps * ANGLES, H, W]"""
    n, maps, height, width = x.shape
    padded = F.pad(x, (RADIUS,) * 4, mode="reflect").reshape(n * maps, 1, height + 2 * RADIUS, width + 2 * RADIUS)
    y = F.conv2d(padded, wavelets(ANGLES).to(x.device))
    real, imaginary = y.view(n * maps, 2, ANGLES, height, width).unbind(1)
    return real.square().addcmul_(imaginary, imaginary).sqrt_().view(n, maps * ANGLES, height, width)


def averages(x: Tensor) -> Tensor:
    """Return averages under Gaussian windows.  [n, c, H, W] -> [n, c, GRID, GRID]"""
    return windows(x.shape[2], x, GRID) @ x @ windows(x.shape[3], x, GRID).T


@lru_cache
def public_whitening(height: int, width: int) -> tuple[Tensor, Tensor]:
    """Return the mean of the public fields' channels and a whitening matrix.  [channels], [channels, channels]"""
    fields = public_fields(3, height, width, DECAY, CHROMA)[:FIELDS]
    maps = torch.cat([scatter(chunk) for chunk in fields.split(CHUNK)])
    rows = maps.permute(0, 2, 3, 1).reshape(-1, maps.shape[1]).double()
    covariance = rows.T.cov()
    covariance.diagonal().add_(RIDGE * covariance.diagonal().mean())
    factor = torch.linalg.cholesky(covariance)
    identity = torch.eye(len(factor), dtype=factor.dtype)
    return rows.mean(0).float(), torch.linalg.solve_triangular(factor, identity, upper=False).float()
