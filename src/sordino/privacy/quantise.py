"""Randomised rounding of float rows to integer rows on a lattice, with the bounds that the rounding enforces.

A row is divided by the granularity, and every coordinate is rounded up or down at random so that its mean is preserved.
Kairouz, Liu, Steinke (2021), arXiv:2102.06387, Algorithm 1 and Theorem 1 (conditional randomised rounding): a rounding
whose norm exceeds the bound is rejected and drawn again; with beta = e^(-1/2), at most 61 % are. The bounds are
integers and are checked on integers. We differ from the paper: there is no rotation before the rounding, and after
`TRIES` rejections the row is rounded towards zero, which always keeps the bound.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sordino.core import check
from sordino.core.errors import SpecError
from sordino.core.rng import RowStream
from sordino.privacy.clip import Bounded

Ints = NDArray[np.int64]

TRIES = 40  # 0.61^40: about one row in a billion is then rounded towards zero
CHUNK = 2**22  # coordinates processed at once
LARGEST = 2**62  # a sum of squares is at most L-infinity times L1, and must fit into 63 bits


@dataclass(frozen=True)
class Bounds:
    """Norm bounds that no integer row exceeds.

    They also bound the difference between a row and an absent one (zeros).
    """

    dim: int
    l1: int
    l2_squared: int
    linf: int

    def __post_init__(self) -> None:
        check.count(dim=self.dim, l1=self.l1, l2_squared=self.l2_squared, linf=self.linf)
        if self.linf * self.l1 >= LARGEST:
            raise SpecError(
                f"integers of {self.linf.bit_length()} binary digits in {self.dim} coordinates are too large to add up "
                "safely in 64; use a larger granularity."
            )

    @property
    def l2(self) -> float:
        """Return the L2 bound, rounded up from the square root."""
        return math.nextafter(math.sqrt(self.l2_squared), math.inf)

    def modulus(self, clients: int, noise: float) -> int:
        """Return the number of bits of a modulus that is large enough for a sum over `clients` rows.

        The sum does not exceed it unless its noise exceeds ten standard deviations.

        Args:
            clients: the number of rows in the sum.
            noise: standard deviation of the noise in the sum.
        """
        check.count(clients=clients)
        check.non_negative(noise=noise)
        digits = math.ceil(2 * (clients * self.linf + 10 * noise) + 1).bit_length()
        if digits > 32:
            raise SpecError(
                f"a sum over {clients} clients of integers up to {self.linf} (noise {noise:g}) needs {digits} binary "
                "digits; secure sums have 32. Use a larger granularity or fewer clients."
            )
        return digits


@dataclass(frozen=True)
class Integers:
    """Integer rows whose bounds have been checked, not assumed."""

    value: Tensor  # [clients, dim], int64
    bounds: Bounds

    def __post_init__(self) -> None:
        if self.value.dtype != torch.int64 or self.value.dim() != 2 or self.value.shape[1] != self.bounds.dim:
            given = f"{self.value.dtype} {list(self.value.shape)}"
            raise SpecError(f"integer rows must be int64 [clients, {self.bounds.dim}], not {given}.")
        if not _inside(self.value.cpu().numpy(), self.bounds).all():
            raise SpecError(f"an integer row exceeds its bounds {self.bounds}; clip and quantise it first.")

    def plus(self, noise: Ints) -> Tensor:
        """Return the rows with integer noise added."""
        return self.value + torch.from_numpy(noise).to(self.value.device)


def bounds(clip: float, norm: float, dim: int, granularity: float) -> Bounds:
    """Return the bounds on the lattice of rows of `dim` coordinates that are clipped to `clip` in `norm`.

    L2: the paper's c^2 + d/4 + (c + sqrt(d)/2), where that is below (c + sqrt(d))^2, in units of the granularity. L1:
    the sum of d independent roundings exceeds its mean by sqrt(d)/2 with probability at most beta (Hoeffding). The
    absolute value of an integer is at most its square, so L1 <= L2^2; and L1 <= sqrt(d) L2.
    """
    check.positive(clip=clip, granularity=granularity)
    check.count(dim=dim)
    c = Fraction(clip) / Fraction(granularity)
    most = math.ceil(c)  # bound on one coordinate
    if norm == 2:
        root = Fraction(math.nextafter(math.sqrt(dim), math.inf))
        squared = math.floor(min(c * c + Fraction(dim, 4) + c + root / 2, (c + root) ** 2))
        squared = max(1, min(squared, dim * most**2))
        return Bounds(dim, min(math.isqrt(dim * squared), squared), squared, min(most, math.isqrt(squared)))
    if norm == 1:
        l1 = max(1, math.floor(min(c + Fraction(math.sqrt(dim) / 2), c + dim)))
        linf = min(most, l1)
        return Bounds(dim, min(l1, dim * linf), min(l1 * linf, dim * linf**2), linf)
    if norm == math.inf:
        return Bounds(dim, dim * most, dim * most**2, most)
    raise SpecError(f"rows are quantised in the L1, L2 or L-infinity norm, not in L{norm!r}.")


def quantise(rows: Bounded, granularity: float, rng: RowStream) -> Integers:
    """Round rows to multiples of the granularity at random, without bias except for what the bound rejects."""
    limits = bounds(rows.bound, rows.norm, rows.value.shape[1], granularity)
    out = np.empty(tuple(rows.value.shape), dtype=np.int64)
    step = max(1, CHUNK // limits.dim)
    for start in range(0, len(out), step):
        part = slice(start, start + step)
        value = rows.value[part].detach().cpu().numpy().astype(np.float64) / granularity
        out[part] = _rounded(value, limits, RowStream(rng.stream, rng.ids[part]))
    return Integers(torch.from_numpy(out).to(rows.value.device), limits)


def _rounded(value: NDArray[np.float64], limits: Bounds, rng: RowStream) -> Ints:
    if not np.isfinite(value).all():
        raise SpecError("a row to quantise is not finite; clip it first.")
    size = np.minimum(np.abs(value), 2.0**33)  # above any bound, so refused below
    low, sign = np.floor(size).astype(np.int64), np.sign(value).astype(np.int64)
    over, out = size - low, low * sign  # out: rounded towards zero
    if not _inside(out, limits).all():
        raise SpecError(f"a row to quantise is not inside the bound it came with ({limits}); clip it first.")
    left = np.arange(len(out))
    for attempt in range(TRIES):
        if not len(left):
            break
        draw = RowStream(rng.stream.at("round", attempt), rng.ids[left]).uniform(limits.dim)
        tried = (low[left] + (draw < over[left])) * sign[left]
        good = _inside(tried, limits)
        out[left[good]] = tried[good]
        left = left[~good]
    return out


def _inside(rows: Ints, limits: Bounds) -> NDArray[np.bool_]:
    """Return which rows keep all three bounds; no row is summed or squared before it is known to be small enough."""
    fine = (rows.min(axis=1, initial=0) >= -limits.linf) & (rows.max(axis=1, initial=0) <= limits.linf)
    safe = rows if fine.all() else np.where(fine[:, None], rows, 0)
    fine &= np.abs(safe).sum(axis=1) <= limits.l1
    safe = rows if fine.all() else np.where(fine[:, None], rows, 0)
    return np.asarray(fine & (np.einsum("ij,ij->i", safe, safe) <= limits.l2_squared))
