"""What floating point can do to a sum, known before the sum is taken.

Adding n numbers in any order, in one precision, gives sum x_i (1 + t_i) with |t_i| <= gamma_(n-1), where

    gamma_k = k u / (1 - k u),        u = 2^-24 (float32) or 2^-53 (float64),

and a sum of n products has gamma_n (Higham 2002, "Accuracy and Stability of Numerical Algorithms", sections 3.1 and
4.2). So the error of a sum of vectors is, coordinate by coordinate, at most gamma times the sum of the magnitudes, and
in the L2 norm at most gamma times the sum of the norms. No order of the additions, no number of threads and no fused
product breaks this; only products of a lower precision and fast multiplication (Strassen, Winograd) do.
"""

from __future__ import annotations

import math

import torch

ROUNDOFF = {torch.float32: 2.0**-24, torch.float64: 2.0**-53}


def up(x: float) -> float:
    """Return a number that is at least the exact value of which x is the float64 result of a few operations."""
    return x * (1 + 2.0**-48) if x > 0 else x


def gamma(operations: int, dtype: torch.dtype = torch.float32) -> float:
    """Return gamma_k, an upper bound of the relative error of k roundings; infinite where there is none."""
    product = operations * ROUNDOFF[dtype]
    return up(product / (1 - product)) if product < 1 else math.inf


def error_of_sum(contributions: int, dtype: torch.dtype = torch.float32) -> float:
    """Return the largest L2 error of a float sum of so many vectors, relative to the bound of their norms."""
    return up(contributions * gamma(contributions - 1, dtype)) if contributions > 1 else 0.0
