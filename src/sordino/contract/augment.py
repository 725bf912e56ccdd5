"""Random views of pictures: mirrored, and shifted by up to four pixels.

Several views of one record, their mean gradient clipped as one, cost no more privacy than the record: augmentation
multiplicity, De et al. (2022), arXiv:2204.13650, section 3.3. A shift is a crop at a random place of the picture
padded by its own reflection, as there. What is drawn for a client's records depends on its own stream alone.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from sordino.core import check
from sordino.core.errors import SpecError
from sordino.core.local_training import AUGMENTATIONS
from sordino.core.rng import Ints, RowStream
from sordino.core.types import Batch

SHIFT = 4  # pixels, at most, in each direction


def augment(batch: Batch, kind: str, views: int, rng: RowStream) -> tuple[Batch, list[int] | None]:
    """Each record `views` times, changed anew each time; and the lengths of the runs of views, None if single."""
    check.one_of(AUGMENTATIONS, kind=kind)
    check.count(views=views)
    if kind == "none" and views == 1:
        return batch, None
    if kind != "none" and (batch.x.dim() != 4 or not batch.x.is_floating_point()):
        found = f"{list(batch.x.shape[1:])} of {str(batch.x.dtype).removeprefix('torch.')}"
        raise SpecError(f"augment = {kind} is for pictures [channels, height, width] of floats, not {found}; use none.")
    records = len(batch.x)
    which = torch.arange(records, device=batch.x.device).repeat_interleave(views, output_size=records * views)
    sizes = tuple(n * views for n in batch.sizes)
    if kind == "none":
        x = batch.x[which]
    else:
        flips, down, right = (torch.from_numpy(d).to(batch.x.device) for d in _draw(sizes, rng))
        if kind == "flip":
            down, right = torch.zeros_like(down), torch.zeros_like(right)
        x = _view(batch.x, which, flips, down, right)
    tags = None if batch.tags is None else batch.tags[which]
    return Batch(x, batch.y[which], sizes, tags=tags), [views] * records if views > 1 else None


def _draw(sizes: tuple[int, ...], rng: RowStream) -> tuple[Ints, Ints, Ints]:
    """For every view, client after client: mirrored or not (1 or 0), pixels down, pixels to the right."""
    uniform = rng.uniform(max(sizes, default=0))  # [clients, most views]; a row begins the same however long it is
    mine = np.arange(uniform.shape[1]) < np.asarray(sizes, dtype=np.int64)[:, None]
    wide = 2 * SHIFT + 1
    cell = (uniform[mine] * (2 * wide * wide)).astype(np.int64)  # one of all equally likely changes
    return cell // (wide * wide), cell // wide % wide - SHIFT, cell % wide - SHIFT


def _view(x: Tensor, which: Tensor, flips: Tensor, down: Tensor, right: Tensor) -> Tensor:
    """Picture which[i] moved down[i] and right[i], mirrored where flips[i] is 1: one gather [views, c, h, w]."""
    channels, height, width = x.shape[1:]
    rows = _reflect(torch.arange(height, device=x.device) - down[:, None], height)  # [views, h]
    columns = torch.arange(width, device=x.device).expand(len(which), -1)
    columns = torch.where(flips[:, None] == 1, width - 1 - columns, columns)
    columns = _reflect(columns - right[:, None], width)  # [views, w]
    every = torch.arange(channels, device=x.device).view(1, -1, 1, 1)
    return x[which.view(-1, 1, 1, 1), every, rows[:, None, :, None], columns[:, None, None, :]]


def _reflect(place: Tensor, size: int) -> Tensor:
    """Places outside of 0 .. size - 1 thrown back at the border, which is not repeated."""
    period = max(1, 2 * (size - 1))
    place = place.remainder(period)
    return torch.minimum(place, period - place) if size > 1 else torch.zeros_like(place)
