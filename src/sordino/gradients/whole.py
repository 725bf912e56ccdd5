"""Clipped sums of the instantiated gradients [units, dim] of one client."""

from __future__ import annotations

import torch
from torch import Tensor

from sordino.core.vector import Layout
from sordino.gradients.clipping import Clip, factors_l1, layered, shrink
from sordino.gradients.scale import Scale
from sordino.gradients.split import Split
from sordino.gradients.terms import absolutes, squares, zero


def clipped(rows: Tensor, clip: Clip, layout: Layout, scale: Tensor | None = None, norm: int = 2) -> Tensor:
    """Return the sum [dim] of the rows, each clipped; scale is [dim]."""
    if norm == 1:
        factor = factors_l1(absolutes(rows), clip, rows.dtype)
        return factor @ zero(rows, factor == 0)
    parts = list(layout.layers().values()) if layered(clip) else [slice(0, layout.dim)]
    divide = None if scale is None else Scale(scale, layout, Split((len(rows),)))
    squared = [squares(rows[:, part]) for part in parts] if divide is None else [divide.flat().squares(rows)]
    each = shrink(squared, clip, divide)
    rows = zero(rows, each[0] == 0)
    return torch.cat([factor @ rows[:, part] for factor, part in zip(each, parts, strict=True)])
