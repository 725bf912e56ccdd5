"""Random augmentation of images: horizontal flips and shifts by up to four pixels.

Averaging the gradients of several views of one record and clipping the mean once costs no more privacy than the record
itself: this is augmentation multiplicity, De et al. (2022), arXiv:2204.13650, section 3.3. As in that paper, a shift is
a crop at a random position of the image after reflection padding. The random numbers for a client's records depend only
on that client's stream.
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

SHIFT = 4  # largest shift in pixels, in each direction


def augment(batch: Batch, kind: str, views: int, rng: RowStream) -> tuple[Batch, list[int] | None]:
    """Return a batch with `views` random views of each record.

    Args:
        batch: Records of all clients; images [channels, height, width] of floats unless `kind` is "none".
        kind: One of `AUGMENTATIONS`.
        views: Number of views per record.
        rng: One stream per client.

    Returns:
        The augmented batch, and the number of consecutive views that belong to each record (None if there is only one
        view per record).
    """
    check.one_of(AUGMENTATIONS, kind=kind)
    check.count(views=views)
    if kind == "none" and views == 1:
        return batch, None
    if kind != "none" and (batch.x.dim() != 4 or not batch.x.is_floating_point()):
        actual = f"{list(batch.x.shape[1:])} of {str(batch.x.dtype).removeprefix('torch.')}"
        raise SpecError(
            f"augment = {kind} is for pictures [channels, height, width] of floats, not {actual}; use none."
        )
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
    """Draw for every view, client by client: flip (1 or 0), shift downwards, shift to the right (in pixels)."""
    uniform = rng.uniform(max(sizes, default=0))  # [clients, max views]; a row's prefix does not depend on its length
    mine = np.arange(uniform.shape[1]) < np.asarray(sizes, dtype=np.int64)[:, None]
    wide = 2 * SHIFT + 1
    cell = (uniform[mine] * (2 * wide * wide)).astype(np.int64)  # uniform over all combinations of flip and shift
    return cell // (wide * wide), cell // wide % wide - SHIFT, cell % wide - SHIFT


def _view(x: Tensor, which: Tensor, flips: Tensor, down: Tensor, right: Tensor) -> Tensor:
    """Return image which[i] shifted by down[i] and right[i], flipped if flips[i] is 1: one gather [views, c, h, w]."""
    channels, height, width = x.shape[1:]
    rows = _reflect(torch.arange(height, device=x.device) - down[:, None], height)  # [views, h]
    columns = torch.arange(width, device=x.device).expand(len(which), -1)
    columns = torch.where(flips[:, None] == 1, width - 1 - columns, columns)
    columns = _reflect(columns - right[:, None], width)  # [views, w]
    every = torch.arange(channels, device=x.device).view(1, -1, 1, 1)
    return x[which.view(-1, 1, 1, 1), every, rows[:, None, :, None], columns[:, None, None, :]]


def _reflect(place: Tensor, size: int) -> Tensor:
    """Reflect positions outside 0 .. size - 1 at the border, without repeating the border pixel."""
    period = max(1, 2 * (size - 1))
    place = place.remainder(period)
    return torch.minimum(place, period - place) if size > 1 else torch.zeros_like(place)
