"""Unary encoding of k categories: one noisy bit each.  Wang et al. (2017), "Locally differentially private protocols
for frequency estimation", Sections 4.2 and 4.3; symmetric: basic one-time RAPPOR, Erlingsson et al. (2014).

The bit of the true category is 1 with probability p, the others with q; two inputs differ in two bits, so that eps =
ln(p (1 - q) / (q (1 - p))). Optimized (OUE): p = 1/2, q = 1/(e^eps + 1). Symmetric (SUE): p = 1 - q =
e^{eps/2}/(e^{eps/2} + 1).
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit

from sordino.core.errors import DataError, SpecError
from sordino.core.rng import RowStream
from sordino.privacy.events import Event
from sordino.privacy.mechanisms.generalized_rr import debias, domain, share_variance
from sordino.privacy.mechanisms.randomized_response import Floats, ThreeLosses, array, categories, coins, level, one

__all__ = ["UnaryEncoding"]

Bits = NDArray[np.uint8]


@dataclass(frozen=True)
class UnaryEncodingEvent(ThreeLosses, Event):
    epsilon: float
    optimized: bool

    def __post_init__(self) -> None:
        level(self.epsilon)
        switch(self.optimized)

    def mass(self) -> float:  # own bit 1, the other's bit 0: p (1 - q)
        p, _, true_zero = chances(self.epsilon, self.optimized)
        return p * true_zero


@dataclass(frozen=True)
class UnaryEncoding:
    """Report k bits: the category's own is 1 with probability p, every other with q < p."""

    epsilon: float  # pure level of one report
    categories: int  # k: how many there are; values are 0 to k - 1
    optimized: bool = True  # OUE, with the least variance for rare categories; False: symmetric (SUE)

    def __post_init__(self) -> None:
        level(self.epsilon)
        domain(self.categories)
        switch(self.optimized)

    @property
    def p(self) -> float:
        return chances(self.epsilon, self.optimized)[0]

    @property
    def q(self) -> float:
        return chances(self.epsilon, self.optimized)[1]

    def randomize(self, values: ArrayLike, rng: RowStream) -> Bits:
        true = categories(values, self.categories, rng)
        words = rng.words(self.categories)
        bits = coins(words, self.q)
        rows = np.arange(len(true))
        bits[rows, true] = ~coins(words[rows, true], 0.5 if self.optimized else self.q)  # 1 - p
        return bits.astype(np.uint8)  # [n, k]

    def probabilities(self, value: int) -> Floats:
        """That each bit is 1 [k]; given the value, bits are independent."""
        out = np.full(self.categories, self.q)
        out[one(value, self.categories)] = self.p
        return out

    def estimate(self, reports: ArrayLike) -> Floats:
        """The share of every category [k]; unbiased."""
        return debias(bit_rows(reports, self.categories).mean(axis=0), self.p, self.q)

    def variance(self, frequency: float = 0.0, n: int = 1) -> float:
        """Of an estimated share from n given values; OUE at frequency 0: 4 e^eps / (n (e^eps - 1)^2)."""
        return share_variance(self.p, self.q, frequency, n)

    def event(self) -> Event:
        return UnaryEncodingEvent(self.epsilon, self.optimized)


def chances(epsilon: float, optimized: bool) -> tuple[float, float, float]:
    """p, q and 1 - q."""
    if optimized:
        return 0.5, float(expit(-epsilon)), float(expit(epsilon))
    p = float(expit(epsilon / 2))
    return p, float(expit(-epsilon / 2)), p


def switch(optimized: object) -> None:
    if not isinstance(optimized, bool):
        raise SpecError(f"optimized is true or false, not {optimized!r}.")


def bit_rows(reports: ArrayLike, width: int) -> NDArray[np.uint8]:
    """Reports of `width` bits each [n, width]."""
    found = array(reports, None)
    if found.ndim != 2 or found.shape[1] != width or found.dtype.kind not in "biu" or not np.isin(found, (0, 1)).all():
        raise DataError(f"reports are rows of {width} bits; found {found.dtype} of shape {found.shape}.")
    return found.astype(np.uint8)
