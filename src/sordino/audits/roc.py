"""Error rates of a membership attack: ROC curve, its area, and true positives at few false positives.

Records with equal scores are never told apart: between two thresholds the curve is a straight line, which is what an
attacker reaches who breaks ties at random, so that a constant score has AUC 0.5 and a TPR equal to its FPR.

The interval of the AUC is that of DeLong, DeLong, Clarke-Pearson (1988), Biometrics 44, computed by ranks as in Sun and
Xu (2014), IEEE Signal Processing Letters 21; those of the rates are exact (Clopper and Pearson 1934). The true positive
rate at a low false positive rate is the figure that Carlini et al. (2022), arXiv:2112.03570, Section IV, ask for.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtri

from sordino.audits.bounds import Floats, clopper_pearson
from sordino.core import check
from sordino.core.errors import SpecError

LEVELS = (0.001, 0.01)  # false positive rates at which an attack is reported
GRID = 40  # thresholds at which `within` compares the curve with its bound


@dataclass(frozen=True)
class RateEstimate:
    """A number with its confidence interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3f} ({self.low:.3f} to {self.high:.3f})"


@dataclass(frozen=True)
class RocBound:
    """How the curve compares with TPR <= e^epsilon FPR + delta, and with the same bound for the complements."""

    holds: bool  # whether no point exceeds the bound, up to the confidence
    fpr: float  # the point that exceeds it most, or comes nearest
    tpr: float
    limit: float  # the largest TPR that (epsilon, delta) allows at this FPR
    confidence: float


@dataclass(frozen=True)
class Roc:
    """The ROC curve of an attack: counts at every threshold, from the strictest to the one that accepts everything."""

    true: Floats  # [points]: members that are accepted, beginning with 0
    false: Floats  # [points]: non-members that are accepted, beginning with 0
    spread: float  # variance of the AUC: DeLong et al. (1988)

    @staticmethod
    def of(scores: ArrayLike, members: ArrayLike) -> Roc:
        """Return the curve of scores, of which a higher one means a member.

        Args:
            scores: [records].
            members: [records], whether each record is a member.
        """
        values, truth = np.asarray(scores, dtype=np.float64), np.asarray(members)
        _check(values, truth)
        order = np.argsort(-values, kind="stable")
        values, hits = values[order], truth[order].astype(np.int64)
        last = np.append(np.flatnonzero(np.diff(values)), len(values) - 1)  # last record of every run of equal scores
        true, total = np.cumsum(hits)[last], last + 1
        accepted, wrong = (np.concatenate([[0], c]).astype(np.float64) for c in (true, total - true))
        return Roc(accepted, wrong, _delong(values, hits == 1))

    @property
    def positives(self) -> int:
        """The number of members."""
        return int(self.true[-1])

    @property
    def negatives(self) -> int:
        """The number of non-members."""
        return int(self.false[-1])

    def auc(self, confidence: float = 0.95) -> RateEstimate:
        """Return the area under the curve with its confidence interval."""
        check.below_one(confidence=confidence)
        area = float(np.sum(np.diff(self.false) * (self.true[1:] + self.true[:-1]))) / (
            2 * self.positives * self.negatives
        )
        if self.spread <= 0:  # the classes are separated, or not at all; then DeLong's variance is zero
            least = min(self.positives, self.negatives)
            low, high = clopper_pearson(round(area * least), least, confidence)
            return RateEstimate(area, min(area, float(low)), max(area, float(high)))
        half = float(ndtri((1 + confidence) / 2)) * math.sqrt(self.spread)
        return RateEstimate(area, max(0.0, area - half), min(1.0, area + half))

    def tpr_at(self, fpr: float, confidence: float = 0.95) -> RateEstimate:
        """Return the true positive rate at a false positive rate, with its exact confidence interval.

        Between two thresholds ties are broken at random; the interval then covers the counts on either side.
        """
        check.fraction(fpr=fpr)
        accepted = float(np.interp(fpr * self.negatives, self.false, self.true))
        below, above = (int(f(round(accepted, 9))) for f in (math.floor, math.ceil))
        low, _ = clopper_pearson(below, self.positives, confidence)
        _, high = clopper_pearson(above, self.positives, confidence)
        return RateEstimate(accepted / self.positives, float(low), float(high))

    def balanced_accuracy(self) -> float:
        """Return the largest mean of TPR and TNR over all thresholds, chosen on these records (so a little high)."""
        return float(np.max(self.true / self.positives + 1 - self.false / self.negatives) / 2)

    def points(self, most: int = 200) -> tuple[Floats, Floats]:
        """Return (FPR, TPR) of at most so many points of the curve, evenly spread on a logarithmic scale of the FPR."""
        check.count(most=most)
        levels = np.unique(np.concatenate([[0.0], np.geomspace(1 / self.negatives, 1.0, max(1, most - 1))]))
        return levels, np.interp(levels, self.false / self.negatives, self.true / self.positives)

    def within(self, epsilon: float, delta: float, confidence: float = 0.95) -> RocBound:
        """Return whether the whole curve respects (epsilon, delta)-DP, up to a confidence.

        Every attack on such a mechanism has TPR <= e^epsilon FPR + delta, and 1 - FPR <= e^epsilon (1 - TPR) + delta:
        Kairouz, Oh, Viswanath (2017), Section 2. The bound is called exceeded if a lower bound on the TPR lies above it
        at an upper bound on the FPR; the error probability is divided by the number of thresholds (Bonferroni). These
        are order statistics of the non-members' scores, for which the exact bounds on both rates hold.
        """
        check.non_negative(epsilon=epsilon)
        check.fraction(delta=delta)
        check.below_one(confidence=confidence)
        at = self._grid()
        true, false = self.true[at].astype(np.int64), self.false[at].astype(np.int64)
        each = 1 - (1 - confidence) / len(at)
        low, _ = clopper_pearson(true, self.positives, each)
        _, high = clopper_pearson(false, self.negatives, each)
        excess = low - _limit(high, epsilon, delta)
        worst = int(np.argmax(excess))
        fpr, tpr = float(false[worst] / self.negatives), float(true[worst] / self.positives)
        limit = float(_limit(np.array([fpr]), epsilon, delta)[0])
        return RocBound(bool(excess[worst] <= 0), fpr, tpr, limit, confidence)

    def _grid(self) -> np.ndarray:
        """Return the points that are compared: spread over false and over true negatives on logarithmic scales."""
        levels = np.unique(np.geomspace(1, self.negatives + 1, GRID // 2).astype(np.int64) - 1)
        near = np.searchsorted(self.false, np.concatenate([levels, self.negatives - levels]), side="right") - 1
        return np.unique(near)


def _limit(fpr: Floats, epsilon: float, delta: float) -> Floats:
    """Return the largest TPR that (epsilon, delta)-DP allows at each FPR."""
    grow = math.exp(min(epsilon, 700.0))
    complement = 1 - np.maximum(0.0, (1 - fpr - delta) / grow)
    return np.asarray(np.minimum(np.minimum(1.0, grow * fpr + delta), complement), dtype=np.float64)


def _delong(values: Floats, members: np.ndarray) -> float:
    """Return the variance of the AUC from midranks."""
    inside, outside = values[members], values[~members]
    m, n = len(inside), len(outside)
    if m < 2 or n < 2:
        return 0.25 / min(m, n)  # the largest that it can be
    ranks = _ranks(np.concatenate([inside, outside]))
    above = (ranks[:m] - _ranks(inside)) / n  # for each member, the share of non-members below it
    below = 1 - (ranks[m:] - _ranks(outside)) / m
    return float(above.var(ddof=1) / m + below.var(ddof=1) / n)


def _ranks(values: Floats) -> Floats:
    """Return the ranks of values, from 1; equal values share the mean of their ranks."""
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    return np.asarray((np.cumsum(counts) - (counts - 1) / 2)[place], dtype=np.float64)


def _check(scores: Floats, members: np.ndarray) -> None:
    if scores.ndim != 1 or scores.shape != members.shape:
        raise SpecError(f"scores and members must be as many, not {list(scores.shape)} and {list(members.shape)}.")
    if members.dtype != np.bool_:
        raise SpecError(f"members must say True or False of every record, not hold values of type {members.dtype}.")
    if np.isnan(scores).any():
        raise SpecError(f"{int(np.isnan(scores).sum())} of {len(scores)} scores are not numbers.")
    if members.all() or not members.any():
        only = "members" if len(members) and members.all() else "non-members"
        raise SpecError(f"error rates need members and non-members, but all {len(members)} records are {only}.")
