"""rows -> Bounded: rows together with the norm bound their clip enforced.

A mechanism takes its sensitivity from here and from nowhere else.
"""

from dataclasses import dataclass

import torch

from sordino.core import check
from sordino.core.types import Rows


@dataclass(frozen=True)
class Bounded:
    value: Rows  # [clients, dim]; every row has an L2 norm of at most `bound`
    bound: float


def clip_rows(rows: Rows, bound: float) -> Bounded:
    """Scale every row down to the bound; a zero row stays, a row that is not finite becomes zero."""
    check.positive(clip=bound)
    norms = torch.linalg.vector_norm(rows, dim=1, keepdim=True, dtype=torch.float64)
    if not torch.isfinite(norms).all():
        rows = torch.where(torch.isfinite(rows).all(dim=1, keepdim=True), rows, 0.0)
        norms = torch.linalg.vector_norm(rows, dim=1, keepdim=True, dtype=torch.float64)
    # a hair below the bound, so that rounding to float32 cannot lift a norm above it
    inside = bound * (1 - 1e-6)
    factor = torch.where(norms > inside, inside / norms.clamp_min(1e-300), 1.0)
    if float(factor.min() if len(factor) else 1.0) < 1e-30:  # a float32 factor would be too coarse
        return Bounded((rows * factor).to(rows.dtype), bound)
    return Bounded(rows * factor.to(rows.dtype), bound)
