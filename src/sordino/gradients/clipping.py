"""Clip factors from per-sample norms.  Abadi et al. (2016), arXiv:1607.00133, Algorithm 1.

    factor_i = min(1, C / |g_i|)

The formula leaves three cases open:

- A zero gradient keeps factor 1.
- A gradient whose norm is not finite gets factor 0 and is removed from the sum, so that a broken record adds nothing
  and the sensitivity of the sum stays C.
- Rounding: norms are float32, so gradients are clipped to slightly less than C, and their true norm does not exceed C.
  On a GPU neither norms nor sums use products rounded to TF32, which keeps 10 bits: over many positions that cancel,
  a sum of such products may be longer than its computed norm by several percent. The inputs of these products may
  have been computed in TF32.

A gradient so long that its factor has few digits left in float32 is removed. A bound below 1e-12 is refused, because
the squares of such short gradients vanish in float32 (for the L1 norm nothing is squared).

For the L1 norm the factor is likewise min(1, C / |g_i|_1). All its terms are added in float64: ten thousand numbers
that are each too small to change a float32 sum may together exceed any margin.

With one bound per layer (McMahan et al. 2018, arXiv:1710.06963, Algorithm 1, PerLayerClip), each layer's part of a
gradient has its own factor. If the norm of one part is not finite, the sample is removed from all layers.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from sordino.core import check, clip_counts
from sordino.core.errors import SpecError
from sordino.core.vector import Layout
from sordino.gradients.scale import Scale

Clip = float | Tensor  # one bound for the whole gradient, or a tensor [layers] with one per layer

LEAST = 1e-12  # smallest bound that is accepted
MARGIN = 2e-6  # relative to C; several times the rounding error of a float32 norm and of multiplying by its factor


def rough(backend: Any) -> bool:
    """Return whether a backend (torch.backends.cudnn or .cuda.matmul) may round the factors of products to TF32."""
    try:
        return bool(backend.allow_tf32)
    except RuntimeError:  # set through the newer `fp32_precision`, which the older switch cannot express
        return True


def full_products(device: torch.device) -> None:
    """Switch TF32 matrix products off on CUDA, with a warning if they were on."""
    matmul = torch.backends.cuda.matmul
    if device.type == "cuda" and rough(matmul):
        try:
            matmul.allow_tf32 = False
        except RuntimeError:
            matmul.fp32_precision = "ieee"
        warnings.warn("TF32 matrix products are switched off: clipped gradients could pass their bound.", stacklevel=2)


def factors(squared: Tensor, clip: float | Tensor) -> Tensor:
    """Return clip factors [records] in [0, 1] for squared L2 norms [records]."""
    norms = squared.clamp(min=0).sqrt()  # clamp preserves nan
    clip_counts.note(norms, clip)
    inside = clip * (1 - MARGIN)
    scaled = torch.where(norms > inside, inside / norms, torch.ones_like(norms))
    good = torch.isfinite(norms) & (scaled >= torch.finfo(norms.dtype).tiny)
    return torch.where(good, scaled, torch.zeros_like(norms))


def factors_l1(norms: Tensor, clip: float | Tensor, dtype: torch.dtype) -> Tensor:
    """Return clip factors [records] in [0, 1] for L1 norms [records] in float64."""
    clip_counts.note(norms, clip)
    inside = clip * (1 - MARGIN)
    scaled = torch.where(norms > inside, inside / norms, torch.ones_like(norms))
    good = torch.isfinite(norms) & (scaled >= torch.finfo(dtype).tiny)
    return torch.where(good, scaled, torch.zeros_like(norms)).to(dtype)


def layered(clip: Clip | None) -> bool:
    """Return whether `clip` holds one bound per layer."""
    return isinstance(clip, Tensor) and clip.dim() == 1


def shrink(squared: list[Tensor], clip: Clip, scale: Scale | None = None) -> list[Tensor]:
    """Return clip factors, in the same form as the squared norms they are computed from.

    Args:
        squared: squared norms [units], one tensor per layer if each layer has its own bound, else a single tensor.
        clip: the bound, or one bound per layer.
        scale: the scale that the gradients behind the norms were divided by.
    """
    if scale is not None:
        clip = scale.bound(clip)
    elif isinstance(clip, Tensor) and clip.dim() == 1:
        each = factors(torch.stack(squared), clip.unsqueeze(1))
        return list(each.masked_fill((each == 0).any(0), 0).unbind())
    return [factors(squared[0], clip)]


def large_enough(name: str, bound: float) -> None:
    """Raise `SpecError` if the bound is not positive or too small for float32."""
    check.positive(**{name: bound})
    if bound < LEAST:
        raise SpecError(f"{name} must be at least {LEAST:g}, not {bound:g}: norms so small vanish in float32.")


def by_layer(bounds: Sequence[float], layout: Layout, like: Tensor) -> Tensor:
    """Return the checked bounds as a tensor [layers], one for every layer of the layout."""
    names = list(layout.layers())
    if isinstance(bounds, str) or not isinstance(bounds, Sequence) or len(bounds) != len(names):
        given = len(bounds) if isinstance(bounds, Sequence) else repr(bounds)
        raise SpecError(
            f"layers must hold one bound for each of {len(names)} layers, not {given};"
            f" they are {', '.join(name or 'the model itself' for name in names)}."
        )
    for i, bound in enumerate(bounds):
        large_enough(f"layers[{i}]", bound)
    return like.new_tensor([float(bound) for bound in bounds])
