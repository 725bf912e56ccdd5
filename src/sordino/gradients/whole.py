"""Whole gradients [units, dim] of one client, at hand one by one: clipped and added up."""

from __future__ import annotations

import torch
from torch import Tensor

from sordino.core.vector import Layout
from sordino.gradients.clipping import Clip, layered, shrink
from sordino.gradients.scale import Scale
from sordino.gradients.split import Split
from sordino.gradients.terms import squares, zero


def clipped(rows: Tensor, clip: Clip, layout: Layout, scale: Tensor | None = None) -> Tensor:
    """Their sum [dim], each clipped; scale is [dim]."""
    parts = list(layout.layers().values()) if layered(clip) else [slice(0, layout.dim)]
    divide = None if scale is None else Scale(scale, layout, Split((len(rows),)))
    squared = [squares(rows[:, part]) for part in parts] if divide is None else [divide.whole().squares(rows)]
    each = shrink(squared, clip, divide)
    rows = zero(rows, each[0] == 0)
    return torch.cat([factor @ rows[:, part] for factor, part in zip(each, parts, strict=True)])
