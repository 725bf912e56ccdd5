"""Amplification by a shuffler, which hides the sender of each report of a local randomizer.

Clones: Feldman, McMillan, Talwar (2021), "Hiding among the clones", arXiv:2012.12803. Write E = e^eps0 and R_0, R_1 for
the two candidate reports of one client. Pure local DP gives R_0 = (E Q_0 + Q_1)/(E + 1) and, with 0 and 1 swapped, R_1;
every other client reports a draw from (Q_0 + Q_1)/2 = (R_0 + R_1)/2 with some probability r. The output of the shuffler
is therefore a function of the pair

    C ~ Bin(n - 1, r),  A ~ Bin(C, 1/2),  B ~ Bern(E/(E + 1)):  (A + B, C - A + 1 - B)  against  (A + 1 - B, C - A + B).

- `any` randomizer: r = 1/E, since R >= max(R_0, R_1)/E >= (R_0 + R_1)/(2E) (2021, Section 3).
- `response`: r = 2/(E + 1), if R >= (R_0 + R_1)/(E + 1) holds at every output and for any three inputs. This is true of
  k-ary randomized response. Feldman, McMillan, Talwar (2023), arXiv:2208.04591, stated it for every randomizer; their
  errata withdraw that (the proof of Lemma 3.5 fails for p < 1/(E + 1)) and keep it for a restricted class only. The
  condition here is all that the decomposition above needs.

n counts honest reports that arrive. A report is local-DP as a whole. The relation is "replace" (one client's value is
replaced by another), and epsilon must refer to it. Rounds compose after the shuffling, through the pair.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import betainc

from sordino.core import check
from sordino.core.errors import UnsupportedEvent
from sordino.privacy.events import Event
from sordino.privacy.pairs import Atoms, logsumexp

Floats = NDArray[np.float64]

RANDOMIZERS = ("any", "response")
NO_CLONES = 300.0  # eps0 from which on no client is ever a clone
TAIL = 1e-18  # mass of C beyond each end of the window, accounted as if no client were a clone
BLOCKS = 20_000  # number of values of C that are distinguished for epsilon
ATOMS = 1_000_000  # number of outcomes enumerated for a pair before they are put on the grid
GRID = 20_000  # number of losses of a pair on either side of zero


@dataclass(frozen=True)
class ShuffledEvent(Event):
    """`reports` reports of an epsilon-LDP randomizer, shuffled, where one client's value is replaced."""

    replaces: ClassVar[bool] = True
    epsilon: float
    reports: int
    randomizer: str = "any"

    def __post_init__(self) -> None:
        _check(self.reports, self.epsilon, self.randomizer)

    def pure(self) -> float:
        return self.epsilon  # shuffling never increases epsilon

    def pair(self) -> Atoms:
        return _pair(self.reports, self.epsilon, self.randomizer)

    def renyi(self, orders: Floats) -> Floats:
        pair, base = self.pair(), super().renyi(orders)
        with np.errstate(divide="ignore"):
            log_p = np.log(pair.p)
        curve = np.array([logsumexp(log_p + (a - 1) * pair.losses) / (a - 1) for a in orders])
        return curve if base is None else np.minimum(curve, base)


def shuffled(event: Event, reports: int, randomizer: str = "any") -> Event:
    """Return the event of `reports` shuffled reports, one per client; `event` is the effect of replacing one report."""
    epsilon = event.pure()
    if epsilon is None:
        raise UnsupportedEvent(
            f"shuffling amplifies pure local DP only, and {event!r} has a delta, which {reports} reports multiply. "
            "Use a pure randomizer, or price the reports without the shuffler."
        )
    return event if epsilon == 0 else ShuffledEvent(epsilon, reports, randomizer)


def epsilon(reports: int, epsilon0: float, delta: float, randomizer: str = "any") -> float:
    """Return the smallest epsilon of all valid bounds.

    These are the exact sum over clones, the closed forms, and no amplification.
    """
    bounds = [epsilon0, numerical(reports, epsilon0, delta, randomizer), closed_2021(reports, epsilon0, delta)]
    if randomizer == "response":
        bounds.append(closed_2023(reports, epsilon0, delta))
    return min(bounds)


def closed_2021(reports: int, epsilon0: float, delta: float) -> float:
    """Return the bound of Feldman, McMillan, Talwar (2021), Theorem 3.1; epsilon0 where it does not apply."""
    _check(reports, epsilon0, "any", delta)
    if epsilon0 > math.log(reports / (16 * math.log(2 / delta))):
        return epsilon0
    e = math.exp(epsilon0)
    inner = 8 * math.sqrt(e * math.log(4 / delta) / reports) + 8 * e / reports
    return min(epsilon0, math.log1p(math.tanh(epsilon0 / 2) * inner))


def closed_2023(reports: int, epsilon0: float, delta: float) -> float:
    """Return the bound of Feldman, McMillan, Talwar (2023); epsilon0 where it does not apply.

    It holds for a `response` only (see their errata).
    """
    _check(reports, epsilon0, "response", delta)
    most = reports / (8 * math.log(2 / delta)) - 1
    if most <= 0 or epsilon0 > math.log(most):
        return epsilon0
    e = math.exp(epsilon0)
    inner = 4 * math.sqrt(2 * math.log(4 / delta) / ((e + 1) * reports)) + 4 / reports
    return min(epsilon0, math.log1p((e - 1) * inner))


def numerical(reports: int, epsilon0: float, delta: float, randomizer: str = "any") -> float:
    """Return the epsilon of the clones' pair: its hockey-stick divergence is summed and inverted conservatively."""
    _check(reports, epsilon0, randomizer, delta)
    if epsilon0 >= NO_CLONES:
        return epsilon0
    clones, weights, rest = _clones(reports, epsilon0, randomizer, BLOCKS)

    def excess(eps: float) -> float:
        divergence = _hockey(clones, weights, rest, epsilon0, eps)
        return math.log(divergence / delta) if divergence > 0 else -1e3

    if excess(0.0) <= 0:
        return 0.0
    root = float(brentq(excess, 0.0, epsilon0, xtol=1e-15, rtol=1e-12, maxiter=500))
    return min(epsilon0, root * (1 + 1e-9))


def _check(reports: int, epsilon0: float, randomizer: str, delta: float = 0.5) -> None:
    check.count(reports=reports)
    check.positive(epsilon=epsilon0)
    check.below_one(delta=delta)
    check.one_of(RANDOMIZERS, randomizer=randomizer)


def _rate(epsilon0: float, randomizer: str) -> float:
    return math.exp(-epsilon0) if randomizer == "any" else 2 / (math.exp(epsilon0) + 1)


def _clones(reports: int, epsilon0: float, randomizer: str, blocks: int) -> tuple[Floats, Floats, float]:
    """Return values of C with their masses, and the mass outside the window.

    If there are more values than blocks, each block counts as its smallest value, because fewer clones hide less.
    """
    from scipy.stats import binom  # takes a second to import

    rate = _rate(epsilon0, randomizer)
    c = binom(reports - 1, rate)
    low, high = int(c.ppf(TAIL)), reports - 1 - int(binom.ppf(TAIL, reports - 1, 1 - rate))
    step = -(-(high + 1 - low) // blocks)
    starts = np.arange(low, high + 1, step)
    weights = c.pmf(starts) if step == 1 else np.diff(np.append(c.cdf(starts - 1), c.cdf(high)))
    return starts.astype(np.float64), weights, float(c.cdf(low - 1) + c.sf(high))


def _hockey(clones: Floats, weights: Floats, rest: float, epsilon0: float, eps: float) -> float:
    """Return delta(eps), the sum over C of two binomial tails, as the loss increases with A + B.

    The mass outside the window counts as randomized response.
    """
    from scipy.stats import binom  # takes a second to import

    keep, cut = 1 / (1 + math.exp(-epsilon0)), -math.expm1(eps - epsilon0)
    first = np.floor((clones + 1) * _share(epsilon0, eps)) + 1  # smallest A + B with a loss above eps
    at = binom.pmf(first - 1, clones, 0.5)
    over = np.where(first <= clones, betainc(first, np.maximum(clones - first + 1, 0.5), 0.5), 0.0)
    each = np.maximum(keep * cut * at - math.expm1(eps) * over, 0.0)
    return float(weights @ each) + rest * keep * cut


def _share(epsilon0: float, eps: float) -> float:
    """Return the fraction (A + B)/(C + 1) at which the loss is eps: (gE - 1)/((E - 1)(1 + g))."""
    return math.expm1(-epsilon0 - eps) / (math.expm1(-epsilon0) * (1 + math.exp(-eps)))


@lru_cache(maxsize=16)
def _pair(reports: int, epsilon0: float, randomizer: str) -> Atoms:
    """Return the pair of all outcomes, on a grid of losses.

    An outcome between two losses of the grid is split so that its masses under P and Q are preserved, which can only
    make the pair easier to distinguish (Doroshenko et al. 2022, arXiv:2207.04380). Outcomes too rare to be enumerated
    are split between the last loss of the grid and +-eps0, according to their total.
    """
    from scipy.stats import binom  # takes a second to import

    if epsilon0 >= NO_CLONES:
        return Atoms([-epsilon0, epsilon0], [0.0, 1.0], [1.0, 0.0], symmetric=True)
    each = 4.5 * math.sqrt(reports * _rate(epsilon0, randomizer)) + 2  # outcomes for one value of C
    clones, weights, rest = _clones(reports, epsilon0, randomizer, max(16, min(1000, int(ATOMS / each))))
    keep = 1 / (1 + math.exp(-epsilon0))
    flip = math.exp(-epsilon0) * keep
    end = 0.5 + 4.5 / math.sqrt(clones[0] + 1)  # nine standard deviations of A, where C is smallest
    far = math.log((end * keep + (1 - end) * flip) / (end * flip + (1 - end) * keep)) if end < 1 else epsilon0
    grid = np.linspace(-far, far, 2 * GRID + 1)
    if far < epsilon0:
        grid = np.concatenate([[-epsilon0], grid, [epsilon0]])
    loss, p, q = [np.array([epsilon0])], [np.array([rest * keep])], [np.array([rest * flip])]
    for c, weight in zip(clones, weights, strict=True):
        n = c + 1
        last = min(n, math.floor(n * end))
        a = np.arange(math.ceil(n / 2), last + 1)
        x, mass = a / n, 2 * weight * binom.pmf(a, n, 0.5)
        high, low = x * keep + (1 - x) * flip, x * flip + (1 - x) * keep
        half = np.where(2 * a == n, 0.5, 1.0)  # the other half of the outcomes is the mirror image
        loss.append(np.log(high / low))
        p.append(half * mass * high)
        q.append(half * mass * low)
        if last < n:
            near, over = binom.sf(last - 1, c, 0.5), binom.sf(last, c, 0.5)  # A >= last, A > last
            upper, under = weight * (keep * near + flip * over), weight * (flip * near + keep * over)
            loss.append(np.array([math.log(upper / under) if under > 0 else epsilon0]))
            p.append(np.array([upper]))
            q.append(np.array([under]))
    return _on_grid(np.concatenate(loss), np.concatenate(p), np.concatenate(q), grid)


def _on_grid(loss: Floats, p: Floats, q: Floats, grid: Floats) -> Atoms:
    """Split positive losses and their mirror images between neighbours on the grid."""
    left = np.clip(np.searchsorted(grid, loss, side="right") - 1, 0, len(grid) - 2)
    low, high = grid[left], grid[left + 1]
    # q2 (e^high - e^low) = p - e^low q, written without large exponentials
    share = np.clip(np.expm1(np.minimum(loss - low, high - low)) / np.expm1(high - low), 0.0, 1.0)
    q_high = q * share
    p_high = np.minimum(p, q_high * np.exp(high))
    size = len(grid)
    on_p = np.bincount(left + 1, p_high, size) + np.bincount(left, p - p_high, size)
    on_q = np.bincount(left + 1, q_high, size) + np.bincount(left, q - q_high, size)
    p_all, q_all = on_p + on_q[::-1], on_q + on_p[::-1]
    some = (p_all > 0) | (q_all > 0)
    return Atoms(grid[some], p_all[some], q_all[some], symmetric=True)
