"""A float sum on a lattice, and how far apart two neighbouring sums can then be.

A lattice of step g, a power of two, has the points g k, k an integer. Dividing a float by g is exact, and so is
rounding the quotient to an integer: what is released is a function of integers, and no last digit of a float gets out.

Rounding moves a coordinate by at most g / 2 in either of two neighbouring worlds, so that two sums of `dim` coordinates
are moved apart by at most g sqrt(dim). Let float arithmetic move either sum by at most `error` times its bound. Then
what was `bound` apart is at most

    bound (1 + 2 error) + g sqrt(dim)

apart on the lattice. g is the largest power of two for which rounding adds at most 2^-10 of the bound, so that noise
which follows this sensitivity is at most 0.1 % wider. It is then 1,000 to 2,000 z sqrt(dim) steps wide. A finer lattice
could save less than those 0.1 % and makes `rounded_normal` look twice at more numbers. `coarsest` bounds the step as
well, where noise that many clients share has to be some steps wide in every share.
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
from sordino.core.floats import error_of_sum, up

SHARE = Fraction(1, 1 << 10)  # of the bound: what rounding to the lattice may add to it
SMALLEST, LARGEST = 2.0**-60, 2.0**60  # bounds: float32 has all its digits around these
FURTHEST = 2.0**51  # lattice points are whole numbers in float64; with noise they stay below 2^53


@dataclass(frozen=True)
class Lattice:
    """The lattice for sums of `dim` numbers that one contribution moves by at most `bound` in the L2 norm."""

    bound: float
    dim: int
    error: float = 0.0  # of one float sum in the L2 norm, relative to the bound
    coarsest: float = LARGEST  # the step is no longer than this

    def __post_init__(self) -> None:
        check.positive(bound=self.bound, coarsest=self.coarsest)
        check.count(dim=self.dim)
        check.non_negative(error=self.error)
        if not SMALLEST <= self.bound <= LARGEST:
            raise SpecError(f"a bound on the lattice must lie between 2^-60 and 2^60, not at {self.bound:g}.")

    @cached_property
    def step(self) -> float:
        """g: the largest power of two with g sqrt(dim) <= SHARE bound and g <= coarsest."""
        most = min((SHARE * Fraction(self.bound)) ** 2 / self.dim, Fraction(self.coarsest) ** 2)  # of g squared
        exponent = math.frexp(min(float(SHARE) * self.bound / math.sqrt(self.dim), self.coarsest))[1]
        while Fraction(2) ** (2 * exponent) > most:
            exponent -= 1
        return math.ldexp(1.0, exponent)

    @cached_property
    def sensitivity(self) -> float:
        """How far apart two neighbouring sums are on the lattice at most, never below the exact number."""
        return up(self.bound * (1 + 2 * self.error) + self.step * math.sqrt(self.dim))

    def points(self, value: Tensor, out: Tensor | None = None) -> Tensor:
        """Return the integers k of the nearest points g k, in float64 (in `out`, if it is given).

        Points beyond 2^51, which no bound allows, become the outermost one: that moves no two of them apart.
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
        """Write g k to `out`, of any type, and return it; the points are overwritten.

        A point with more digits than the type has is rounded once more. That is after the noise: post-processing.
        """
        return out.copy_(points.mul_(self.step))


def lattice_of_sum(bound: float, dim: int, contributions: int, dtype: torch.dtype = torch.float32) -> Lattice:
    """Return the lattice for a float sum, in any order, of so many vectors of norm at most `bound`.

    Its error is at most gamma_(n-1) times the sum of their norms (Higham 2002, section 4.2): see `core.floats`. One
    contribution has none.
    """
    check.count(contributions=contributions)
    return Lattice(bound, dim, error_of_sum(contributions, dtype))
