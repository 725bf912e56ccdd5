"""Gaussian noise for an L2 bound, rounded to a lattice, so that the proof covers floating point.

The value is put on a lattice and the noise is the rounded normal, so value + noise is the rounding of value + normal:
post-processing of the Gaussian mechanism (Dwork et al. 2006; Balle and Wang 2018, arXiv:1805.06530) with the
sensitivity on the lattice. The noise is noise_multiplier times that sensitivity, so the privacy cost is that of
Gaussian noise, and the attack of Mironov (2012) finds no gap between floats. The noise is sampled exactly: see
`rounded_normal` for its distribution, `lattice` for the sensitivity, docs/exact-noise.md for the proof.

Clients whose rows are only read as a sum may share the noise, each adding a rounded normal with the n-th part of the
variance. Rows are then whole numbers, so their sum is exact, in any order and modulo any power of two. The sum of n
rounded normals is, up to a factor of 1 +- e^(-pi^2 s^2) in every probability, the rounding of a normal with the full
variance plus n - 1 uniform numbers: again post-processing of the Gaussian mechanism. Every share is at least s = 64
lattice steps wide, where that factor is 1 for all practical purposes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sordino.core import check
from sordino.core.errors import SpecError
from sordino.core.floats import ROUNDOFF, error_of_sum
from sordino.core.rng import RowStream
from sordino.core.types import Rows
from sordino.privacy import rounded_normal
from sordino.privacy.clip import Bounded
from sordino.privacy.events import Event, GaussianEvent
from sordino.privacy.lattice import Lattice
from sordino.privacy.release import Use

__all__ = ["RoundedGaussian"]

Floats = NDArray[np.float64]
NARROWEST = 64  # lattice steps: lower limit on the width of a share of the noise


@dataclass(frozen=True)
class RoundedGaussian:
    """Put rows on a lattice and add normal noise rounded to it, noise_multiplier times the sensitivity there."""

    noise_multiplier: float
    contributions: int = 1  # number of vectors summed in floating point, each within the bound
    float_error: float = 0.0  # additional error of the sum, relative to the bound
    summed: int = 0  # above 0: rows are whole numbers and only their sum, of this many contributions, is read
    shared: int = 1  # number of clients that add the noise together; above 1 only if `summed` is set

    exact: ClassVar[bool] = True  # no floating point lies between the random words and the distribution of the noise
    geometry: ClassVar[str] = "L2"
    calibrated: ClassVar[str] = "noise_multiplier"

    def __post_init__(self) -> None:
        check.positive(noise_multiplier=self.noise_multiplier)
        check.count(contributions=self.contributions, shared=self.shared)
        check.non_negative(float_error=self.float_error, summed=self.summed)
        if self.shared > 1 and not self.summed:
            raise SpecError("rounded Gaussian noise can be shared only where rows are whole numbers: set summed.")

    def add(self, rows: Bounded, rng: RowStream) -> Rows:
        """Add independent noise to every row, drawn from the stream of its client."""
        return self.add_each(rows, self.noise_multiplier, rng)

    def apply(self, x: Bounded, rng: RowStream, use: Use) -> Rows:
        """Add noise, or each client's share of it, to every row; `use` may give each row its own noise multiplier."""
        if use.split != self.shared:
            raise SpecError(f"this noise is made to be shared by {self.shared} clients, not by {use.split}.")
        return self.add_each(x, self.noise_multiplier if use.multiplier is None else use.multiplier, rng)

    def std(self, bound: float) -> float:
        """Return the standard deviation of the noise on one coordinate."""
        return self.noise_multiplier * bound

    def add_each(self, rows: Bounded, multipliers: float | Tensor, rng: RowStream) -> Rows:
        """Add noise with one multiplier for all rows, or with each client's own multiplier [clients, 1].

        An infinite multiplier makes the row zero.
        """
        rows.require(2, "RoundedGaussian")
        value = rows.value.detach()
        clients, dim = value.shape
        if len(rng.ids) != clients:
            raise SpecError(f"noise for {len(rng.ids)} clients was asked for {clients} rows; give one id per row.")
        if not clients or not dim:
            return value.clone()
        lattice = self.lattice(rows)
        scale = self._scales(multipliers, clients, lattice)
        here = value if rounded_normal.on_gpu(rng, value.device) else value.cpu()
        silent = np.isinf(scale)
        out = torch.empty_like(here, dtype=self._kind(lattice) if self.summed else here.dtype)

        def apply(part: slice, columns: slice, noise: Tensor, room: Tensor) -> None:
            noise += lattice.points(here[part, columns], room)
            if silent[part].any():
                noise[torch.from_numpy(silent[part]).to(noise.device)] = 0.0
            if self.summed:
                out[part, columns] = noise.to(out.dtype)
            else:
                lattice.floats(noise, out[part, columns])

        rounded_normal.blocks(rng, dim, np.where(silent, 0.0, scale), apply, value.device)
        return out.to(value.device)

    def lattice(self, rows: Bounded) -> Lattice:
        """Return the lattice for these rows, which depends on their shape, type and bound alone."""
        if rows.value.dtype not in ROUNDOFF:
            raise SpecError(f"rounded Gaussian noise is added to float32 or float64 rows, not to {rows.value.dtype}.")
        return self._lattice(rows.bound, rows.value.shape[1], rows.value.dtype)

    def _lattice(self, bound: float, dim: int, dtype: torch.dtype) -> Lattice:
        error = error_of_sum(self.contributions, dtype) + self.float_error
        if not self.summed:
            return Lattice(bound, dim, error)
        return Lattice(bound, dim, error, self.noise_multiplier * bound / (NARROWEST * math.sqrt(self.shared)))

    def floats(self, points: Tensor, bound: float, dtype: torch.dtype) -> Tensor:
        """Return the values that a sum [1, dim] of whole-number rows stands for."""
        # the step does not depend on the error of float sums
        return self._lattice(bound, points.shape[1], dtype).floats(
            points.double(), torch.empty_like(points, dtype=dtype)
        )

    def _kind(self, lattice: Lattice) -> torch.dtype:
        """Return the integer type that holds a sum of rows, unless the noise exceeds twelve standard deviations."""
        most = self.summed * lattice.sensitivity + 12 * self.noise_multiplier * lattice.sensitivity
        return torch.int32 if most / lattice.step < 2.0**31 else torch.int64

    def _scales(self, multipliers: float | Tensor, clients: int, lattice: Lattice) -> Floats:
        """Return the noise scale of each row in lattice steps [clients], rounded up."""
        z = torch.as_tensor(multipliers, dtype=torch.float64).cpu().reshape(-1).numpy()
        if len(z) not in (1, clients) or not (z > 0).all():
            raise SpecError(
                f"noise multipliers must be positive, one for all or one for each of {clients} rows; "
                f"found {len(z)}, the smallest being {z.min():g}."
            )
        ratio = lattice.sensitivity / lattice.step  # exact: the step is a power of two
        if self.shared > 1:  # rounded up too: the variances of the shares add up to at least the full variance
            ratio = np.nextafter(ratio / math.nextafter(math.sqrt(self.shared), 0.0), math.inf)
        return np.broadcast_to(np.nextafter(z * ratio, math.inf), (clients,))

    def event(self, split: int = 1) -> Event:
        """Return the event of one use, that of Gaussian noise."""
        return GaussianEvent(self.noise_multiplier)
