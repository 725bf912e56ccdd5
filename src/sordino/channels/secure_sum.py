"""The secure sum: the server receives the sum of all rows and nothing else.

Stands for a protocol of pairwise masks (Bonawitz et al. 2017, "Practical secure aggregation for privacy-preserving
machine learning") between honest-but-curious parties; here the sum is simply taken. Every client adds its share of the
noise (`Plan.noise_share`), so that the sum holds the whole of it even where the viewer knows the shares of colluders.
"""

from dataclasses import dataclass
from typing import ClassVar

from sordino.core.rng import Stream
from sordino.core.types import Rows

__all__ = ["SecureSum"]


@dataclass(frozen=True)
class SecureSum:
    shows_cohort: ClassVar[bool] = True

    def carry(self, rows: Rows, rng: Stream) -> Rows:
        return rows.sum(dim=0, keepdim=True)
