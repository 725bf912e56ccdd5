"""Correlated noise across rounds from a banded matrix: Choquette-Choo et al. (2023), arXiv:2306.08153, DP-FTRL.

The running sums are A x, where A is the lower triangular matrix of ones. Factor A = B C and release C x + z Z with Z
standard normal. This is one Gaussian release, and A x + z A C^{-1} Z is a function of it, so round t adds row t of
z C^{-1} Z. C is lower triangular Toeplitz with b bands. Its coefficients are the first ones of the square root of A,
binom(2k, k) / 4^k (Fichtenberger, Henzinger, Upadhyay 2022, arXiv:2202.11205; banded: Kalinin, Lampert 2024,
arXiv:2405.13763), scaled so that the columns have norm one.

Sensitivity: two columns of C that are b or more apart share no row, so a unit whose participations are at least b
rounds apart (b-min-sep participation in Choquette-Choo et al.) changes C x by sqrt(k) column norms. The coefficients
decrease, so the zeros of their polynomial lie outside the unit disc (Enestrom, Kakeya) and the recurrence is stable.
Rounds may depend on earlier sums, because C is lower triangular (Denisov et al. 2022, arXiv:2202.08312). The bound on
the rows must be the same in every round, and so must the key: a run that continues under another key is a second run,
and its event must be paid again.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sordino.core import check
from sordino.core.errors import SpecError
from sordino.core.rng import RowStream
from sordino.core.types import Rows
from sordino.privacy.clip import Bounded
from sordino.privacy.events import Event, GaussianEvent
from sordino.privacy.release import Use

__all__ = ["Banded"]

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Banded:
    """Add noise z C^{-1} Z, scaled by the clip bound, across the rounds; the event covers all rounds together."""

    noise_multiplier: float  # z: standard deviation of the noise on C x over the clip bound
    rounds: int  # T: number of rounds
    bands: int  # b: bands of C; participations of one unit are at least this many rounds apart
    participations: int = 1  # k: maximum number of rounds in which one unit participates

    correlated: ClassVar[bool] = True  # noise comes from the stream of the run and depends on the round
    geometry: ClassVar[str] = "L2"
    exact: ClassVar[bool] = False
    calibrated: ClassVar[str] = "noise_multiplier"

    def __post_init__(self) -> None:
        check.positive(noise_multiplier=self.noise_multiplier)
        check.count(rounds=self.rounds, bands=self.bands, participations=self.participations)
        if self.bands > self.rounds:
            raise SpecError(f"bands must not exceed the {self.rounds} rounds, not {self.bands}.")

    def coefficients(self) -> Floats:
        """Return the first column of C [bands], which has norm one."""
        return _coefficients(self.bands)

    def sensitivity(self) -> float:
        """Return the L2 sensitivity of C x in units of the bound on a row; columns of C have norm at most one."""
        return math.sqrt(min(self.participations, -(-self.rounds // self.bands)))

    def event(self, split: int = 1) -> Event:
        """Return the event of the whole run: one Gaussian release with mu = sensitivity / noise_multiplier."""
        return GaussianEvent(self.noise_multiplier / self.sensitivity())

    def add(self, rows: Bounded, step: int, rng: RowStream) -> Rows:
        """Return the sum of round `step` (counted from 0) with its noise."""
        rows.require(2, "banded")
        return rows.value + rows.bound * self.noise(step, rows.value.shape[1], rng, rows.value)

    def apply(self, x: Bounded, rng: RowStream, use: Use) -> Rows:
        """Return the sum of the round with its noise; `rng` is the stream of the run."""
        return self.add(x, use.round, rng)

    def noise(self, step: int, dim: int, rng: RowStream, like: Tensor) -> Tensor:
        """Return the noise that round `step` adds, in units of the bound.

        The noise is recomputed from scratch, which draws `step` + 1 vectors again; over consecutive rounds, `stream` is
        cheaper. `rng` is the stream of the run, the same in every round.
        """
        if isinstance(step, bool) or not isinstance(step, int) or not 0 <= step < self.rounds:
            last = self.rounds - 1
            raise SpecError(
                f"step must be a whole number from 0 to {last}, not {step!r}: noise was planned only so far."
            )
        inverse = self._inverse()
        out = torch.zeros(len(rng.ids), dim, dtype=like.dtype, device=like.device)
        for t in range(step + 1):
            out += float(inverse[step - t]) * rng.at("round", t).normal(dim, like=like)
        return self.noise_multiplier * out

    def stream(self, dim: int, rng: RowStream, like: Tensor) -> Iterator[Tensor]:
        """Yield the noise of rounds 0, 1, ...: c_0 y_t = z Z_t - sum_k c_k y_{t-k}.

        The recurrence stores b - 1 vectors.
        """
        c = [float(v) for v in self.coefficients()]
        past: deque[Tensor] = deque(maxlen=self.bands - 1)
        for t in range(self.rounds):
            y = self.noise_multiplier * rng.at("round", t).normal(dim, like=like)
            for k, old in enumerate(past, start=1):
                y = y - c[k] * old
            y = y / c[0]
            past.appendleft(y)
            yield y

    def covariance(self) -> Floats:
        """Return the covariance of one coordinate of the noise in the running sums [rounds, rounds]: z^2 B B^T."""
        row = np.cumsum(self._inverse())
        index = np.subtract.outer(np.arange(self.rounds), np.arange(self.rounds))
        b = np.where(index >= 0, row[index], 0.0)
        return np.asarray(self.noise_multiplier**2 * b @ b.T)

    def mean_squared_error(self) -> float:
        """Return the mean squared error of one coordinate of a running sum, averaged over the rounds.

        It is in units of the squared bound.
        """
        squares = np.cumsum(self._inverse()) ** 2
        return float(self.noise_multiplier**2 * np.cumsum(squares).mean())

    def _inverse(self) -> Floats:
        return _inverse(self.bands, self.rounds)


@lru_cache(maxsize=16)
def _coefficients(bands: int) -> Floats:
    k = np.arange(1, bands)
    c = np.cumprod(np.concatenate([[1.0], (2 * k - 1) / (2 * k)]))
    c /= np.linalg.norm(c)
    c.setflags(write=False)
    return c


@lru_cache(maxsize=16)
def _inverse(bands: int, rounds: int) -> Floats:
    """Return the first column of C^{-1} [rounds]."""
    c, out = _coefficients(bands), np.zeros(rounds)
    for t in range(rounds):
        k = min(t, bands - 1)
        out[t] = ((t == 0) - c[1 : k + 1] @ out[t - k : t][::-1]) / c[0]
    out.setflags(write=False)
    return out
