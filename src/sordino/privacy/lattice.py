"""Rounding of float sums to a lattice, and the resulting bound on the distance of two neighbouring sums.

A lattice of step g, a power of two, has the points g k, where k is an integer. Dividing a float by g is exact, and so
is rounding the quotient to an integer: what is released is a function of integers, and the last digits of a float are
never revealed.

Rounding moves a coordinate by at most g / 2 for each of two neighbouring datasets, so it increases the distance of two
sums of `dim` coordinates by at most g sqrt(dim). Let float arithmetic move either sum by at most `error` times its
bound. Then sums at a distance of `bound` are at most

    bound (1 + 2 error) + g sqrt(dim)

apart on the lattice. g is the largest power of two for which rounding adds at most 2^-10 of the bound, so that noise
calibrated to this sensitivity is at most 0.1 % wider. The noise is then 1,000 to 2,000 z sqrt(dim) steps wide. A finer
lattice could save less than those 0.1 %, and it makes `rounded_normal` recompute more numbers. `coarsest` bounds the
step as well, for noise shared by many clients, which has to be some steps wide in every share.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import torch
from torch import Tensor

from sordino.core import check
from sordino.core.errors import SpecError
from sordino.core.floats import up

SHARE = Fraction(1, 1 << 10)  # fraction of the bound that rounding to the lattice may add to it
SMALLEST, LARGEST = 2.0**-60, 2.0**60  # limits of the bound: float32 has full precision in this range
FURTHEST = 2.0**51  # lattice points are integers in float64; with noise they stay below 2^53


@dataclass(frozen=True)
class Lattice:
    """The lattice for sums of `dim` numbers that one contribution changes by at most `bound` in the L2 norm."""

    bound: float
    dim: int
    error: float = 0.0  # error of one float sum in the L2 norm, relative to the bound
    coarsest: float = LARGEST  # upper bound on the step

    def __post_init__(self) -> None:
        check.positive(bound=self.bound, coarsest=self.coarsest)
        check.count(dim=self.dim)
        check.non_negative(error=self.error)
        if not SMALLEST <= self.bound <= LARGEST:
            raise SpecError(f"a bound on the lattice must lie between 2^-60 and 2^60, not at {self.bound:g}.")

    @cached_property
    def step(self) -> float:
        """Return g, the largest power of two with g sqrt(dim) <= SHARE bound and g <= coarsest."""
        most = min((SHARE * Fraction(self.bound)) ** 2 / self.dim, Fraction(self.coarsest) ** 2)  # bound on g squared
        exponent = math.frexp(min(float(SHARE) * self.bound / math.sqrt(self.dim), self.coarsest))[1]
        while Fraction(2) ** (2 * exponent) > most:
            exponent -= 1
        return math.ldexp(1.0, exponent)

    @cached_property
    def sensitivity(self) -> float:
        """Return the largest distance of two neighbouring sums on the lattice, never below the exact value."""
        return up(self.bound * (1 + 2 * self.error) + self.step * math.sqrt(self.dim))

    def points(self, value: Tensor, out: Tensor | None = None) -> Tensor:
        """Return the integers k of the nearest points g k, in float64 (in `out`, if it is given).

        Points beyond 2^51, which no bound allows, are clamped to the outermost point, which moves no two of them apart.
        """
        nearest = torch.empty(value.shape, dtype=torch.float64, device=value.device) if out is None else out
        nearest.copy_(value).mul_(1 / self.step).round_()  # the product is exact
        low, high = torch.aminmax(nearest) if nearest.numel() else (torch.zeros(()), torch.zeros(()))
        if not (float(low) >= -FURTHEST and float(high) <= FURTHEST):
            if not torch.isfinite(nearest).all():
                raise SpecError("a sum to round to the lattice is not finite; clip what is added up first.")
            nearest.clamp_(-FURTHEST, FURTHEST)
        return nearest

    def floats(self, points: Tensor, out: Tensor) -> Tensor:
        """Write g k to `out`, of any dtype, and return it; the points are overwritten.

        A point with more digits than the dtype has is rounded once more. This happens after the noise is added, so it
        is post-processing.
        """
        return out.copy_(points.mul_(self.step))
