"""One bit per user for the mean of numbers in [0, m].  Ding, Kulkarni, Yekhanin (2017), "Collecting telemetry data
privately", arXiv:1712.01524 (El Ouadrhiri and Abdelhadi, Eq. 26 and 27, correct for all of [0, m]).

The bit is 1 with probability 1/(e^eps + 1) + x/m (e^eps - 1)/(e^eps + 1).

Memoised (`levels` s > 0): each client draws once a threshold alpha, which rounds x to one of the points 0, m/s, ..., m
with mean x, and once a bit for every point; it always answers with the bit of its current point. What this guarantees:
any number of reports of a value that does not change cost as much as one report, eps. Two sequences of values whose
rounded points change at the same times and pass through c points are c eps apart (their bits are independent). The time
at which the point changes is not hidden: an answer that changes shows that the value did. The paper flips answers again
to hide this; that is not implemented here.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import expit

from sordino.core import check
from sordino.core.errors import SpecError
from sordino.core.rng import RowStream
from sordino.privacy.events import Event, Repeated
from sordino.privacy.mechanisms.duchi import coordinate, numbers
from sordino.privacy.mechanisms.harmony import tilted
from sordino.privacy.mechanisms.randomized_response import Floats, Ints, categories, level

__all__ = ["OneBitMean"]


@dataclass(frozen=True)
class OneBitMeanEvent(Event):
    """One report of one bit."""

    replaces: ClassVar[bool] = True
    epsilon: float

    def __post_init__(self) -> None:
        level(self.epsilon)

    def pure(self) -> float:
        return self.epsilon


@dataclass(frozen=True)
class OneBitMean:
    """Report one bit that is more likely to be 1 for larger values."""

    epsilon: float  # epsilon of one report (pure DP); if memoised, of all reports of an unchanged value
    top: float = 1.0  # m: values lie in [0, m]
    levels: int = 0  # s: memoise one bit for each of s + 1 points; 0: draw a fresh bit for every report

    geometry: ClassVar[str] = "one value a report"
    exact: ClassVar[bool] = True
    calibrated: ClassVar[str] = "epsilon"

    def __post_init__(self) -> None:
        level(self.epsilon)
        check.positive(top=self.top)
        if self.levels != 0 or isinstance(self.levels, bool):
            check.count(levels=self.levels)

    def randomize(self, values: ArrayLike, rng: RowStream, memory: RowStream | None = None) -> Ints:
        """Return one bit for each value [n].

        Args:
            values: numbers, clamped to [0, m], one per client.
            rng: stream of fresh randomness.
            memory: the clients' permanent stream, which never changes; needed if and only if `levels` > 0, and only the
                memoised threshold and bits are drawn from it.
        """
        x = numbers(values, 1, rng, 0.0, self.top)[:, 0] / self.top
        if (memory is not None) != (self.levels > 0):
            raise SpecError(f"levels={self.levels}: give a memory if bits are memoised, and only then.")
        if memory is None:
            words = rng.words(1)[:, 0]
        else:
            if not np.array_equal(memory.ids, rng.ids):
                raise SpecError("memory and rng belong to different clients.")
            point = np.floor(x * self.levels + memory.at("alpha").uniform(1)[:, 0]).astype(np.int64)
            point = np.minimum(point, self.levels)
            words, x = memory.at("bits").words(self.levels + 1)[np.arange(len(x)), point], point / self.levels
        return (tilted(words, 2 * x - 1, self.epsilon) > 0).astype(np.int64)

    def probabilities(self, value: float) -> Floats:
        """Return the probabilities of the reports 0 and 1, memoised or not."""
        tilt = (2 * coordinate(value, 0.0, self.top) / self.top - 1) * math.tanh(self.epsilon / 2)
        return np.array([1 - tilt, 1 + tilt]) / 2

    def estimate(self, reports: ArrayLike) -> float:
        """Return the unbiased estimate of the mean."""
        share = float(np.mean(categories(reports, 2)))
        return self.top * (share - float(expit(-self.epsilon))) / math.tanh(self.epsilon / 2)

    def variance(self, value: float, n: int = 1) -> float:
        """Return the variance of the estimate from n users who all hold this value.

        It is m^2 P(0) P(1) ((e^eps + 1)/(e^eps - 1))^2 / n.
        """
        check.count(n=n)
        no, yes = (float(p) for p in self.probabilities(value))
        return self.top * self.top * no * yes / math.tanh(self.epsilon / 2) ** 2 / n

    def event(self, reports: int = 1) -> Event:
        """Return the event of `reports` reports of a value that does not change."""
        check.count(reports=reports)
        single = OneBitMeanEvent(self.epsilon)
        return single if self.levels > 0 or reports == 1 else Repeated(single, reports)
