"""The distinguishing game: trials with and without one unit, a test that tells them apart, and what its errors prove.

Each trial is one row of numbers that a viewer saw. The rows are split in two: on the first half a statistic and a
threshold are chosen, on the second half errors are counted, so that the choice costs no confidence. If the trials are
independent runs, the bound is free of assumptions (`bounds.from_rates`): under (epsilon, delta) no test has
TPR > e^epsilon FPR + delta. Because the interval of (TPR, FPR) holds for all deltas at once, a claim can be compared
along its whole curve epsilon(delta), which shows far smaller violations than any single delta does.

Jagielski, Ullman, Oprea (2020), arXiv:2006.07709; Nasr et al. (2021), arXiv:2101.04535; the two halves as in
DP-Sniper, Bichsel et al. (2021), Section IV.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from sordino.audits import bounds
from sordino.audits.bounds import Counts, Floats, Lower, clopper_pearson
from sordino.core import check
from sordino.core.errors import SpecError

Curve = Callable[[float], float]  # delta -> the epsilon that is claimed at it
Score = Callable[[Floats], Floats]  # rows [trials, numbers] -> one number a trial

SHOWN, ALARM = 0.95, 0.9999  # confidence of the bound that is shown, and of an alarm
CHOICE = 0.99  # confidence with which tests are compared on the first half
DELTAS = (0.9, 0.7, 0.5, 0.3, 0.2, 0.1, 0.05, 0.02, 0.01, 1e-3, 1e-4)  # at which a claim is compared, and at its own
RIDGE = 1e-6  # added to correlations, so that numbers that repeat one another do no harm
CUTS = 400  # thresholds that are tried at most


@dataclass(frozen=True)
class Trials:
    """What a viewer saw in trials with the unit (`inside`) and without it (`outside`) [trials, numbers]."""

    inside: Floats
    outside: Floats

    def __post_init__(self) -> None:
        for name, rows in (("inside", self.inside), ("outside", self.outside)):
            if rows.ndim != 2 or len(rows) < 4 or not rows.shape[1]:
                raise SpecError(f"an audit needs at least 4 trials {name}, [trials, numbers], not {list(rows.shape)}.")
            if not np.isfinite(rows).all():
                raise SpecError(f"trials {name} hold numbers that are not finite, so nothing can be counted.")
        if self.inside.shape[1] != self.outside.shape[1]:
            raise SpecError("trials with and without the unit must show equally many numbers.")

    def halves(self) -> tuple[Trials, Trials]:
        """Return the trials to choose a test on, and those to count its errors on."""
        i, j = len(self.inside) // 2, len(self.outside) // 2
        return Trials(self.inside[:i], self.outside[:j]), Trials(self.inside[i:], self.outside[j:])


@dataclass(frozen=True)
class Distinguisher:
    """A test that says "inside" where a score is at least the threshold, and the errors it made on other trials."""

    statistic: str
    threshold: float
    counts: Counts


@dataclass(frozen=True)
class GameResult:
    """What a game has shown about a claim."""

    lower: Lower  # at the delta of the claim, with the confidence that is shown
    gaussian: Lower  # the same if the trade-off is Gaussian
    claimed: float  # epsilon at that delta
    refuted: bool  # whether the claim fails somewhere along its curve, with the confidence of an alarm
    at: float | None  # delta at which it fails most, if it does
    test: Distinguisher  # the one behind `lower`

    @property
    def sound(self) -> bool:
        """Return whether the claim stands."""
        return not self.refuted


def play(trials: Trials, claim: Curve, delta: float, confidence: float = SHOWN, alarm: float = ALARM) -> GameResult:
    """Return the largest epsilon that the trials refute, and whether that refutes the claim.

    Args:
        trials: independent trials.
        claim: the claimed epsilon as a function of delta.
        delta: the delta at which the bound is reported.
        confidence: of the reported bound.
        alarm: confidence with which a claim is called refuted.
    """
    check.below_one(delta=delta, confidence=confidence, alarm=alarm)
    first, second = trials.halves()
    curve = {d: claim(d) for d in (*DELTAS, delta)}
    scores = statistics(first)
    shown = _best(first, second, scores, lambda low, high: _separations(low, high, delta))
    middle = _halfway(first, second, scores)
    sharp = _best(first, second, scores, lambda low, high: _excess(low, high, curve), alarm)
    low, high = (np.asarray(rate) for rate in sharp.counts.rates(alarm))
    over = {d: float(_excess(low, high, {d: epsilon})) for d, epsilon in curve.items()}
    worst = max(over, key=lambda d: over[d])
    return GameResult(
        bounds.from_rates(shown.counts, delta, confidence),
        bounds.gaussian(middle.counts, delta, confidence),
        curve[delta],
        over[worst] > 0,
        worst if over[worst] > 0 else None,
        shown,
    )


def statistics(first: Trials) -> dict[str, Score]:
    """Return scores that may tell inside from outside: along the difference of means, and by how far rows scatter.

    `column` is the one number that moves most, `shift` weighs all that clearly move, as is optimal where one unit
    shifts independent Gaussian noise; `whitened` is optimal where that noise is correlated, and finds combinations in
    which it cancels (Fisher's linear discriminant); `peak` sees a unit that is in one of many steps; `scatter` and
    `calm` see noise whose scale follows the data.
    """
    centre, other = first.outside.mean(axis=0), first.inside.mean(axis=0)
    spread = 0.5 * (first.outside.var(axis=0) + first.inside.var(axis=0))
    tiny = 1e-200 + np.square(1e-9 * (np.abs(centre) + np.abs(other)))  # columns may have scales of their own
    signal = (other - centre) / np.sqrt(spread + tiny)  # in units of the noise of one trial
    clear = np.abs(signal) >= max(0.3 * np.abs(signal).max(initial=0.0), 2.5 * math.sqrt(2 / len(first.inside)))
    direction = np.where(clear, signal, 0.0) / np.sqrt(spread + tiny)
    best, scale = int(np.argmax(np.abs(signal))), first.outside.var(axis=0) + tiny
    discriminant = _discriminant(first, signal, np.sqrt(spread + tiny))

    def shift(rows: Floats) -> Floats:
        return np.asarray(rows @ direction, dtype=np.float64)

    def column(rows: Floats) -> Floats:
        return np.asarray(rows[:, best] * np.sign(signal[best]), dtype=np.float64)

    def scatter(rows: Floats) -> Floats:
        return np.asarray(np.log(np.square(rows - centre) / scale + 1e-12).mean(axis=1), dtype=np.float64)

    def peak(rows: Floats) -> Floats:
        return np.asarray(((rows - centre) * np.sign(signal) / np.sqrt(scale)).max(axis=1), dtype=np.float64)

    found = {"column": column, "shift": shift, "peak": peak, "scatter": scatter, "calm": lambda rows: -scatter(rows)}
    if discriminant is not None:
        found["whitened"] = lambda rows: np.asarray(rows @ discriminant, dtype=np.float64)
    return found


def _discriminant(first: Trials, signal: Floats, unit: Floats) -> Floats | None:
    """Return the weights of Fisher's linear discriminant; None if there are too few trials to estimate them."""
    if not 1 < len(signal) <= len(first.inside) / 64:  # with more it would fit the noise
        return None
    centred = np.concatenate([rows - rows.mean(axis=0) for rows in (first.inside, first.outside)]) / unit
    noise = centred.T @ centred / len(centred)
    return np.asarray(np.linalg.solve(noise + RIDGE * np.eye(len(signal)), signal) / unit)


def _best(
    first: Trials,
    second: Trials,
    scores: dict[str, Score],
    value: Callable[[Floats, Floats], Floats],
    confidence: float = CHOICE,
) -> Distinguisher:
    """Return the test that is best on the first half by `value` of its rates, with its errors on the second half."""
    best, most = ("column", 0.0), -math.inf
    for name, score in scores.items():
        inside, outside = np.sort(score(first.inside)), np.sort(score(first.outside))
        cuts = np.unique(np.quantile(np.concatenate([inside, outside]), np.linspace(0, 1, CUTS)))
        hits = len(inside) - np.searchsorted(inside, cuts, side="left")
        alarms = len(outside) - np.searchsorted(outside, cuts, side="left")
        low, _ = clopper_pearson(hits, np.full_like(hits, len(inside)), confidence)
        _, high = clopper_pearson(alarms, np.full_like(alarms, len(outside)), confidence)
        worth = value(low, high)
        at = int(np.argmax(worth))
        if worth[at] > most:
            best, most = (name, float(cuts[at])), float(worth[at])
    name, threshold = best
    return Distinguisher(name, threshold, _counts(scores[name](second.inside), scores[name](second.outside), threshold))


def _halfway(first: Trials, second: Trials, scores: dict[str, Score]) -> Distinguisher:
    """Return the test whose threshold lies halfway between the means, which is best for a shift of Gaussian noise."""
    found = []
    for name, score in scores.items():
        inside, outside = score(first.inside), score(first.outside)
        threshold = float(inside.mean() + outside.mean()) / 2
        mu = bounds.gaussian_mu(_counts(inside, outside, threshold), CHOICE)
        found.append((mu, name, threshold))
    _, name, threshold = max(found, key=lambda f: f[0])
    return Distinguisher(name, threshold, _counts(scores[name](second.inside), scores[name](second.outside), threshold))


def _counts(inside: Floats, outside: Floats, threshold: float) -> Counts:
    hits, alarms = int((inside >= threshold).sum()), int((outside >= threshold).sum())
    return Counts(hits, len(inside), alarms, len(outside))


def _separations(low: Floats, high: Floats, delta: float) -> Floats:
    """Return `bounds.separation`, elementwise."""
    with np.errstate(divide="ignore", invalid="ignore"):
        one = np.where((low > delta) & (high > 0), np.log(np.maximum(low - delta, 0) / high), -np.inf)
        two = np.where((1 - high > delta) & (low < 1), np.log(np.maximum(1 - high - delta, 0) / (1 - low)), -np.inf)
    return np.maximum(one, two)


def _excess(low: Floats, high: Floats, curve: dict[float, float]) -> Floats:
    """Return by how much probability rates lie above a claimed curve, at the delta where they do most."""
    over = np.full(np.shape(low), -np.inf)
    for delta, epsilon in curve.items():
        odds = math.exp(min(epsilon, 700.0))
        over = np.maximum(over, low - odds * high - delta)
        over = np.maximum(over, (1 - high) - odds * (1 - low) - delta)
    return over
