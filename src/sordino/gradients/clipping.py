"""From per-sample norms to clip factors.  Abadi et al. (2016), arXiv:1607.00133, Algorithm 1.

    factor_i = min(1, C / |g_i|)

Three cases the formula leaves open. A zero gradient keeps factor 1. A gradient whose norm is not finite gets
factor 0 and is removed from the sum, so that one broken record adds nothing: the sum's sensitivity stays C.
Rounding: norms are float32, so a clipped gradient is aimed a hair below C and its true norm does not pass C; a wider
hair where a GPU is allowed to round the factors of a product to TF32 (PyTorch's default for convolutions).
"""

from __future__ import annotations

import torch
from torch import Tensor

MARGIN = 2e-6  # of C; several times the rounding error of a float32 norm and of the product with its factor
MARGIN_TF32 = 2e-3  # TF32 keeps 10 bits: each product is off by up to 1e-3


def margin(device: torch.device) -> float:
    rough = torch.backends.cudnn.allow_tf32 or torch.backends.cuda.matmul.allow_tf32
    return MARGIN_TF32 if device.type == "cuda" and rough else MARGIN


def factors(squared: Tensor, clip: float | Tensor) -> Tensor:
    """Squared norms [records] -> factors [records] in [0, 1]."""
    norms = squared.clamp(min=0).sqrt()  # clamp keeps nan
    inside = clip * (1 - margin(squared.device))
    scaled = torch.where(norms > inside, inside / norms, torch.ones_like(norms))
    return torch.where(torch.isfinite(norms), scaled, torch.zeros_like(norms))
