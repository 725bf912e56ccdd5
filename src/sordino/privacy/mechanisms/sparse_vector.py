"""The sparse vector technique: finds queries above a public threshold and pays only for the first `count` of them.

Lyu, Su, Li (2017), arXiv:1603.01699, "Understanding the sparse vector technique", Algorithm 7 without numeric answers.
The threshold gets one noise Lap(bound / e1), drawn once and not refreshed; every query gets fresh Lap(2 count bound /
e2); the mechanism stops after `count` answers above. It is (e1 + e2)-DP: raise the threshold's noise by the bound (at
most e^{e1}); then no answer below gets less likely, and an answer above is compared with a line at most two bounds
further away (at most e^{e2 / count} each). For monotone queries, which one unit moves all the same way, it is one bound
and half the query noise. The split e1 : e2 = 1 : (2 count)^{2/3}, monotone 1 : count^{2/3}, minimises the variance of
the comparison (Section 4).

Published variants that are not private as claimed (their Algorithms 3 to 6): releasing the noisy value that was
compared as well (Roth 2011, lecture notes); query noise that does not grow with `count` (Lee and Clifton 2014); no
query noise (Stoddard et al. 2014); no limit on the answers above (Chen et al. 2015). Noise on the queries alone is not
enough either.

Answers are sums of the units' rows, each clipped in the L-infinity norm (`clip`). For the limits of float noise, see
laplace.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from sordino.core import check
from sordino.core.errors import SpecError
from sordino.core.rng import RowStream
from sordino.core.types import Rows
from sordino.privacy.clip import Bounded
from sordino.privacy.events import Event
from sordino.privacy.mechanisms.exponential import checked, clip_units
from sordino.privacy.mechanisms.laplace import Laplace, laplace_noise

__all__ = ["SparseVector"]

Floats = NDArray[np.float64]
ABOVE, BELOW, STOPPED = 1, 0, -1


@dataclass(frozen=True)
class SparseVectorEvent(Event):
    """One pass over any number of queries."""

    epsilon: float

    def __post_init__(self) -> None:
        check.positive(epsilon=self.epsilon)

    def pure(self) -> float:
        return self.epsilon


@dataclass(frozen=True)
class SparseVector:
    """Report for each query whether it is above the threshold, and stop after `count` answers above."""

    epsilon: float  # one pass over all queries is epsilon-DP
    count: int = 1  # c: number of answers "above" after which it stops
    monotone: bool = False  # whether adding a unit never lowers an answer

    geometry: ClassVar[str] = "L-infinity"
    exact: ClassVar[bool] = False
    calibrated: ClassVar[str] = "epsilon"

    def __post_init__(self) -> None:
        check.positive(epsilon=self.epsilon)
        check.count(count=self.count)
        if self.count > 1e9:
            raise SpecError(f"count must be at most 1e9, not {self.count!r}.")
        if not isinstance(self.monotone, bool):
            raise SpecError(f"monotone must be true or false, not {self.monotone!r}.")

    def clip(self, rows: Rows, bound: float) -> Bounded:
        """Clip each unit's contribution to the answers to a row within [-bound, bound], or [0, bound] if monotone."""
        return clip_units(rows, bound, self.monotone)

    def above(self, rows: Bounded, threshold: float | Sequence[float], rng: RowStream) -> torch.Tensor:
        """Return 1 (above), 0 (below) or -1 (not answered any more) for each answer [rows, queries].

        The threshold, either one for all queries or one per query, is public.
        """
        answers = checked(rows, "sparse-vector", self.monotone)
        level = self._threshold(threshold, answers.shape[1])
        line, query = self.scales(rows.bound)
        noise = laplace_noise(rng, 1 + answers.shape[1])
        up = answers + query * noise[:, 1:] >= level + line * noise[:, :1]
        asked = np.cumsum(up, axis=1) - up < self.count
        return torch.from_numpy(np.where(asked, up, STOPPED).astype(np.int64)).to(rows.value.device)

    def event(self) -> Event:
        """Return the event of one pass over all queries."""
        return SparseVectorEvent(self.epsilon)

    def scales(self, bound: float) -> tuple[float, float]:
        """Return the noise scales of the threshold and of each query."""
        check.positive(bound=bound)
        sides = self.count if self.monotone else 2 * self.count
        e1 = self.epsilon / (1 + sides ** (2 / 3))
        return bound / e1, sides * bound / (self.epsilon - e1)

    def probability(
        self, pattern: Sequence[int], answers: ArrayLike, threshold: float | Sequence[float], bound: float
    ) -> float:
        """Return the probability of one row of `above`, by quadrature over the threshold's noise.

        This is meant for audits.
        """
        out, true = np.asarray(pattern), np.asarray(answers, dtype=np.float64)
        before = np.cumsum(out == ABOVE) - (out == ABOVE)
        if (
            len(out) != len(true)
            or (before >= self.count)[out != STOPPED].any()
            or (before < self.count)[out == STOPPED].any()
        ):
            return 0.0  # it stops after exactly `count` answers above
        line, query = self.scales(bound)
        gap = self._threshold(threshold, len(true)) - true
        bends = np.append(-gap, 0.0)
        step = min(line, query)
        edges = np.unique(np.append(np.arange(bends.min() - 45 * line, bends.max() + 45 * line, step), bends))
        nodes, weights = np.polynomial.legendre.leggauss(12)
        half = np.diff(edges)[:, None] / 2
        z = (edges[:-1, None] + half * (1 + nodes)).ravel()
        under = Laplace(query).cdf(gap[:, None] + z, 1.0)  # [queries, nodes]: probability that the query stays below
        over = Laplace(query).cdf(-gap[:, None] - z, 1.0)
        each = np.where((out == ABOVE)[:, None], over, np.where((out == BELOW)[:, None], under, 1.0))
        return float((half * weights).ravel() @ (each.prod(axis=0) * Laplace(line).density(z, 1.0)))

    def _threshold(self, threshold: float | Sequence[float], queries: int) -> Floats:
        try:
            level = np.broadcast_to(np.asarray(threshold, dtype=np.float64), (queries,))
        except (TypeError, ValueError):
            raise SpecError(f"sparse-vector needs one threshold, or one for each of {queries} queries.") from None
        if not np.isfinite(level).all():
            raise SpecError(f"a threshold must be a finite number, not {threshold!r}.")
        return level
