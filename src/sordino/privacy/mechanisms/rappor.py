"""RAPPOR: a Bloom filter, randomised once permanently and again for every report.  Erlingsson, Pihur, Korolova (2014),
arXiv:1407.6981.

An item sets h of m bits by public hash functions, which differ between cohorts of clients. Permanent: a bit is replaced
by a fair coin with probability f, and the outcome B' is kept. Instantaneous: a report's bit is 1 with probability q
where B' is 1, and with probability p where it is 0. (El Ouadrhiri and Abdelhadi, Eq. 28, print p for f; in Fu et al.
hashes map to [k] instead of the m bits.)

Epsilon: any number of reports of one item cost eps_inf = 2 h ln((1 - f/2)/(f/2)) (Theorem 1), one report costs eps_1
(Theorem 2), and exactly R reports cost h (g(R ln(q/p)) + g(R ln((1-p)/(1-q)))), where g(t) = ln(((1-f/2) e^t +
f/2)/((f/2) e^t + 1 - f/2)); this is eps_1 for R = 1 and tends to eps_inf. An item that changes has other permanent
bits: two sequences of items that change at the same times and pass through c different items are at most c eps_inf
apart. The time at which an item changes is not hidden, because reports of one item share B'.
"""

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sordino.core import check
from sordino.core.errors import DataError, SpecError
from sordino.core.rng import RowStream
from sordino.privacy.events import Event
from sordino.privacy.mechanisms.count_mean_sketch import ITEMS, hashed, public_seed, sum_rows
from sordino.privacy.mechanisms.generalized_rr import debias, share_variance
from sordino.privacy.mechanisms.randomized_response import Floats, Ints, categories, category, coins
from sordino.privacy.mechanisms.unary_encoding import bit_rows

__all__ = ["Rappor"]


@dataclass(frozen=True)
class RapporEvent(Event):
    """A number of reports of the same item, with the same permanent bits."""

    replaces: ClassVar[bool] = True
    hashes: int
    blur: float  # f
    low: float  # p
    high: float  # q
    reports: int = 1  # number of reports of the same item

    def __post_init__(self) -> None:
        check.count(hashes=self.hashes, reports=self.reports)
        noise(self.blur, self.low, self.high)

    def pure(self) -> float:
        """Return the epsilon of exactly this many reports of one item."""
        times = min(self.reports, 2**53)
        ones = times * (math.log(self.high / self.low) if self.low > 0 else math.inf)
        zeros = times * (math.log((1 - self.low) / (1 - self.high)) if self.high < 1 else math.inf)
        return self.hashes * (self._seen(ones) + self._seen(zeros))

    def _seen(self, t: float) -> float:
        """Return g(t): what a log ratio of t about a permanent bit reveals about the true bit."""
        less, flip = math.exp(-t), self.blur / 2
        return math.log(((1 - flip) + flip * less) / (flip + (1 - flip) * less))


@dataclass(frozen=True)
class Rappor:
    """Report a Bloom filter of the item, randomised permanently and instantaneously."""

    bits: int = 128  # m: number of bits in a report
    hashes: int = 2  # h: number of hash functions of a Bloom filter
    cohorts: int = 8  # number of client groups, each with different hash functions
    blur: float = 0.5  # f: probability that a permanent bit is a fair coin
    low: float = 0.5  # p: probability of a reported 1 where the permanent bit is 0
    high: float = 0.75  # q: probability of a reported 1 where the permanent bit is 1
    seed: int = 0  # public seed of the hash functions

    geometry: ClassVar[str] = "one value a report"
    exact: ClassVar[bool] = True
    calibrated: ClassVar[str] = "blur"

    def __post_init__(self) -> None:
        check.count(bits=self.bits, hashes=self.hashes, cohorts=self.cohorts)
        if max(self.bits, self.hashes, self.cohorts) > 2**20:
            raise SpecError("bits, hashes and cohorts must be at most 2^20 each.")
        noise(self.blur, self.low, self.high)
        public_seed(self.seed)

    @property
    def truth(self) -> tuple[float, float]:
        """p* and q*: the probability of a reported 1 where the true bit is 0 and where it is 1."""
        shared, unchanged = self.blur / 2 * (self.low + self.high), 1 - self.blur
        return shared + unchanged * self.low, shared + unchanged * self.high

    def cohort(self, ids: Ints) -> Ints:
        """Return the public cohort of each client."""
        return np.asarray(ids, dtype=np.int64) % self.cohorts

    def bloom(self, items: Ints, cohort: Ints) -> NDArray[np.bool_]:
        """Return the true bits of the Bloom filters [n, m]."""
        out = np.zeros((len(items), self.bits), dtype=bool)
        for h in range(self.hashes):
            out[np.arange(len(items)), hashed(items, cohort * self.hashes + h, self.bits, self.seed)] = True
        return out

    def randomize(self, values: ArrayLike, rng: RowStream, memory: RowStream | None = None) -> NDArray[np.uint8]:
        """Return one report for each item [n, m].

        Args:
            values: items, whole numbers from 0 to 2^63 - 1, one per client.
            rng: stream of fresh randomness.
            memory: the clients' permanent stream, which never changes, so that the same item has the same permanent
                bits. Without it they are drawn afresh, and every further report is a further `event()`.
        """
        items = categories(values, ITEMS, rng)
        memory = rng.at("permanent") if memory is None else memory
        if not np.array_equal(memory.ids, rng.ids):
            raise SpecError("memory and rng belong to different clients.")
        permanent = self.bloom(items, self.cohort(rng.ids))
        order, (distinct, starts) = np.argsort(items, kind="stable"), np.unique(np.sort(items), return_index=True)
        for item, rows in zip(distinct.tolist(), np.split(order, starts[1:]), strict=True):
            words = replace(memory.at("item", item), ids=memory.ids[rows]).words(self.bits)
            permanent[rows] ^= coins(
                words, self.blur / 2
            )  # a fair coin with probability f: flipped with probability f/2
        words = rng.at("report").words(self.bits)
        return np.where(permanent, ~coins(words, 1 - self.high), coins(words, self.low)).astype(np.uint8)  # [n, m]

    def probabilities(self, value: int, cohort: int = 0) -> Floats:
        """Return the probability that each bit of one report is 1 [m]; given the item, bits are independent."""
        true = self.bloom(np.array([category(value, ITEMS)]), np.array([category(cohort, self.cohorts)]))[0]
        return np.where(true, self.truth[1], self.truth[0])

    def bit_shares(self, reports: ArrayLike, cohort: ArrayLike) -> Floats:
        """Return the unbiased estimate of the fraction of clients in each cohort whose true bit is 1 [cohorts, m].

        The paper calls it t_ij / N_j.
        """
        seen, group = bit_rows(reports, self.bits), categories(cohort, self.cohorts)
        count = np.bincount(group, minlength=self.cohorts)
        if len(group) != len(seen) or not count.all():
            raise DataError(f"every report needs its cohort, and each of {self.cohorts} cohorts needs some reports.")
        sums = sum_rows(seen, group, self.cohorts)
        low, high = self.truth
        return debias(sums / count[:, None], high, low)

    def estimate(self, reports: ArrayLike, cohort: ArrayLike, items: ArrayLike) -> Floats:
        """Return the estimated frequency of each candidate item, by least squares on the bit shares.

        It is unbiased if no item is missing from the list and clients are assigned to cohorts at random. The paper
        first selects candidates by a lasso, which is not done here.
        """
        asked = categories(items, ITEMS)
        filters = [self.bloom(asked, np.full(len(asked), c)).T for c in range(self.cohorts)]
        design = np.concatenate(filters).astype(np.float64)  # [cohorts m, items]
        frequencies, _, rank, _ = np.linalg.lstsq(design, self.bit_shares(reports, cohort).ravel(), rcond=None)
        if rank < len(asked):
            raise SpecError(
                f"{len(asked)} candidates cannot be told apart; use more bits, more cohorts or a shorter list."
            )
        return np.asarray(frequencies)

    def variance(self, share: float = 0.0, n: int = 1) -> float:
        """Return the variance of one bit share, from one report of each of n clients."""
        return share_variance(self.truth[1], self.truth[0], share, n)

    def event(self, reports: int = 1) -> Event:
        """Return the event of `reports` reports of the same item, with a memory."""
        return RapporEvent(self.hashes, self.blur, self.low, self.high, reports)

    def permanent(self) -> Event:
        """Return the event of any number of reports of the same item, and of the permanent bits themselves: eps_inf."""
        return RapporEvent(self.hashes, self.blur, 0.0, 1.0)


def noise(blur: float, low: float, high: float) -> None:
    """Check the probabilities f, p and q."""
    check.below_one(f=blur)
    check.non_negative(low=low)
    check.probability(high=high)
    if low >= high:
        raise SpecError(f"low must be below high, the chance of a 1 where the bit is 1; found {low!r} and {high!r}.")
