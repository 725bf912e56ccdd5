"""dBitFlip: a histogram of k buckets from d bits per user.  Ding, Kulkarni, Yekhanin (2017), "Collecting telemetry data
privately", arXiv:1712.01524, Section 2.2 (El Ouadrhiri and Abdelhadi, Section IV-B, mention it without a formula).

Each user is assigned d of the k buckets publicly (by the seed and the client's id, never by the value) and sends for
each of them one bit, "is my value in this bucket?", flipped with probability 1/(1 + e^{eps/2}).

Epsilon: at most one of the d true answers is yes, so two values differ in at most two answers, one for each value. A
bit has a loss of at most eps/2 and bits are independent, which gives eps in total, attained by users who are assigned
both buckets. With d = 1 only one answer can differ, and its bit gets all of eps; the paper leaves it at eps/2, which is
eps/2-DP.

Memoised: each client draws d bits once for each of its d + 1 states (the value is in its first bucket, ..., in none of
them) and always answers with the bits of its current state. What this guarantees: any number of reports of a value that
does not change cost as much as one report, eps. Two sequences of values whose states change at the same times and pass
through c states are c eps apart (bits of different states are independent), and there are only d + 1 states. What it
does not guarantee: the time at which the state changes is not hidden, because an answer that changes shows that the
value did. The paper flips answers again to hide this (Section 3); that is not implemented here.
"""

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit

from sordino.core import check
from sordino.core.errors import DataError, SpecError
from sordino.core.rng import RowStream
from sordino.privacy.events import Event, Repeated
from sordino.privacy.mechanisms.count_mean_sketch import hashed, public_seed
from sordino.privacy.mechanisms.generalized_rr import domain
from sordino.privacy.mechanisms.randomized_response import (
    Floats,
    Ints,
    ThreeLosses,
    array,
    categories,
    category,
    coins,
    level,
)
from sordino.privacy.mechanisms.unary_encoding import bit_rows

__all__ = ["DBitFlip"]


@dataclass(frozen=True)
class DBitFlipEvent(ThreeLosses, Event):
    """One report of dBitFlip with `bits` bits."""

    epsilon: float
    bits: int

    def __post_init__(self) -> None:
        level(self.epsilon)
        check.count(bits=self.bits)

    def mass(self) -> float:  # every bit that differs is true; a user with only one of the two buckets reveals less
        differ = min(2, self.bits)
        return float(expit(self.epsilon / differ)) ** differ


@dataclass(frozen=True)
class DBitFlip:
    """Report for each of d assigned buckets whether the value is in it, each bit flipped with a small probability."""

    epsilon: float  # epsilon of one report (pure DP); if memoised, of all reports of an unchanged value
    categories: int  # k: number of buckets; values are 0 to k - 1
    bits: int  # d: number of buckets assigned to a user, and of bits in a report
    memoised: bool = False  # answer with the same bits as long as the value does not change
    seed: int = 0  # public seed of the assignment

    geometry: ClassVar[str] = "one value a report"
    exact: ClassVar[bool] = True
    calibrated: ClassVar[str] = "epsilon"

    def __post_init__(self) -> None:
        level(self.epsilon)
        domain(self.categories)
        check.count(bits=self.bits)
        if self.bits > self.categories:
            raise SpecError(f"a user cannot be assigned {self.bits} of {self.categories} buckets.")
        if not isinstance(self.memoised, bool):
            raise SpecError(f"memoised must be true or false, not {self.memoised!r}.")
        public_seed(self.seed)

    @property
    def step(self) -> float:
        """The epsilon of one bit."""
        return self.epsilon / min(2, self.bits)

    def assigned(self, ids: ArrayLike) -> Ints:
        """Return the buckets assigned to each client [n, d], in increasing order.

        All sets of d buckets are equally likely (Floyd's algorithm: Bentley, Floyd 1987).
        """
        who = clients(ids)
        out = np.empty((len(who), self.bits), dtype=np.int64)
        for j in range(self.bits):
            last = self.categories - self.bits + j
            drawn = hashed(np.array([j]), who, last + 1, self.seed)
            out[:, j] = np.where((out[:, :j] == drawn[:, None]).any(axis=1), last, drawn)
        return np.sort(out, axis=1)

    def randomize(self, values: ArrayLike, rng: RowStream, memory: RowStream | None = None) -> NDArray[np.uint8]:
        """Return one report for each value [n, d].

        Args:
            values: buckets from 0 to k - 1, one per client.
            rng: stream of fresh randomness.
            memory: the clients' permanent stream, which never changes; needed if and only if `memoised` is set, and
                only the memoised bits are drawn from it.
        """
        true = categories(values, self.categories, rng)
        if (memory is not None) != self.memoised:
            raise SpecError(f"memoised={self.memoised}: give a memory if bits are memoised, and only then.")
        yes = self.assigned(rng.ids) == true[:, None]  # [n, d]: at most one true entry per row
        if memory is None:
            words = rng.words(self.bits)
        else:
            if not np.array_equal(memory.ids, rng.ids):
                raise SpecError("memory and rng belong to different clients.")
            state = np.where(yes.any(axis=1), yes.argmax(axis=1), self.bits)
            words = np.empty(yes.shape, dtype=np.uint64)
            for s in np.unique(state).tolist():
                rows = state == s
                words[rows] = replace(memory.at("state", s), ids=memory.ids[rows]).words(self.bits)
        return np.asarray(yes ^ coins(words, float(expit(-self.step))), dtype=np.uint8)

    def probabilities(self, value: int, client: int = 0) -> Floats:
        """Return the probability that each bit of a client's report is 1 [d], memoised or not.

        Given the value, bits are independent.
        """
        yes = self.assigned([client])[0] == category(value, self.categories)
        return np.asarray(np.where(yes, expit(self.step), expit(-self.step)), dtype=np.float64)

    def estimate(self, reports: ArrayLike, ids: ArrayLike) -> Floats:
        """Return the estimated frequency of every bucket [k], unbiased over assignments.

        It is k/(n d) times a sum over the clients assigned to the bucket.
        """
        seen, who = bit_rows(reports, self.bits), clients(ids)
        if len(who) != len(seen) or len(np.unique(who)) != len(who):
            raise DataError(f"{len(seen)} reports need as many client ids, all different; found {len(who)}.")
        true = (seen - float(expit(-self.step))) / math.tanh(self.step / 2)
        sums = np.bincount(self.assigned(who).ravel(), weights=true.ravel(), minlength=self.categories)
        return np.asarray(sums * self.categories / (len(seen) * self.bits))

    def variance(self, frequency: float = 0.0, n: int = 1) -> float:
        """Return the variance of an estimated frequency from n fixed values: (k/d s + f (k/d - 1)) / n.

        The variance is over noise and assignments. s = e^a / (e^a - 1)^2 is the variance of one bit with epsilon a: a
        user counts with probability d/k, and then k/d times.
        """
        check.count(n=n)
        check.non_negative(frequency=frequency)
        if frequency > 1:
            raise SpecError(f"frequency is a share of the users, at most 1, not {frequency!r}.")
        bit, times = 1 / (4 * math.sinh(self.step / 2) ** 2), self.categories / self.bits
        return (times * bit + frequency * (times - 1)) / n

    def event(self, reports: int = 1) -> Event:
        """Return the event of `reports` reports of a value that does not change."""
        check.count(reports=reports)
        single = DBitFlipEvent(self.epsilon, self.bits)
        return single if self.memoised or reports == 1 else Repeated(single, reports)


def clients(ids: ArrayLike) -> Ints:
    """Check client ids and return them as an array [n]."""
    data = ids if isinstance(ids, np.ndarray) else array(ids, None)  # a round may have no clients
    if data.ndim != 1 or data.dtype.kind not in "iu":
        raise DataError(f"client ids are a list of whole numbers, not {data.dtype} of shape {data.shape}.")
    return data.astype(np.int64)
