"""What a client would send so that features can be standardised privately: bounded sums, without noise.

The caller adds noise for the stated sensitivity and charges for it; what follows is post-processing."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from sordino.core import check
from sordino.core.errors import DataError


def sums(x: Tensor, bound: float) -> tuple[Tensor, Tensor, float]:
    """x [n, d] -> (sum of x / B, sum of (x / B)^2, L2 sensitivity of both together to adding or removing a record).

    Values are clamped to [-B, B]; a nan counts as 0. A record moves each of the 2 d sums by at most 1."""
    check.positive(bound=bound)
    if x.ndim != 2:
        raise DataError(f"moments need features [records, features], not {list(x.shape)}.")
    unit = (torch.nan_to_num(x.double(), nan=0.0) / bound).clamp(-1, 1)
    return unit.sum(0), unit.square().sum(0), reach(x.shape[1])


def reach(features: int) -> float:
    """Return how far one record moves both sums together, in the L2 norm."""
    return math.sqrt(2 * features)


def standardise(
    total: Tensor, square: Tensor, records: float, bound: float, floor: float = 1e-2
) -> tuple[Tensor, Tensor]:
    """Noisy totals over (a noisy or public number of) records -> shift and scale [d]: use (x - shift) / scale.

    Noise can make means leave [-B, B] and variances negative: both are clamped, deviations to at least floor * B."""
    check.positive(records=records, bound=bound, floor=floor)
    mean = (total / records).clamp(-1, 1)
    variance = (square / records - mean.square()).clamp(floor**2, 1)
    return bound * mean, bound * variance.sqrt()
