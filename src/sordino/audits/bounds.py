"""Lower bounds on epsilon from the successes of an attack.  An audit can refute a claim; it never proves one.

Guesses, thresholds and the number of guesses must be fixed before counting, on other runs; otherwise the significance
level must be divided by the number of choices tried (Bonferroni).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import brentq
from scipy.special import betainc, betaincinv, expit, ndtri

from sordino.core import check
from sordino.core.errors import SpecError
from sordino.privacy.accountants import gdp

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Lower:
    """A lower bound on epsilon, and the largest one that so few trials could ever have shown."""

    epsilon: float
    ceiling: float
    confidence: float


@dataclass(frozen=True)
class Counts:
    """The results of a membership test: true positives among members, false positives among non-members."""

    true_positives: int
    positives: int
    false_positives: int
    negatives: int

    def __post_init__(self) -> None:
        check.count(positives=self.positives, negatives=self.negatives)
        _at_most(self.positives, true_positives=self.true_positives)
        _at_most(self.negatives, false_positives=self.false_positives)

    def perfect(self) -> Counts:
        """Return the best outcome that these trials could have had."""
        return Counts(self.positives, self.positives, 0, self.negatives)

    def rates(self, confidence: float) -> tuple[float, float]:
        """Return a lower bound on the true positive rate and an upper bound on the false positive rate.

        Both hold together with probability `confidence`: each fails with probability (1 - confidence) / 2.
        """
        low, _ = clopper_pearson(self.true_positives, self.positives, confidence)
        _, high = clopper_pearson(self.false_positives, self.negatives, confidence)
        return float(low), float(high)


def clopper_pearson(hits: ArrayLike, trials: ArrayLike, confidence: float = 0.95) -> tuple[Floats, Floats]:
    """Return the exact two-sided confidence interval of a binomial proportion: Clopper and Pearson (1934).

    Works elementwise on arrays.
    """
    check.below_one(confidence=confidence)
    k, n = np.asarray(hits), np.asarray(trials)
    integral = np.issubdtype(k.dtype, np.integer) and np.issubdtype(n.dtype, np.integer)
    if not integral or np.any(k < 0) or np.any(k > n) or np.any(n < 1):
        raise SpecError(f"hits must be whole numbers from 0 to the number of trials, not {hits!r} of {trials!r}.")
    tail = (1 - confidence) / 2
    low = np.where(k == 0, 0.0, betaincinv(np.maximum(k, 1), n - k + 1, tail))
    high = np.where(k == n, 1.0, betaincinv(k + 1, np.maximum(n - k, 1), 1 - tail))
    return low, high


def from_rates(counts: Counts, delta: float, confidence: float = 0.95) -> Lower:
    """Return a model-free lower bound: (eps, delta)-DP forces TPR <= e^eps FPR + delta, and the same of the
    complements.

    Kairouz, Oh, Viswanath (2017), Section 2; at a low false positive rate as in Carlini et al. (2022),
    arXiv:2112.03570.
    """
    check.fraction(delta=delta)
    epsilon, most = (separation(*c.rates(confidence), delta) for c in (counts, counts.perfect()))
    return Lower(epsilon, most, confidence)


def separation(tpr: float, fpr: float, delta: float) -> float:
    """Return the least epsilon with which these rates are possible under (epsilon, delta); 0 if all are."""
    odds = [(tpr - delta, fpr), (1 - fpr - delta, 1 - tpr)]
    return max([0.0, *(math.log(top / bottom) for top, bottom in odds if top > 0 and bottom > 0)])


def gaussian_mu(counts: Counts, confidence: float = 0.95) -> float:
    """Return a lower bound on mu of a mechanism that claims to be mu-GDP: Phi^-1(TPR) - Phi^-1(FPR).

    Dong, Roth, Su (2022); Nasr et al. (2023), arXiv:2302.07956.
    """
    tpr, fpr = counts.rates(confidence)
    return max(0.0, float(ndtri(tpr)) - float(ndtri(fpr))) if tpr > 0 and fpr < 1 else 0.0


def gaussian(counts: Counts, delta: float, confidence: float = 0.95) -> Lower:
    """Return the epsilon of `gaussian_mu`: a bound on epsilon only if the mechanism is (nearly) Gaussian."""
    check.below_one(delta=delta)
    mus = [gaussian_mu(c, confidence) for c in (counts, counts.perfect())]
    epsilon, most = (gdp.epsilon_of_mu(mu, delta) for mu in mus)
    return Lower(epsilon, most, confidence)


def one_run_p_value(canaries: int, guesses: int, correct: int, epsilon: float, delta: float) -> float:
    """Return the largest probability of so many correct guesses if the run were (epsilon, delta)-DP.

    Steinke, Nasr, Jagielski (2023), arXiv:2305.08846, Theorem 5.2.

    Args:
        canaries: number of records, each of which is included by a fair coin.
        guesses: number of coins that the auditor guesses; it abstains on the others.
        correct: number of correct guesses.
        epsilon: claimed epsilon.
        delta: claimed delta.
    """
    _check_run(canaries, guesses, correct, delta)
    check.non_negative(epsilon=epsilon)
    return _p_value(canaries, guesses, correct, epsilon, delta)


def one_run(canaries: int, guesses: int, correct: int, delta: float, confidence: float = 0.95) -> Lower:
    """Return the largest epsilon that a single training run refutes.

    Refuting an epsilon refutes every smaller one. For the arguments see `one_run_p_value`.
    """
    _check_run(canaries, guesses, correct, delta)
    check.below_one(confidence=confidence)
    epsilon, most = (_invert(canaries, guesses, v, delta, 1 - confidence) for v in (correct, guesses))
    return Lower(epsilon, most, confidence)


SHARES = (1.0, 0.3, 0.1, 0.02)  # of the canaries that an auditor of one run guesses: each is tried, at a price


def one_run_scores(scores: Floats, included: NDArray[np.bool_], delta: float, confidence: float = 0.95) -> Lower:
    """Return the largest epsilon that the scores of one run's canaries refute.

    The highest scores are guessed to be included, the lowest not, and the auditor abstains on those between. How many
    are guessed is one of `SHARES`, for which the significance level is divided (Bonferroni).

    Args:
        scores: one score per canary; higher means that it was included.
        included: the coins, fair and independent, by which the canaries were included.
        delta: the claimed delta.
        confidence: of the bound.
    """
    if scores.shape != included.shape or scores.ndim != 1:
        raise SpecError(f"there must be one coin for each score: {list(included.shape)} for {list(scores.shape)}.")
    order, level = np.argsort(scores, kind="stable"), (1 - confidence) / len(SHARES)
    found = []
    for share in SHARES:
        half = max(1, int(share * len(scores)) // 2)
        right = int((~included[order[:half]]).sum() + included[order[-half:]].sum())
        found.append(one_run(len(scores), 2 * half, right, delta, 1 - level))
    return Lower(max(f.epsilon for f in found), max(f.ceiling for f in found), confidence)


def _p_value(canaries: int, guesses: int, correct: int, epsilon: float, delta: float) -> float:
    from scipy.stats import binom  # takes a second to import

    if correct == 0:
        return 1.0
    right = float(expit(epsilon))
    value = float(betainc(correct, guesses - correct + 1, right))  # P[Bin >= v]
    if delta > 0:
        below = np.cumsum(binom.pmf(np.arange(correct - 1, -1, -1), guesses, right))  # P[v - i <= Bin < v], i = 1 .. v
        value += 2 * canaries * delta * float(np.max(below / np.arange(1, correct + 1)))
    return min(1.0, value)


def _invert(canaries: int, guesses: int, correct: int, delta: float, level: float) -> float:
    def excess(eps: float) -> float:
        return _p_value(canaries, guesses, correct, eps, delta) - level

    if correct == 0 or excess(0.0) >= 0:
        return 0.0
    high = 1.0
    while excess(high) < 0:
        high *= 2
    root = float(brentq(excess, 0.0, high, xtol=1e-13, rtol=1e-13))
    return max(0.0, root * (1 - 1e-11))  # rounded down, so that less is refuted


def _check_run(canaries: int, guesses: int, correct: int, delta: float) -> None:
    check.count(canaries=canaries)
    _at_most(canaries, guesses=guesses)
    _at_most(guesses, correct=correct)
    check.fraction(delta=delta)


def _at_most(most: int, **values: object) -> None:
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
            raise SpecError(f"{name} must be a whole number from 0 to {most}, not {value!r}.")
