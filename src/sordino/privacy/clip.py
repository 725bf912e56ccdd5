"""Clipping of rows to `Bounded`: rows together with the norm bound that the clip enforced.

This is the only place from which a mechanism takes its sensitivity.
"""

import math
from dataclasses import dataclass

import torch

from sordino.core import check, clip_counts
from sordino.core.errors import SpecError
from sordino.core.types import Rows


@dataclass(frozen=True)
class Bounded:
    """Rows whose norms are at most `bound`."""

    value: Rows  # [clients, dim]; every row has norm at most `bound`
    bound: float
    norm: float = 2  # order of the norm: 1, 2 or infinity

    def require(self, norm: float, mechanism: str) -> None:
        """Raise a SpecError unless the rows were clipped in this norm.

        The norm depends on the mechanism: noise calibrated for one norm gives no guarantee in another.
        """
        if self.norm != norm:
            raise SpecError(f"{mechanism} needs rows clipped in the L{norm:g} norm; these were in L{self.norm:g}.")


def clip_rows(rows: Rows, bound: float, norm: float = 2) -> Bounded:
    """Scale every row down to the bound; a zero row stays zero, and a row that is not finite becomes zero."""
    check.positive(clip=bound)
    if norm not in (1, 2, math.inf):
        raise SpecError(f"rows are clipped in the L1, L2 or L-infinity norm, not in L{norm!r}.")
    norms = torch.linalg.vector_norm(rows, ord=norm, dim=1, keepdim=True, dtype=torch.float64)
    clip_counts.note(norms, bound)
    if not torch.isfinite(norms).all():
        rows = torch.where(torch.isfinite(rows).all(dim=1, keepdim=True), rows, 0.0)
        norms = torch.linalg.vector_norm(rows, ord=norm, dim=1, keepdim=True, dtype=torch.float64)
    # slightly below the bound, so that rounding to float32 cannot lift a norm above it
    inside = bound * (1 - 1e-6)
    factor = torch.where(norms > inside, inside / norms.clamp_min(1e-300), 1.0)
    if float(factor.min() if len(factor) else 1.0) < 1e-30:  # a float32 factor would be too coarse
        return Bounded((rows * factor).to(rows.dtype), bound, norm)
    return Bounded(rows * factor.to(rows.dtype), bound, norm)
