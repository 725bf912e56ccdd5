"""Generalized randomized response over k categories.  Kairouz, Bonawitz, Ramage (2016), arXiv:1602.07387; Wang et al.
(2017), "Locally differentially private protocols for frequency estimation", Section 4.1 (direct encoding).

The true category has probability p = e^eps / (e^eps + k - 1), and every other category q = 1 / (e^eps + k - 1). Fu et
al., Eq. 15, assign q to "v = 1 - x" only, which is not a distribution for k > 2.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike

from sordino.core import check
from sordino.core.errors import SpecError
from sordino.core.rng import RowStream
from sordino.privacy.events import Event
from sordino.privacy.mechanisms.randomized_response import Floats, Ints, ThreeLosses, categories, category, coins, level

__all__ = ["GeneralizedRR"]


@dataclass(frozen=True)
class GeneralizedRREvent(ThreeLosses, Event):
    """One report of generalized randomized response."""

    epsilon: float
    categories: int

    def __post_init__(self) -> None:
        level(self.epsilon)
        domain(self.categories)

    def mass(self) -> float:  # only the two inputs' categories are informative; the other k - 2 have loss 0
        return 1 / (1 + (self.categories - 1) * math.exp(-self.epsilon))


@dataclass(frozen=True)
class GeneralizedRR:
    """Report the true category, or with probability (k - 1) / (e^epsilon + k - 1) another one, uniformly."""

    epsilon: float  # epsilon of one report (pure DP)
    categories: int  # k: number of categories; values are 0 to k - 1

    geometry: ClassVar[str] = "one value a report"
    exact: ClassVar[bool] = True
    calibrated: ClassVar[str] = "epsilon"

    def __post_init__(self) -> None:
        level(self.epsilon)
        domain(self.categories)

    @property
    def truth(self) -> float:
        """The probability p of reporting the true category."""
        return 1 / (1 + (self.categories - 1) * math.exp(-self.epsilon))

    @property
    def other(self) -> float:
        """The probability q of reporting any given other category."""
        return math.exp(-self.epsilon) * self.truth

    def randomize(self, values: ArrayLike, rng: RowStream) -> Ints:
        """Return one reported category for each value [n]."""
        true = categories(values, self.categories, rng)  # [n]
        words = rng.words(2)
        lie = coins(words[:, 0], (self.categories - 1) * self.other)
        other = (words[:, 1] % np.uint64(self.categories - 1)).astype(np.int64)  # uniform up to 2^-64
        return np.where(lie, other + (other >= true), true)

    def probabilities(self, value: int) -> Floats:
        """Return the probability of reporting each category [k]."""
        out = np.full(self.categories, self.other)
        out[category(value, self.categories)] = self.truth
        return out

    def estimate(self, reports: ArrayLike) -> Floats:
        """Return the unbiased estimate of the frequency of every category [k] (Wang et al., Theorem 1)."""
        seen = categories(reports, self.categories)
        shares = np.bincount(seen, minlength=self.categories) / len(seen)
        return debias(shares, self.truth, self.other)

    def variance(self, frequency: float = 0.0, n: int = 1) -> float:
        """Return the variance of an estimated frequency from n fixed values (Wang et al., Theorem 2).

        At frequency 0 it is (k - 2 + e^eps) / (n (e^eps - 1)^2).
        """
        return share_variance(self.truth, self.other, frequency, n)

    def event(self) -> Event:
        """Return the event of one report."""
        return GeneralizedRREvent(self.epsilon, self.categories)


def domain(size: int) -> None:
    """Check the number of categories."""
    check.count(categories=size)
    if not 2 <= size <= 2**32:
        raise SpecError(f"categories must be from 2 to 2^32, not {size!r}.")


def debias(shares: Floats, p: float, q: float) -> Floats:
    """Return the true frequencies from the frequencies of reports that support each category.

    A user who holds a category supports it with probability p, any other user with probability q.
    """
    return np.asarray((shares - q) / (p - q))


def share_variance(p: float, q: float, frequency: float, n: int) -> float:
    """Return q (1 - q) / (n (p - q)^2) + f (1 - p - q) / (n (p - q)), the variance of an estimated frequency f.

    Users who hold the category contribute p (1 - p), others q (1 - q).
    """
    check.count(n=n)
    check.non_negative(frequency=frequency)
    if frequency > 1:
        raise SpecError(f"frequency is a share of the users, at most 1, not {frequency!r}.")
    return (q * (1 - q) / (p - q) ** 2 + frequency * (1 - p - q) / (p - q)) / n
