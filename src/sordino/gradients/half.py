"""Clipped gradients from passes in bfloat16: what is rounded, and by how much that may lengthen a sum.

Layers compute with inputs a_t and output gradients g_t that are bfloat16 numbers. Products of two such numbers are
exact in float32, and they are added in float32, so a gradient G = sum_t g_t a_tᵀ that is held in memory is clipped as
ever: exactly what was measured is summed.

A gradient that is not held is summed as P = sum_t r(f g_t) a_tᵀ, where f is its clip factor and r rounds to bfloat16
once more. Rounding moves an entry by at most a share u = 2^-8 of itself, and with S = sum_t |g_t| |a_t|

    |P| <= sum_t |r(f g_t) - f g_t| |a_t| + f |G| <= f (|G| + u S).

Where tokens cancel, S is far longer than G, and so may be P: the norm that is clipped is therefore |G| + u S
(`bounded`), an upper bound of what enters the sum. docs/reduced-precision.md has the whole proof.
"""

from __future__ import annotations

import torch
from torch import Tensor

ROUNDED = 2.0**-8 * 1.02  # u, and room for the errors of float32: f g_t, the token norms, S and its product with u
DEVICES = ("cuda",)  # where passes in bfloat16 are used; elsewhere they would save nothing


def products(left: Tensor, right: Tensor) -> Tensor:
    """Return batched matrix products, those of bfloat16 numbers in float32.  [k, m, n], [k, n, l] -> [k, m, l]"""
    if left.dtype != torch.bfloat16:
        return torch.bmm(left, right)
    if left.is_cuda:
        exact: Tensor = torch.bmm(left, right, out_dtype=torch.float32)
        return exact
    return torch.bmm(left.float(), right.float())


def narrow(x: Tensor) -> Tensor:
    """Return x in bfloat16."""
    return x.to(torch.bfloat16)


def total(g: Tensor) -> Tensor:
    """Return sum_t g_t [records, p] of g [records, t, p], in float32 also for bfloat16 numbers."""
    y: Tensor = g.sum(1, dtype=torch.promote_types(g.dtype, torch.float32))
    return y


def reach(a: Tensor, g: Tensor) -> Tensor:
    """Return S = sum_t |g_t| |a_t| [records] for a [records, t, d] and g [records, t, p]."""
    tiny = torch.finfo(torch.float32).tiny
    inputs, outputs = (
        torch.linalg.vector_norm(x, dim=2, dtype=torch.float32) + (x.shape[2] * tiny) ** 0.5 for x in (a, g)
    )
    each: Tensor = inputs * outputs
    return each.sum(1)


def bounded(squared: Tensor, a: Tensor, g: Tensor) -> Tensor:
    """Return the squared norms [records] that are clipped: those of the gradients, and in bfloat16 (|G| + u S)²."""
    return longest(squared, reach(a, g), a.shape[1]) if a.dtype == torch.bfloat16 else squared


def longest(squared: Tensor, lengths: Tensor, t: int) -> Tensor:
    """Return (|G| + u S)² [records] for |G|² and S, both over t tokens."""
    summed = t * torch.finfo(torch.float32).eps  # if |G| was taken from a sum over tokens
    return (squared.clamp(min=0).sqrt() + (ROUNDED + summed) * lengths).square()
