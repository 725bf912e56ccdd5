"""Unary encoding of k categories: one noisy bit for each.  Wang et al. (2017), "Locally differentially private
protocols for frequency estimation", Sections 4.2 and 4.3; symmetric: basic one-time RAPPOR, Erlingsson et al.
(2014).

The bit of the true category is 1 with probability p, the other bits with probability q; two inputs differ in two bits,
so eps = ln(p (1 - q) / (q (1 - p))). Optimized (OUE): p = 1/2, q = 1/(e^eps + 1). Symmetric (SUE): p = 1 - q =
e^{eps/2}/(e^{eps/2} + 1).
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit

from sordino.core.errors import DataError, SpecError
from sordino.core.rng import RowStream
from sordino.privacy.events import Event
from sordino.privacy.mechanisms.generalized_rr import debias, domain, share_variance
from sordino.privacy.mechanisms.randomized_response import (
    Floats,
    ThreeLosses,
    array,
    categories,
    category,
    coins,
    level,
)

__all__ = ["UnaryEncoding"]

Bits = NDArray[np.uint8]


@dataclass(frozen=True)
class UnaryEncodingEvent(ThreeLosses, Event):
    """One report in unary encoding."""

    epsilon: float
    optimized: bool

    def __post_init__(self) -> None:
        level(self.epsilon)
        switch(self.optimized)

    def mass(self) -> float:  # the true bit is 1 and the other input's bit is 0: p (1 - q)
        p, _, true_zero = chances(self.epsilon, self.optimized)
        return p * true_zero


@dataclass(frozen=True)
class UnaryEncoding:
    """Report k bits: the bit of the true category is 1 with probability p, every other bit with probability q < p."""

    epsilon: float  # epsilon of one report (pure DP)
    categories: int  # k: number of categories; values are 0 to k - 1
    optimized: bool = True  # true: OUE, with the smallest variance for rare categories; false: symmetric (SUE)

    geometry: ClassVar[str] = "one value a report"
    exact: ClassVar[bool] = True
    calibrated: ClassVar[str] = "epsilon"

    def __post_init__(self) -> None:
        level(self.epsilon)
        domain(self.categories)
        switch(self.optimized)

    @property
    def p(self) -> float:
        """The probability that the bit of the true category is 1."""
        return chances(self.epsilon, self.optimized)[0]

    @property
    def q(self) -> float:
        """The probability that the bit of another category is 1."""
        return chances(self.epsilon, self.optimized)[1]

    def randomize(self, values: ArrayLike, rng: RowStream) -> Bits:
        """Return one report for each value [n, k]."""
        true = categories(values, self.categories, rng)
        words = rng.words(self.categories)
        bits = coins(words, self.q)
        rows = np.arange(len(true))
        bits[rows, true] = ~coins(words[rows, true], 0.5 if self.optimized else self.q)  # 1 - p
        return bits.astype(np.uint8)  # [n, k]

    def probabilities(self, value: int) -> Floats:
        """Return the probability that each bit is 1 [k]; given the value, bits are independent."""
        out = np.full(self.categories, self.q)
        out[category(value, self.categories)] = self.p
        return out

    def estimate(self, reports: ArrayLike) -> Floats:
        """Return the unbiased estimate of the frequency of every category [k]."""
        return debias(bit_rows(reports, self.categories).mean(axis=0), self.p, self.q)

    def variance(self, frequency: float = 0.0, n: int = 1) -> float:
        """Return the variance of an estimated frequency from n fixed values.

        For OUE at frequency 0 it is 4 e^eps / (n (e^eps - 1)^2).
        """
        return share_variance(self.p, self.q, frequency, n)

    def event(self) -> Event:
        """Return the event of one report."""
        return UnaryEncodingEvent(self.epsilon, self.optimized)


def chances(epsilon: float, optimized: bool) -> tuple[float, float, float]:
    """Return p, q and 1 - q."""
    if optimized:
        return 0.5, float(expit(-epsilon)), float(expit(epsilon))
    p = float(expit(epsilon / 2))
    return p, float(expit(-epsilon / 2)), p


def switch(optimized: object) -> None:
    """Check that `optimized` is a bool."""
    if not isinstance(optimized, bool):
        raise SpecError(f"optimized must be true or false, not {optimized!r}.")


def bit_rows(reports: ArrayLike, width: int) -> NDArray[np.uint8]:
    """Check reports of `width` bits each and return them as an array [n, width]."""
    data = array(reports, None)
    if data.ndim != 2 or data.shape[1] != width or data.dtype.kind not in "biu" or not np.isin(data, (0, 1)).all():
        raise DataError(f"reports are rows of {width} bits; found {data.dtype} of shape {data.shape}.")
    return data.astype(np.uint8)
