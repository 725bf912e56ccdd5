"""From per-sample norms to clip factors.  Abadi et al. (2016), arXiv:1607.00133, Algorithm 1.

    factor_i = min(1, C / |g_i|)

Three cases the formula leaves open. A zero gradient keeps factor 1. A gradient whose norm is not finite gets
factor 0 and is removed from the sum, so that one broken record adds nothing: the sum's sensitivity stays C.
Rounding: norms are float32, so a clipped gradient is aimed a hair below C and its true norm does not pass C. On a GPU
neither norms nor sums are made of products that are rounded to TF32, which keeps 10 bits: over many positions that
cancel out, a sum of such products may be longer than its norm by percents. What goes into them may be.

What is so long that its factor has few digits in float32 is removed. A bound below 1e-12 is refused: squares of what
is so short vanish in float32 (in the L1 norm nothing is squared).

In the L1 norm the same, min(1, C / |g_i|_1). Its terms are all added up in float64: ten thousand numbers too small to
move a float32 sum may pass any margin together.

With one bound a layer (McMahan et al. 2018, arXiv:1710.06963, Algorithm 1, PerLayerClip) every layer's part of a
gradient has a factor of its own. Where the norm of one is not finite, the sample is removed from all of them.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from sordino.core import check
from sordino.core.errors import SpecError
from sordino.core.vector import Layout
from sordino.gradients.scale import Scale

Clip = float | Tensor  # one bound, or a tensor [layers] with one for each

LEAST = 1e-12  # the smallest bound
MARGIN = 2e-6  # of C; several times the rounding error of a float32 norm and of the product with its factor


def rough(backend: Any) -> bool:
    """Whether a GPU may round the factors of products to TF32: torch.backends.cudnn or .cuda.matmul."""
    try:
        return bool(backend.allow_tf32)
    except RuntimeError:  # set by the newer `fp32_precision`, which the older switch does not know
        return True


def full_products(device: torch.device) -> None:
    """Matrix products as float32 has them; told once, where someone had switched that off."""
    matmul = torch.backends.cuda.matmul
    if device.type == "cuda" and rough(matmul):
        try:
            matmul.allow_tf32 = False
        except RuntimeError:
            matmul.fp32_precision = "ieee"
        warnings.warn("TF32 matrix products are switched off: clipped gradients could pass their bound.", stacklevel=2)


def factors(squared: Tensor, clip: float | Tensor) -> Tensor:
    """Squared norms [records] -> factors [records] in [0, 1]."""
    norms = squared.clamp(min=0).sqrt()  # clamp keeps nan
    inside = clip * (1 - MARGIN)
    scaled = torch.where(norms > inside, inside / norms, torch.ones_like(norms))
    good = torch.isfinite(norms) & (scaled >= torch.finfo(norms.dtype).tiny)
    return torch.where(good, scaled, torch.zeros_like(norms))


def factors_l1(norms: Tensor, clip: float | Tensor, dtype: torch.dtype) -> Tensor:
    """L1 norms [records] in float64 -> factors [records] in [0, 1]."""
    inside = clip * (1 - MARGIN)
    scaled = torch.where(norms > inside, inside / norms, torch.ones_like(norms))
    good = torch.isfinite(norms) & (scaled >= torch.finfo(dtype).tiny)
    return torch.where(good, scaled, torch.zeros_like(norms)).to(dtype)


def layered(clip: Clip | None) -> bool:
    """Whether there is a bound for every layer."""
    return isinstance(clip, Tensor) and clip.dim() == 1


def shrink(squared: list[Tensor], clip: Clip, scale: Scale | None = None) -> list[Tensor]:
    """Squared norms [units], one for each layer if each has its bound, else one for all -> factors of the same form."""
    if scale is not None:
        clip = scale.bound(clip)
    elif isinstance(clip, Tensor) and clip.dim() == 1:
        each = factors(torch.stack(squared), clip.unsqueeze(1))
        return list(each.masked_fill((each == 0).any(0), 0).unbind())
    return [factors(squared[0], clip)]


def large_enough(name: str, bound: float) -> None:
    check.positive(**{name: bound})
    if bound < LEAST:
        raise SpecError(f"{name} must be at least {LEAST:g}, not {bound:g}: norms so small vanish in float32.")


def by_layer(bounds: Sequence[float], layout: Layout, like: Tensor) -> Tensor:
    """One bound for every layer of the layout [layers], checked."""
    names = list(layout.layers())
    if isinstance(bounds, str) or not isinstance(bounds, Sequence) or len(bounds) != len(names):
        found = len(bounds) if isinstance(bounds, Sequence) else repr(bounds)
        raise SpecError(
            f"layers must hold one bound for each of {len(names)} layers, not {found};"
            f" they are {', '.join(name or 'the model itself' for name in names)}."
        )
    for i, bound in enumerate(bounds):
        large_enough(f"layers[{i}]", bound)
    return like.new_tensor([float(bound) for bound in bounds])
