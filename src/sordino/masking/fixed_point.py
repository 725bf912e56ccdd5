"""Real numbers as whole numbers modulo 2^bits, so that a secure sum can add them.

A number x becomes the whole number nearest to x 2^fraction. With the defaults a row is off by at most 2^-33 in every
coordinate and a sum of n rows by at most n 2^-33, and by 2^-53 of itself where a sum above 2^21 is read as a float.
Rounding is done by each client to its own row after its noise was added, and is post-processing.

A number that could make the sum of `members` rows wrap is refused: clipping it silently would change the sum.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sordino.core.errors import SpecError
from sordino.masking.errors import MaskingError
from sordino.masking.fields import WIDEST, Ints

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class FixedPoint:
    """A scale for real numbers in a secure sum of at most `members` rows."""

    members: int
    bits: int = WIDEST
    fraction: int = 32  # bits behind the point

    def __post_init__(self) -> None:
        if not 1 <= self.fraction < self.bits <= WIDEST:
            raise SpecError(f"fixed point needs 1 <= fraction < bits <= {WIDEST}, not {self.fraction} and {self.bits}.")
        if isinstance(self.members, bool) or self.members < 1 or self.members >= 1 << (self.bits - 1):
            raise SpecError(f"a sum modulo 2^{self.bits} of {self.members} rows is not possible.")

    @property
    def _steps(self) -> float:
        """Return the largest size of an encoded number, rounded down to a float."""
        exact = ((1 << (self.bits - 1)) - 1) // self.members
        steps = float(exact)
        return steps if int(steps) <= exact else math.nextafter(steps, 0.0)

    @property
    def largest(self) -> float:
        """Return the size that no number may exceed, so that no sum of `members` rows wraps."""
        return self._steps * 2.0**-self.fraction

    @property
    def error(self) -> float:
        """Return the largest rounding error of one row in one coordinate."""
        return 2.0 ** -(self.fraction + 1)

    def encode(self, values: NDArray[Any]) -> Ints:
        """Return real numbers as whole numbers; refuse what is not finite or too large."""
        array = np.asarray(values)
        if array.dtype.kind != "f":
            raise MaskingError(f"fixed point takes floating-point numbers, not {array.dtype}.")
        wide = array.astype(np.float64)
        if not np.isfinite(wide).all():
            raise MaskingError("a row for the secure sum holds a number that is not finite.")
        scaled = np.rint(wide * 2.0**self.fraction) if np.abs(wide).max(initial=0.0) < 2.0**900 else wide
        if (np.abs(scaled) > self._steps).any():
            raise MaskingError(
                f"a row for the secure sum holds a number above {self.largest:.3g}, so that the sum could wrap. Use a "
                "smaller clip or less noise, or fewer bits behind the point."
            )
        return scaled.astype(np.int64)

    def decode(self, total: Ints) -> Floats:
        """Return a signed sum as real numbers."""
        return np.asarray(total, np.int64).astype(np.float64) * 2.0**-self.fraction
