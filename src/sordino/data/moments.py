"""Bounded sums that a client sends so that features can be standardised privately.

The sums have no noise: the caller adds noise for the stated sensitivity and charges for it. Everything after that is
post-processing.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from sordino.core import check
from sordino.core.errors import DataError


def sums(x: Tensor, bound: float) -> tuple[Tensor, Tensor, float]:
    """Return the sum of x / B, the sum of (x / B)^2 and the L2 sensitivity of both together, for x [n, d] and bound B.

    The neighbouring relation is adding or removing a record. Values are clamped to [-B, B], and a nan counts as 0. One
    record moves each of the 2 d sums by at most 1.
    """
    check.positive(bound=bound)
    if x.ndim != 2:
        raise DataError(f"moments need features [records, features], not {list(x.shape)}.")
    unit = (torch.nan_to_num(x.double(), nan=0.0) / bound).clamp(-1, 1)
    return unit.sum(0), unit.square().sum(0), reach(x.shape[1])


def reach(features: int) -> float:
    """Return the L2 sensitivity of both sums together to adding or removing one record."""
    return math.sqrt(2 * features)


def standardise(
    total: Tensor, square: Tensor, records: float, bound: float, floor: float = 1e-2
) -> tuple[Tensor, Tensor]:
    """Return the shift and the scale [d] to standardise features by (x - shift) / scale.

    Noise can push means out of [-B, B] and make variances negative. Both are clamped, standard deviations to at least
    floor * B.

    Args:
        total: Noisy sum of x / B, over all records.
        square: Noisy sum of (x / B)^2, over all records.
        records: Number of records, noisy or public.
        bound: The bound B.
        floor: Smallest standard deviation, as a fraction of B.
    """
    check.positive(records=records, bound=bound, floor=floor)
    mean = (total / records).clamp(-1, 1)
    variance = (square / records - mean.square()).clamp(floor**2, 1)
    return bound * mean, bound * variance.sqrt()
