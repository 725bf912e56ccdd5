"""Fixed features of grey pictures of single objects, for a linear model.

The features are the coefficients of `scattering` (without deslanting, which is for handwriting) and the histograms of
`oriented_gradients`, concatenated. Each part is centred, whitened and normalised to a unit row under a public model of
such pictures: one object on an empty background. What all such pictures share, an empty border and a filled middle, is
then mostly subtracted, so that little of a row's norm, which determines the noise, is spent on what all records have in
common.

The model is a textured Gaussian field seen through a mask, itself a smooth field that is raised towards the middle and
cut off at zero. Both have power-law spectra (Field 1987, "Relations between the statistics of natural images and the
response properties of cortical cells"), and shapes that cover a texture are those of the dead leaves model (Lee,
Mumford & Huang 2001, "Occlusion models for natural images"). Mean and covariance are those of the fields, never those
of the data, and every step acts on one record alone, so no step costs privacy. The constants were chosen on training
records, of Fashion-MNIST here and of CIFAR-10 for the histograms, by benchmarks/feature_constants.py; the table is in
docs/results/features.md."""

from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from sordino.core.errors import DataError
from sordino.features.oriented_gradients import LEAST, histograms
from sordino.features.scattering import scatter

__all__ = ["silhouettes"]

FIELDS = 4000  # number of synthetic pictures used in place of data
TEXTURE, SHAPE = 1.3, 4.0  # decay of the amplitudes |k|^-decay of the texture and of the mask's field
CENTRE, SPREAD = 3.0, 0.75  # how much the middle is raised, and the squared radius (half a side is 1) where that ends
SOFT = 8.0  # steepness of the mask's edge
BRIGHT, CONTRAST = 0.8, 0.5  # offset and standard deviation of the texture
RIDGES = (0.1, 0.1)  # share of the identity added to the covariances of coefficients and histograms
NORM = 10.0  # norm of every row: a clip of 1 then suits a linear model
CHUNK = 200  # pictures processed at a time, to bound the memory


def silhouettes(images: Tensor) -> Tensor:
    """Return the features of grey pictures [n, 2096] as float32, every row with norm NORM.

    Args:
        images: [n, H, W] or [n, 1, H, W], uint8 or float in [0, 1].
    """
    x = images[:, None] if images.ndim == 3 else images
    if x.ndim != 4 or x.shape[1] != 1 or min(x.shape[2:]) < LEAST:
        raise DataError(
            f"silhouettes need grey pictures [n, H, W] or [n, 1, H, W] of {LEAST} pixels a side or more, not "
            f"{list(images.shape)}."
        )
    constants = [(mean.to(x.device), whiten.to(x.device)) for mean, whiten in public_whitening(*x.shape[2:])]
    rows = torch.empty(len(x), sum(len(mean) for mean, _ in constants), device=x.device)
    for i in range(0, len(x), CHUNK):
        chunk = x[i : i + CHUNK].float() / (255 if x.dtype == torch.uint8 else 1)
        white = [F.normalize((part - mean) @ w) for part, (mean, w) in zip(parts(chunk), constants, strict=True)]
        rows[i : i + CHUNK] = F.normalize(torch.cat(white, 1)) * NORM
    return rows


def parts(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return coefficients and histograms.  [n, 1, H, W] in [0, 1] -> [n, 784], [n, 1312]"""
    return scatter(x), histograms(x)


def public_objects(height: int, width: int) -> Tensor:
    """Return random objects on an empty background, used in place of pictures; no data.  [FIELDS, 1, height, width]"""
    generator = torch.Generator().manual_seed(0)
    texture, shape = (_field(decay, height, width, generator) for decay in (TEXTURE, SHAPE))
    v = (torch.arange(height)[:, None] - (height - 1) / 2) * 2 / height
    u = (torch.arange(width) - (width - 1) / 2) * 2 / width
    mask = (SOFT * (shape + CENTRE * (SPREAD - u.square() - v.square()))).clamp(0, 1)
    return (mask * (BRIGHT + CONTRAST * texture).clamp(0, 1))[:, None]


def _field(decay: float, height: int, width: int, generator: torch.Generator) -> Tensor:
    noise = torch.randn(FIELDS, height, width, generator=generator)
    k = torch.hypot(torch.fft.fftfreq(height)[:, None], torch.fft.fftfreq(width))
    k[0, 0] = k[0, 1]
    field: Tensor = torch.fft.ifft2(torch.fft.fft2(noise) / k**decay).real
    return field / field.std((1, 2), keepdim=True)


@lru_cache
def public_whitening(height: int, width: int) -> tuple[tuple[Tensor, Tensor], ...]:
    """Return, for each of the two parts, the mean of the public objects' rows and a whitening matrix."""
    chunks = [parts(chunk) for chunk in public_objects(height, width).split(CHUNK)]
    constants = []
    for rows, ridge in zip((torch.cat(part).double() for part in zip(*chunks, strict=True)), RIDGES, strict=True):
        covariance = rows.T.cov()
        covariance.diagonal().add_(ridge * covariance.diagonal().mean())
        factor = torch.linalg.cholesky(covariance)
        identity = torch.eye(len(factor), dtype=factor.dtype)
        whiten = torch.linalg.solve_triangular(factor, identity, upper=False).T
        constants.append((rows.mean(0).float(), whiten.float()))
    return tuple(constants)
