"""Gaussian noise for an L2 bound.  Dwork et al. (2006); exact cost: Balle and Wang (2018), arXiv:1805.06530.

The noise is float32. The proof does not cover rounding (Mironov 2012), and every guarantee says so.
"""

from dataclasses import dataclass
from typing import ClassVar

from sordino.core import check
from sordino.core.rng import RowStream
from sordino.core.types import Rows
from sordino.privacy.clip import Bounded
from sordino.privacy.events import Event, GaussianEvent
from sordino.privacy.release import Use

__all__ = ["Gaussian"]


@dataclass(frozen=True)
class Gaussian:
    """Add N(0, (noise_multiplier * bound)^2) to every coordinate."""

    noise_multiplier: float

    geometry: ClassVar[str] = "L2"  # norm in which rows are bounded; `sordino mechanisms` shows it
    exact: ClassVar[bool] = False  # whether no floating point lies between the random words and the release
    calibrated: ClassVar[str] = "noise_multiplier"  # parameter that `sordino calibrate` looks for

    def __post_init__(self) -> None:
        check.positive(noise_multiplier=self.noise_multiplier)

    def add(self, rows: Bounded, rng: RowStream) -> Rows:
        """Add independent noise to every row, drawn from the stream of its client."""
        return self.apply(rows, rng, Use())

    def apply(self, x: Bounded, rng: RowStream, use: Use) -> Rows:
        """Add noise, or each client's share of it, to every row; `use` may give each row its own noise multiplier."""
        noise, share = rng.normal(x.value.shape[1], like=x.value), float(use.split**-0.5)
        if use.multiplier is not None:
            return x.value + use.multiplier.to(x.value) * share * x.bound * noise
        return x.value + self.noise_multiplier * share * x.bound * noise

    def event(self, split: int = 1) -> Event:
        """Return the event of one use; the total noise is the same however many clients share it."""
        return GaussianEvent(self.noise_multiplier)

    def std(self, bound: float) -> float:
        """Return the standard deviation of the noise on one coordinate."""
        return self.noise_multiplier * bound
