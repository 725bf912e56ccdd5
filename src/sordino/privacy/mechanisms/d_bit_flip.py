"""dBitFlip: a histogram of k buckets from d bits a user.  Ding, Kulkarni, Yekhanin (2017), "Collecting telemetry data
privately", arXiv:1712.01524, Section 2.2 (El Ouadrhiri and Abdelhadi, Section IV-B, name it without a formula).

Each user is assigned d of the k buckets, publicly (by the seed and the client's id, never by the value), and sends for
each of them "is my value in it?", flipped with probability 1/(1 + e^{eps/2}).

Level: of the d true answers at most one is yes, so that two values differ in at most two of them, one on each side. A
bit has a loss of at most eps/2, bits are independent: eps, reached by users who are assigned both buckets. With d = 1
only one answer can differ, and its bit gets all of eps; the paper leaves it at eps/2, which is eps/2-DP.

Memoised: each client draws once d bits for each of its d + 1 states (the value is in its first bucket, ..., in none)
and always answers with the bits of the state. What that promises: any number of reports of a value that stays the same
are as private as one, eps. Values whose states change at the same times, through c states, are c eps apart (bits of
different states are independent), and there are only d + 1. What it does not: when the state changes is not hidden, an
answer that moves tells that the value did. The paper flips answers anew for that (Section 3); it is not done here.
"""

import math
from dataclasses import dataclass, replace

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
    coins,
    level,
    one,
)
from sordino.privacy.mechanisms.unary_encoding import bit_rows

__all__ = ["DBitFlip"]


@dataclass(frozen=True)
class DBitFlipEvent(ThreeLosses, Event):
    epsilon: float
    bits: int

    def __post_init__(self) -> None:
        level(self.epsilon)
        check.count(bits=self.bits)

    def mass(self) -> float:  # every bit that differs says the truth; a user who has one of two buckets tells less
        differ = min(2, self.bits)
        return float(expit(self.epsilon / differ)) ** differ


@dataclass(frozen=True)
class DBitFlip:
    """Report for d assigned buckets whether the value is in each, every bit flipped with a small probability."""

    epsilon: float  # pure level of one report; memoised: of all reports of an unchanged value
    categories: int  # k: how many buckets there are; values are 0 to k - 1
    bits: int  # d: buckets assigned to a user, and bits of a report
    memoised: bool = False  # answer always with the same bits while the value stays
    seed: int = 0  # of the assignment; public

    def __post_init__(self) -> None:
        level(self.epsilon)
        domain(self.categories)
        check.count(bits=self.bits)
        if self.bits > self.categories:
            raise SpecError(f"a user cannot be assigned {self.bits} of {self.categories} buckets.")
        if not isinstance(self.memoised, bool):
            raise SpecError(f"memoised is true or false, not {self.memoised!r}.")
        public_seed(self.seed)

    @property
    def step(self) -> float:
        """The level of one bit."""
        return self.epsilon / min(2, self.bits)

    def assigned(self, ids: ArrayLike) -> Ints:
        """The buckets of each client [n, d], rising; any d are equally likely (Floyd's way: Bentley, Floyd 1987)."""
        who = clients(ids)
        out = np.empty((len(who), self.bits), dtype=np.int64)
        for j in range(self.bits):
            last = self.categories - self.bits + j
            drawn = hashed(np.array([j]), who, last + 1, self.seed)
            out[:, j] = np.where((out[:, :j] == drawn[:, None]).any(axis=1), last, drawn)
        return np.sort(out, axis=1)

    def randomize(self, values: ArrayLike, rng: RowStream, memory: RowStream | None = None) -> NDArray[np.uint8]:
        """`memory` is the clients' own stream that never changes; only what is memoised is drawn from it."""
        true = categories(values, self.categories, rng)
        if (memory is not None) != self.memoised:
            raise SpecError(f"memoised={self.memoised}: a memory is needed to memoise bits, and only then.")
        yes = self.assigned(rng.ids) == true[:, None]  # [n, d]: at most one a row
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
        """That each bit of a client's report is 1 [d], memoised or not; given the value, bits are independent."""
        yes = self.assigned([client])[0] == one(value, self.categories)
        return np.asarray(np.where(yes, expit(self.step), expit(-self.step)), dtype=np.float64)

    def estimate(self, reports: ArrayLike, ids: ArrayLike) -> Floats:
        """The share of every bucket [k], k/(n d) times a sum over those assigned to it; unbiased over assignments."""
        seen, who = bit_rows(reports, self.bits), clients(ids)
        if len(who) != len(seen) or len(np.unique(who)) != len(who):
            raise DataError(f"{len(seen)} reports need as many client ids, all different; found {len(who)}.")
        true = (seen - float(expit(-self.step))) / math.tanh(self.step / 2)
        sums = np.bincount(self.assigned(who).ravel(), weights=true.ravel(), minlength=self.categories)
        return np.asarray(sums * self.categories / (len(seen) * self.bits))

    def variance(self, frequency: float = 0.0, n: int = 1) -> float:
        """Of a share from n given values, over noise and assignments: (k/d s + f (k/d - 1)) / n.

        s = e^a / (e^a - 1)^2 is that of one bit, a its level: a user counts with probability d/k, and then k/d times.
        """
        check.count(n=n)
        check.non_negative(frequency=frequency)
        if frequency > 1:
            raise SpecError(f"frequency is a share of the users, at most 1, not {frequency!r}.")
        bit, times = 1 / (4 * math.sinh(self.step / 2) ** 2), self.categories / self.bits
        return (times * bit + frequency * (times - 1)) / n

    def event(self, reports: int = 1) -> Event:
        """All reports of a value that stays the same."""
        check.count(reports=reports)
        single = DBitFlipEvent(self.epsilon, self.bits)
        return single if self.memoised or reports == 1 else Repeated(single, reports)


def clients(ids: ArrayLike) -> Ints:
    """Client ids [n]."""
    found = ids if isinstance(ids, np.ndarray) else array(ids, None)  # a round may have no clients
    if found.ndim != 1 or found.dtype.kind not in "iu":
        raise DataError(f"client ids are a list of whole numbers, not {found.dtype} of shape {found.shape}.")
    return found.astype(np.int64)
