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
    finite = torch.isfinite(rows).all(dim=1, keepdim=True)
    rows = torch.where(finite, rows, 0.0)
    norms = rows.double().norm(dim=1, keepdim=True)
    # a hair below the bound, so that rounding to float32 cannot lift a norm above it
    factor = torch.where(norms > bound * (1 - 1e-6), bound * (1 - 1e-6) / norms.clamp_min(1e-300), 1.0)
    return Bounded((rows * factor).to(rows.dtype), bound)
