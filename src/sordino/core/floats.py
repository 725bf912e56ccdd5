"""A-priori bounds on the floating-point error of sums.

Adding n numbers in any order, in one precision, gives sum x_i (1 + t_i) with |t_i| <= gamma_(n-1), where

    gamma_k = k u / (1 - k u),        u = 2^-24 (float32) or 2^-53 (float64),

and a sum of n products has gamma_n (Higham 2002, "Accuracy and Stability of Numerical Algorithms", sections 3.1 and
4.2). The error of a sum of vectors is therefore at most gamma times the sum of the magnitudes in each coordinate, and
at most gamma times the sum of the norms in the L2 norm. This holds for any order of the additions, any number of
threads and fused multiply-add; it does not hold for products of a lower precision or for fast matrix multiplication
(Strassen, Winograd).
"""

from __future__ import annotations

import math

import torch

ROUNDOFF = {torch.float32: 2.0**-24, torch.float64: 2.0**-53}


def up(x: float) -> float:
    """Return an upper bound on the exact value that x approximates, if x is the float64 result of a few operations."""
    return x * (1 + 2.0**-48) if x > 0 else x


def gamma(operations: int, dtype: torch.dtype = torch.float32) -> float:
    """Return gamma_k, an upper bound on the relative error of k roundings; infinite where no bound exists."""
    product = operations * ROUNDOFF[dtype]
    return up(product / (1 - product)) if product < 1 else math.inf


def error_of_sum(contributions: int, dtype: torch.dtype = torch.float32) -> float:
    """Return the largest L2 error of a float sum of `contributions` vectors, relative to the bound on their norms."""
    return up(contributions * gamma(contributions - 1, dtype)) if contributions > 1 else 0.0
