"""Features of a small network that was trained on pictures which a program drew: a prior that costs no privacy.

Tang et al. (2023), "Differentially private image classification by learning priors from random processes",
arXiv:2306.06076: a network that learns, without labels, to recognise two views of one random picture among others has
layers that suit photographs as well. No camera took any of these pictures and no record of anybody is in them, so the
network is public in the strictest sense.

The network is WRN-16-4 (`wide_resnet`). Features are the maps behind its three widths, which are averaged on a grid and
decorrelated under a public model of pictures: the drawn ones again. Earlier layers transfer better than later ones, so
the third width has the coarser grid. Coloured pictures are averaged with their mirror images, since a mirrored
photograph shows the same thing; grey ones, which may be letters, are not. Every step acts on one record alone.

The file of weights was made by benchmarks/prior (README.md there), and docs/drawn-prior.md says what it is worth."""

from __future__ import annotations

from functools import lru_cache
from importlib.resources import files
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load
from torch import Tensor, nn

from sordino.core.errors import DataError
from sordino.models.wide_resnet import wide_resnet

__all__ = ["drawn_prior"]

WEIGHTS = "files/drawn_prior.safetensors"
GRIDS = (4, 4, 2)  # averaging windows per side of the maps of each width
FINE = 4  # windows per side in which maps are decorrelated, before some are joined
ENDS = (2, 4, 6)  # layers of the network that end a width
LEAST, MOST = 16, 64  # sides in pixels
NORM = 10.0  # norm of every record, as of the other features
CHUNK = 200  # pictures processed at a time, to bound the memory


def drawn_prior(images: Tensor) -> Tensor:
    """Return features [n, 4096] as float32, every record with norm NORM.

    Args:
        images: [n, H, W], [n, 1, H, W] or [n, 3, H, W], uint8 or float in [0, 1].
    """
    if images.ndim == 3:
        images = images.unsqueeze(1)
    sides = tuple(images.shape[2:])
    if images.ndim != 4 or images.shape[1] not in (1, 3) or min(sides) < LEAST or max(sides) > MOST:
        raise DataError(
            f"the drawn prior needs pictures [n, H, W], [n, 1, H, W] or [n, 3, H, W] of {LEAST} to {MOST} pixels a "
            f"side, not {list(images.shape)}."
        )
    colour = images.shape[1] == 3
    backbone, constants = network(images.device), whitening(colour, images.device)
    rows = []
    with torch.no_grad():
        for chunk in images.split(CHUNK):
            x = scaled(chunk)
            parts = maps(backbone, x)
            if colour:
                parts = [a + b for a, b in zip(parts, maps(backbone, x.flip(3)), strict=True)]
            rows.append(joined(parts, constants, 2 if colour else 1))
    return F.normalize(torch.cat(rows) if rows else torch.zeros(0, 4096, device=images.device)) * NORM


def scaled(pictures: Tensor) -> Tensor:
    """Return pictures as the network wants them: three channels, mean about 0 and variance about 1."""
    x = pictures.float() / (255 if pictures.dtype == torch.uint8 else 1)
    return ((x - 0.45) * 4).expand(-1, 3, -1, -1).contiguous(memory_format=torch.channels_last)


def maps(backbone: nn.Module, x: Tensor) -> list[Tensor]:
    """Return the rectified maps behind every width, averaged on the fine grid.  [n, channels, FINE, FINE] each"""
    parts = []
    for i, layer in enumerate(backbone.children()):
        x = layer(x)
        if i in ENDS:
            parts.append(F.adaptive_avg_pool2d(F.relu(F.group_norm(x, 16)), FINE))
    return parts


def joined(parts: list[Tensor], constants: list[tuple[Tensor, Tensor]], views: int) -> Tensor:
    """Return decorrelated maps on their grids as rows, in which every width has norm 1.

    Args:
        parts: for every width, maps summed over the views of a picture.
        constants: for every width, the mean of public maps and a whitening matrix.
        views: number of views in a sum.
    """
    rows = []
    for part, grid, (mean, whiten) in zip(parts, GRIDS, constants, strict=True):
        white = torch.einsum("ij,njhw->nihw", whiten, part - views * mean[:, None, None])
        rows.append(F.normalize(F.adaptive_avg_pool2d(white, grid).flatten(1)))
    return torch.cat(rows, 1)


@lru_cache
def stored() -> dict[str, Tensor]:
    """Return the content of the file of weights."""
    return load(files("sordino.features").joinpath(WEIGHTS).read_bytes())


@lru_cache
def network(device: torch.device) -> nn.Module:
    """Return the network up to the end of its last width."""
    whole: Any = wide_resnet((3, 32, 32), 1)
    backbone: Any = whole[: ENDS[-1] + 1]
    backbone.load_state_dict({k.removeprefix("backbone."): v.float() for k, v in stored().items() if "backbone" in k})
    made: nn.Module = backbone.requires_grad_(False).to(device).to(memory_format=torch.channels_last)
    return made


@lru_cache
def whitening(colour: bool, device: torch.device) -> list[tuple[Tensor, Tensor]]:
    """Return the mean and the whitening matrix of public maps of every width, of coloured or of grey pictures."""
    kind = "colour" if colour else "grey"
    held = stored()
    return [(held[f"{kind}.{i}.mean"].to(device), held[f"{kind}.{i}.whiten"].to(device)) for i in range(len(ENDS))]
