"""Randomized response on one bit.  Warner (1965); as a local randomizer: Kasiviswanathan et al. (2011), Kairouz et al.
(2016).

The user is protected from everyone who sees the report; the neighbouring relation is "replace the value". The true bit
is reported with probability e^eps / (1 + e^eps) (Fu et al., Eq. 12). El Ouadrhiri and Abdelhadi, Eq. 25, print 1/2 +
eps/4, whose epsilon is ln((2 + eps)/(2 - eps)) > eps.

Below the class are the parts that all local randomizers share: exact coins, checked categories, and the privacy loss
that most of them have, one of {-eps, 0, eps}.
"""

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit

from sordino.core import check
from sordino.core.errors import DataError, SpecError
from sordino.core.rng import RowStream
from sordino.privacy.events import Event
from sordino.privacy.pairs import Atoms, Pair

__all__ = ["RandomizedResponse"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
LOWEST, HIGHEST = 1e-6, 700.0  # limits on epsilon; beyond them float64 cannot represent e^eps - 1


@dataclass(frozen=True)
class RandomizedResponseEvent(Event):
    """One report of randomized response."""

    replaces: ClassVar[bool] = True
    epsilon: float

    def __post_init__(self) -> None:
        level(self.epsilon)

    def pure(self) -> float:
        return self.epsilon  # the default pair for pure DP is this mechanism itself


@dataclass(frozen=True)
class RandomizedResponse:
    """Report a bit, flipped with probability 1 / (1 + e^epsilon)."""

    epsilon: float  # epsilon of one report (pure DP)

    geometry: ClassVar[str] = "one value a report"
    exact: ClassVar[bool] = True
    calibrated: ClassVar[str] = "epsilon"

    def __post_init__(self) -> None:
        level(self.epsilon)

    def randomize(self, values: ArrayLike, rng: RowStream) -> Ints:
        """Return one reported bit for each value [n]."""
        bits = categories(values, 2, rng)  # [n]
        return bits ^ coins(rng.words(1)[:, 0], float(expit(-self.epsilon)))

    def probabilities(self, value: int) -> Floats:
        """Return the probabilities of the reports 0 and 1."""
        out = np.full(2, expit(-self.epsilon))
        out[category(value, 2)] = expit(self.epsilon)
        return out

    def estimate(self, reports: ArrayLike) -> float:
        """Return the unbiased estimate of the fraction of ones (Warner 1965; Fu et al., after Eq. 12)."""
        share = float(np.mean(categories(reports, 2)))
        return (share - float(expit(-self.epsilon))) / math.tanh(self.epsilon / 2)

    def variance(self, n: int = 1) -> float:
        """Return the variance of the estimate from n fixed values, whatever they are: e^eps / (n (e^eps - 1)^2)."""
        check.count(n=n)
        return 1 / (4 * math.sinh(self.epsilon / 2) ** 2 * n)

    def event(self) -> Event:
        """Return the event of one report."""
        return RandomizedResponseEvent(self.epsilon)


def level(epsilon: float) -> None:
    """Check the epsilon of a local report."""
    check.positive(epsilon=epsilon)
    if not LOWEST <= epsilon <= HIGHEST:
        raise SpecError(f"epsilon of a local report must lie in [{LOWEST:g}, {HIGHEST:g}], not {epsilon!r}.")


def coins(words: NDArray[np.uint64], p: float | Floats) -> NDArray[np.bool_]:
    """Return True with probability p, rounded up to a multiple of 2^-64.

    p is the probability of the less informative outcome, so rounding never increases epsilon, not even at e^-epsilon <
    2^-64.
    """
    chance = np.minimum(np.asarray(p, dtype=np.float64), 1 - 2.0**-53)
    return np.asarray(words < np.ceil(chance * 2.0**64).astype(np.uint64))


def categories(values: ArrayLike, size: int, rng: RowStream | None = None) -> Ints:
    """Return whole numbers from 0 to size - 1 [n]; anything else is refused.

    If `rng` is given, there must be one value per row of it.
    """
    data = array(values, rng)
    if data.ndim != 1 or data.dtype.kind not in ("biu" if size == 2 else "iu"):
        raise DataError(f"categories are a list of whole numbers, not {data.dtype} of shape {data.shape}.")
    bad = np.flatnonzero((data < 0) | (data >= size))
    if len(bad):
        raise DataError(
            f"row {bad[0]} lies outside the categories 0 to {size - 1}; there is no category to report it as."
        )
    return data.astype(np.int64)


def array(values: ArrayLike, rng: RowStream | None) -> NDArray[Any]:
    """Return values as an array; if `rng` is given, there must be one row per client, otherwise at least one."""
    try:
        data = np.asarray(values)
    except (ValueError, TypeError) as error:
        raise DataError("values must be rows of numbers of one length.") from error
    if rng is not None and (data.ndim == 0 or len(data) != len(rng.ids)):
        raise DataError(f"{len(rng.ids)} clients need one value each; found shape {data.shape}.")
    if rng is None and data.size == 0:
        raise DataError("there are no reports to estimate from.")
    return data


def category(value: int, size: int) -> int:
    """Return a single category, checked."""
    return int(categories([value], size)[0])


class ThreeLosses:
    """Privacy costs of a report made of `parts()` parts, each with a loss of epsilon / parts, 0 or -epsilon / parts.

    `mass` is the probability of the positive loss of a part, for the two inputs that are farthest apart; the negative
    loss then has probability mass * e^-(epsilon / parts), and the rest is 0. Inputs that are closer have the same
    losses with less mass, and mixtures have no more by joint convexity: the pair below dominates, and it is attained.
    """

    replaces: ClassVar[bool] = True
    epsilon: float

    def mass(self) -> float:
        """Return the probability of the positive loss of one part, for the two inputs farthest apart."""
        raise NotImplementedError

    def parts(self) -> int:
        """Return the number of parts of a report."""
        return 1

    def pure(self) -> float:
        """Return the epsilon of a report."""
        return self.epsilon

    def rho(self) -> float:
        """Return the zCDP parameter of a report."""
        return self.epsilon**2 / (2 * self.parts())

    def pair(self) -> Pair:
        """Return the dominating pair, which is attained."""
        step, mass, times = self.epsilon / self.parts(), self.mass(), self.parts()
        back = mass * math.exp(-step)
        part = np.array([back, max(0.0, 1 - mass - back), mass])
        probs = np.ones(1)
        for _ in range(times):
            probs = np.convolve(probs, part)
        return Atoms(step * np.arange(-times, times + 1), probs, probs[::-1], symmetric=True)

    def renyi(self, orders: Floats) -> Floats:
        """Return the exact Renyi divergences.

        They are parts / (a - 1) ln(1 + mass (e^((a-1) step) - 1) + mass e^-step (e^(-(a-1) step) - 1)), with step =
        epsilon / parts.
        """
        step, mass = self.epsilon / self.parts(), self.mass()
        rise = (orders - 1) * step
        small = np.minimum(rise, 1.0)
        near = np.log1p(mass * (np.expm1(small) + math.exp(-step) * np.expm1(-small)))
        rest = max(0.0, 1 - mass * (1 + math.exp(-step)))
        with np.errstate(divide="ignore"):
            far = np.logaddexp(math.log(mass) + rise, np.log(rest + mass * np.exp(-step - rise)))
        return np.asarray(self.parts() * np.where(rise < 1, near, far) / (orders - 1))
