"""Groups of records that are clipped together: the mean gradient of each group is clipped.

    sums[k] = sum over the groups G of client k of  clip(1/|G| sum over i in G of g_i)

A group consists of a user's records in the batch (user-level DP-SGD: McMahan et al. 2018, arXiv:1710.06963, clip the
contribution of one user) or of the augmented views of one record (augmentation multiplicity: De et al. 2022,
arXiv:2204.13650, section 3.3).

The mean is computed through the loss: a record's loss is multiplied by its share 1/|G|. Groups of the same width are
processed together, so that a group is a record with more tokens. A group whose length lies between two widths is padded
with its own first record at share zero. The width of a group, and hence its padding, depends on its own length alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sordino.core.errors import DataError, SpecError
from sordino.core.types import Batch
from sordino.gradients.padded import rounded

ODD = 0x9E3779B97F4A7C15  # step of SplitMix64: seeds this far apart do not collide


@dataclass(frozen=True)
class GroupedBatch:
    """All groups of one width, ordered by client."""

    batch: Batch
    width: int  # records per group
    share: Tensor  # [records], weight of each record in its group's mean


def check(groups: Sequence[int], sizes: tuple[int, ...]) -> None:
    """Check that the run lengths cover all records and that no run crosses the border between two clients."""
    if any(isinstance(n, bool) or not isinstance(n, int | np.integer) or n < 0 for n in groups):
        raise SpecError("groups must hold whole numbers, the length of every run of records, none below zero.")
    if sum(groups) != sum(sizes):
        raise DataError(f"groups add up to {sum(groups)} records, but the batch has {sum(sizes)}.")
    ends = {0, *accumulate(groups)}
    for k, border in enumerate(accumulate(sizes)):
        if border not in ends:
            raise DataError(f"a group holds records of client {k} and of the next; cut it where client {k} ends.")


def shares(groups: Sequence[int], like: Tensor) -> Tensor:
    """Return each record's weight in its group's mean [records]."""
    lengths = np.asarray(groups, dtype=np.int64)
    return torch.from_numpy(1 / np.repeat(lengths, lengths)).to(like.device, like.dtype)


def parts(groups: Sequence[int], batch: Batch, like: Tensor) -> Iterator[GroupedBatch]:
    """Yield the groups by width, narrowest first; empty groups add nothing and are left out."""
    lengths: NDArray[np.int64] = np.asarray(groups, dtype=np.int64)
    starts = np.cumsum(lengths) - lengths
    owners = np.searchsorted(np.cumsum(batch.sizes), starts, side="right")
    widths = np.asarray([rounded(int(n)) if n else 0 for n in lengths], dtype=np.int64)
    for width in np.unique(widths[widths > 0]).tolist():
        chosen = widths == width
        length, first = lengths[chosen, None], starts[chosen, None]
        place = np.arange(width)
        alive = place < length  # [groups, width]
        share = torch.from_numpy(np.where(alive, 1 / length, 0.0).reshape(-1)).to(like.device, like.dtype)
        sizes = tuple((np.bincount(owners[chosen], minlength=len(batch.sizes)) * width).tolist())
        if sum(sizes) == batch.x.shape[0] and alive.all():
            yield GroupedBatch(batch, width, share)
        else:
            index = torch.from_numpy((first + np.where(alive, place, 0)).reshape(-1)).to(batch.x.device)
            yield GroupedBatch(batch.pick(index, sizes), width, share)


def apart(seeds: Sequence[int] | None, steps: int) -> list[int] | None:
    """Return every client's seed advanced by `steps`, so that different widths use different random numbers."""
    return None if seeds is None else [(s + steps * ODD) % 2**63 for s in seeds]
