"""Sums of privacy losses: pairs are rounded conservatively to a grid, and copies are convolved by Fourier transforms.

Rounding ("connect the dots", Doroshenko, Ghazi, Kamath, Kumar, Manurangsi 2022, arXiv:2207.04380): the mass of a cell
is split between its two edges so that both the P- and the Q-mass are preserved, which gives a pair that dominates the
original one.

Before it is transformed, a distribution is tilted by e^{theta loss} so that the losses that determine delta lie in its
middle (the change of measure of large deviations): delta is then accurate to many digits however small it is, and the
window of the transform is a few standard deviations wide. The mass above the window is bounded by Chernoff and added to
delta; the mass below it wraps around to the top, which is conservative too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.fft import irfft, next_fast_len, rfft
from scipy.optimize import brentq

from sordino.core.errors import UnsupportedEvent
from sordino.privacy import pairs as exact
from sordino.privacy.pairs import Atoms, Pair

Floats = NDArray[np.float64]
FINE, ROUGH, SLOPPY = 2e-3, 3e-2, 0.2  # grid cells, in standard deviations of the loss of one step
MOST = {FINE: 2**20, ROUGH: 2**19, SLOPPY: 2**15}  # largest number of points of a transform
ALIKE = 1.2  # pairs whose losses extend equally far, up to this factor, share a sketch
REST = 1e-8  # fraction of delta reserved for the mass above a window, and again for float rounding
THETAS: Floats = np.geomspace(1e-4, 1e7, 111)
CURVE: Floats = np.sinh(np.linspace(-1, 1, 601) * np.arcsinh(1e6)) / 1e6  # in [-1, 1], dense around 0
WHOLE = -40.0  # ln of the mass that may be left out of a whole distribution
FAR = 5.0  # deviations that a tilt may stay below the saddle point, where rounding would be visible
LEAST = 1e-3  # weakest tilt, in inverse standard deviations
STRONG = 40.0  # strongest tilt, in inverse standard deviations
DUST = float(np.log(1e-15))  # ln of more than rounding can take from a probability in a transform
MILD = 200.0  # upper limit of the search for tilts, in inverse standard deviations
TINY = 1e-290
BLUR = 1e-4  # fraction of delta that may be rounding error
NOISE = 1e-16  # rounding error of a probability per copy, relative to the largest probability
SMALLEST = 1e-200  # smallest delta
HUGE = 1e6  # loss beyond which no epsilon is of interest
SIZES: Floats = np.geomspace(1.37e-9, HUGE, 241)  # not round numbers, where atoms often lie
LEAN = 0.6  # tilt as a fraction of the saddle point: all of it would lift a heavy upper tail into the window


@dataclass(frozen=True)
class Rounded:
    """Probabilities of ascending losses under P; the remaining mass has an infinite loss."""

    losses: Floats
    probs: Floats
    infinite: float

    def variance(self, theta: float = 0.0) -> float:
        """Return the variance of the losses under a tilt."""
        some = self.probs > 0
        losses, probs = self.losses[some], self.probs[some]
        if not len(losses):
            return 0.0
        weights = probs * np.exp(theta * losses - max(theta * losses[0], theta * losses[-1]))
        weights /= weights.sum()
        return float(weights @ (losses - float(weights @ losses)) ** 2)

    def log_moments(self, thetas: Floats) -> Floats:
        """Return ln E[e^{theta L}; L finite]."""
        some = self.probs > 0
        losses, probs = self.losses[some], self.probs[some]
        if not len(losses):
            return np.full_like(thetas, -np.inf)
        peaks = np.maximum(thetas * losses[0], thetas * losses[-1])
        return np.asarray(np.log(np.exp(np.outer(thetas, losses) - peaks[:, None]) @ probs) + peaks)


def rounded(pair: Pair, edges: Floats) -> Rounded:
    """Round a pair to ascending edges by connecting the dots.

    Losses above the last edge become infinite; losses below the first edge are raised to it.
    """
    over, under = exact.tails(pair, edges)
    p, q = (  # differences of the smaller tail are more precise
        np.maximum(np.where((up < down)[:-1], up[:-1] - up[1:], down[1:] - down[:-1]), 0.0)
        for up, down in zip(over, under, strict=True)
    )
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        low = np.exp(edges[:-1] + np.log(q) - np.log(p))  # e^edge q / p for the left edge: at most 1
        right = p * (1 - low) / -np.expm1(edges[:-1] - edges[1:])
    right = np.where(q > TINY, np.clip(np.nan_to_num(right, nan=0.0), 0.0, p), p)  # too small a Q has no digits
    probs = np.append(p - right, 0.0)
    probs[1:] += right
    probs[0] += under[0][0]
    return Rounded(edges, probs, float(over[0][-1]))


def reach(pair: Pair, tail: float) -> tuple[float, float]:
    """Return losses low < 0 < high with at most `tail` of P outside on either side (not counting infinite losses)."""
    over, under = pair.above(SIZES)[0], pair.below(-SIZES)[0]
    return -float(_first(SIZES, under <= tail)), float(_first(SIZES, over - over[-1] <= tail))


def _first(sizes: Floats, enough: NDArray[np.bool_]) -> float:
    return float(sizes[np.argmax(enough)]) if enough.any() else HUGE


class LossSum:
    """The sum of the losses of independent pairs, each with a number of copies; one direction.

    Args:
        pairs: the pairs.
        counts: the number of copies of each pair.
        log_delta: ln of the delta of interest, which determines how far the tails are followed.
    """

    def __init__(self, pairs: Sequence[Pair], counts: Sequence[int], log_delta: float) -> None:
        self.pairs, self.counts = pairs, counts
        tail = max(np.exp(max(log_delta, -600.0)) * REST / sum(counts), 1e-280)
        self._reach = [reach(pair, min(tail, 1e-14)) for pair in pairs]
        self._sketches = list(self._sketch())
        self._moments = self.log_moments(THETAS)
        self._mild = self.deviation * THETAS < MILD  # stronger tilts would see only the largest sum

    def _sketch(self) -> Iterator[tuple[Rounded, int]]:
        """Yield a coarse rounding of each pair with its count, accurate enough to choose tilts and windows.

        Among releases of a schedule whose losses extend about equally far in both directions, one represents all.
        """
        alike: dict[tuple[int, int], list[int]] = {}
        for i, (low, high) in enumerate(self._reach):
            key = round(np.log(-low) / np.log(ALIKE)), round(np.log(high) / np.log(ALIKE))
            alike.setdefault(key, []).append(i)
        for group in alike.values():
            widest = max(group, key=lambda i: self._reach[i][1])
            low, high = self._reach[widest]
            edges = np.unique(np.where(CURVE < 0, -low * CURVE, high * CURVE))
            yield rounded(self.pairs[widest], edges), sum(self.counts[i] for i in group)

    @property
    def infinite(self) -> float:
        """Return the mass of infinite losses and of those out of reach."""
        beyond = 0.0
        for pair, (_, high), count in zip(self.pairs, self._reach, self.counts, strict=True):
            beyond += count * np.log1p(-min(float(pair.above(np.array([high]))[0][0]), 1 - 1e-16))
        return -float(np.expm1(beyond))

    def log_moments(self, thetas: Floats) -> Floats:
        """Return approximately ln E[e^{theta L}] of the sum."""
        return np.asarray(sum((n * sketch.log_moments(thetas) for sketch, n in self._sketches), np.zeros_like(thetas)))

    @property
    def deviation(self) -> float:
        """Return the standard deviation of the sum under P, which is never exactly zero."""
        total = sum(n * sketch.variance() for sketch, n in self._sketches)
        return float(np.sqrt(max(total, 1e-18)))

    def quantile(self, log_tail: float) -> tuple[float, float]:
        """Return a loss that is exceeded with at most about that probability (Chernoff), and the tilt that shows it."""
        return self._least(lambda moments, thetas: (moments - log_tail) / thetas)

    def log_tail(self, loss: float) -> tuple[float, float]:
        """Return an approximate upper bound on ln P(L > loss) (Chernoff), and the tilt that shows it."""
        bound, theta = self._least(lambda moments, thetas: moments - thetas * loss)
        return min(bound, 0.0), theta

    def _least(self, bound: Callable[[Floats, Floats], Floats]) -> tuple[float, float]:
        """Minimise a bound over tilts: first on a coarse grid, then between the neighbours of its minimum."""
        best = int(np.argmin(np.where(self._mild, bound(self._moments, THETAS), np.inf)))
        fine = np.geomspace(THETAS[max(best - 1, 0)], THETAS[min(best + 1, len(THETAS) - 1)], 17)
        bounds = bound(self.log_moments(fine), fine)
        best = int(np.argmin(bounds))
        return float(bounds[best]), float(fine[best])

    def around(self, theta: float, log_delta: float, cells: float) -> Tail:
        """Return the upper tail of the sum around its mean under a tilt, in units of e^log_delta."""
        far = FAR if sum(self.counts) < 10_000 else FAR / 2
        theta = min(max(LEAN * theta, theta - far / self.deviation), STRONG / self.deviation)
        top, steep = self.quantile(log_delta + np.log(REST))
        window = self._window(theta, top, cells)
        if theta * window.step > 1:  # too strong a tilt for the spacing of the grid
            theta = 1 / window.step
            window = self._window(theta, top, cells)
        distributions = [window.rounded(pair, *reached) for pair, reached in zip(self.pairs, self._reach, strict=True)]
        logs, _, noise = window.convolved(distributions, self.counts, theta)
        lost = _any_infinite(distributions, self.counts)
        lost += _above(distributions, self.counts, steep, float(window.losses[-1]))
        lost *= float(np.exp(-log_delta))
        with np.errstate(over="ignore"):
            probs, noise = (np.minimum(np.exp(x - log_delta), 1e280) for x in (logs, noise))
            return Tail(window.losses, probs, lost, noise)

    def everything(self, points: int) -> Atoms:
        """Return the whole distribution of the sum as a pair.

        P and Q are accurate in both tails, because the result is assembled from several tilts.
        """
        top, steep = self.quantile(WHOLE)
        bottom, down = self._lower(WHOLE)
        margin = (top - bottom) / 30  # rounding moves some losses outwards
        bottom, top = bottom - margin, top + margin
        window = Window(bottom, (top - bottom) / (points - 2), points)
        distributions = [window.rounded(pair, *reached) for pair, reached in zip(self.pairs, self._reach, strict=True)]
        strong = 8 / self.deviation  # a normal sum reaches e^WHOLE at nine deviations
        up, down = min(steep, strong), min(down, strong)
        tilts = (up, up * 2 / 3, up / 3, 0.0, -1.0, -1 - down / 3, -1 - down * 2 / 3, -1 - down)
        logs, heights, _ = np.stack([window.convolved(distributions, self.counts, t) for t in tilts], axis=1)
        clearest = np.choose(np.argmax(heights, axis=0), logs)
        most = np.min(logs - heights + np.logaddexp(heights, DUST), axis=0)  # no tilt underestimates by more than DUST
        logs = np.minimum(clearest, most)
        p, q = np.exp(np.minimum(logs, 0.0)), np.exp(np.minimum(logs - window.losses, 0.0))
        lost = max(1 - float(p.sum()), _any_infinite(distributions, self.counts))
        lost += _above(distributions, self.counts, steep, float(window.losses[-1]))
        losses = np.concatenate([[-np.inf], window.losses, [np.inf]])
        return Atoms(losses, np.concatenate([[0.0], p, [lost]]), np.concatenate([[max(1 - q.sum(), 0.0)], q, [0.0]]))

    def _lower(self, log_tail: float) -> tuple[float, float]:
        """Return a loss below which Q has almost no mass, and the tilt of Q that shows it.

        E_Q[e^-tL] = E_P[e^-(t+1)L].
        """
        thetas = np.geomspace(1e-3, 1e4, 141)
        bounds = (log_tail - self.log_moments(-1 - thetas)) / thetas
        best = int(np.nanargmax(bounds))
        return float(bounds[best]), float(thetas[best])

    def _window(self, theta: float, top: float, cells: float) -> Window:
        most, bottom = MOST[cells], self._bottom(theta)
        # the error falls with the square of the cell size; for many, or many different, steps speed matters more
        cells *= 2 if sum(self.counts) >= 5000 or len(self.pairs) > 40 else 1
        width = max(top - bottom, 1e-3 * self.deviation)
        step = max(cells * self._deviation(theta), width / most, max(high for _, high in self._reach) / most)
        size = int(np.clip(np.ceil(width / step), 512, most))
        step, copies = max(step, width / (size - 2)), sum(self.counts)
        margin = int(min(copies, 40 + 10 * np.sqrt(copies)))  # number of cells by which rounding may raise a sum
        return Window(bottom, step, next_fast_len(size + margin, real=True))

    def _bottom(self, theta: float) -> float:
        """Return a loss below which a tilted sum has almost no mass."""
        down = np.geomspace(1e-2, 1e2, 61) / self.deviation
        here = float(self.log_moments(np.array([theta]))[0])
        return float(np.nanmax((np.log(1e-13) - self.log_moments(theta - down) + here) / down))

    def _deviation(self, theta: float) -> float:
        """Return the standard deviation of the loss of an average step under a tilt."""
        return float(np.sqrt(sum(n * sketch.variance(theta) for sketch, n in self._sketches) / sum(self.counts)))


@dataclass(frozen=True)
class Window:
    """A grid of losses on which sums are computed modulo its length."""

    bottom: float
    step: float
    size: int

    @property
    def first(self) -> int:
        """Return the index of the lowest loss, in steps."""
        return int(np.floor(self.bottom / self.step))

    @property
    def losses(self) -> Floats:
        """Return the losses of the grid [size]."""
        return np.asarray(np.arange(self.first, self.first + self.size) * self.step, dtype=np.float64)

    def rounded(self, pair: Pair, low: float, high: float) -> Rounded:
        """Round a pair, with losses in [low, high], to multiples of the step."""
        low = max(low, -self.step * self.size)  # a lower loss takes the sum out of the window wherever it is placed
        places = np.arange(np.floor(low / self.step) - 1, np.ceil(high / self.step) + 2)
        return rounded(pair, places * self.step)

    def convolved(
        self, distributions: Sequence[Rounded], counts: Sequence[int], theta: float
    ) -> tuple[Floats, Floats, Floats]:
        """Convolve the copies of all pairs under a tilt.

        Returns:
            For every loss of the window: ln P, ln of its probability under the tilted distribution, and ln of the
                rounding error in P.
        """
        spectrum, weight = np.ones(self.size // 2 + 1, dtype=np.complex128), 0.0
        for distribution, count in zip(distributions, counts, strict=True):
            tilts = theta * distribution.losses
            peak = float(tilts[distribution.probs > 0].max(initial=-np.inf))
            tilted = distribution.probs * np.exp(np.minimum(tilts - peak, 0.0))
            mass = float(tilted.sum())
            places = np.rint(distribution.losses / self.step).astype(np.int64) % self.size
            spectrum *= _power(rfft(np.bincount(places, tilted / mass, minlength=self.size)), count)
            weight += count * (np.log(mass) + peak)
        shares = np.maximum(np.roll(irfft(spectrum, self.size), -(self.first % self.size)), 0.0)
        noise = NOISE * sum(counts) * float(shares.max())  # rounding error; grows with the power, must not reduce mass
        heights, scale = np.log(shares + noise), weight - theta * self.losses
        return heights + scale, heights, np.log(noise) + scale


def _above(distributions: Sequence[Rounded], counts: Sequence[int], theta: float, loss: float) -> float:
    """Return an upper bound on the mass of all sums above a loss (Chernoff)."""
    each = zip(distributions, counts, strict=True)
    moments = sum(n * float(distribution.log_moments(np.array([theta]))[0]) for distribution, n in each)
    return float(np.exp(min(moments - theta * loss, 0.0)))


def _power(spectrum: NDArray[np.complex128], count: int) -> NDArray[np.complex128]:
    """Return the spectrum of `count` copies; frequencies whose power is below e^-90 are set to zero."""
    if count == 1:
        return spectrum
    large = np.flatnonzero(spectrum.real**2 + spectrum.imag**2 > np.exp(-180 / count))
    out = np.zeros_like(spectrum)
    out[large] = spectrum[large] ** count
    return out


def _any_infinite(distributions: Sequence[Rounded], counts: Sequence[int]) -> float:
    each = zip(distributions, counts, strict=True)
    return -float(np.expm1(sum(n * np.log1p(-min(distribution.infinite, 1 - 1e-16)) for distribution, n in each)))


@dataclass(frozen=True)
class Tail:
    """Probabilities of the losses on a grid and of those beyond it, in some unit of delta."""

    losses: Floats
    probs: Floats
    lost: float
    noise: Floats  # part of the probabilities that may be rounding error

    def _clear(self, k: int) -> bool:
        """Return whether the masses from index k on are more than rounding error."""
        return bool(self.noise[k:].sum() < BLUR)

    def _sums(self, around: float) -> tuple[Floats, Floats]:
        """Return, for all losses from each index on, the P-mass, and the Q-mass times e^around."""
        with np.errstate(over="ignore", invalid="ignore"):
            other = np.minimum(np.nan_to_num(self.probs * np.exp(around - self.losses)), 1e280)
        return np.cumsum(self.probs[::-1])[::-1], np.cumsum(other[::-1])[::-1]

    def epsilon(self) -> tuple[float, bool]:
        """Return an upper bound on the epsilon at which delta is one unit, and whether it is clearly in the window."""
        goal = (1 - REST) - self.lost
        if goal <= 0:
            return np.inf, True
        p = np.cumsum(self.probs[::-1])[::-1]
        around = float(self.losses[int(np.searchsorted(-p, -goal))]) if p[-1] < goal else float(self.losses[-1])
        p, q = self._sums(around)
        with np.errstate(over="ignore", invalid="ignore"):
            deltas = p - q * np.exp(self.losses - around)  # at the grid points, where a point's own mass cancels
        over = np.flatnonzero(np.where(np.isnan(deltas), p, deltas) > goal)
        if not len(over):  # nothing is known below the window
            return float(self.losses[0]), bool(self.losses[0] <= 0)
        k = int(over[-1]) + 1
        if k >= len(self.losses):
            return float(self.losses[-1]), True
        crossing = around + np.log(p[k] - goal) - np.log(q[k]) if p[k] > goal else self.losses[k]
        return max(float(crossing), float(self.losses[k - 1])), self._clear(k)

    def delta(self, epsilon: float) -> tuple[float, bool]:
        """Return an upper bound on delta in units, and whether it is clearly in the window."""
        if epsilon < self.losses[0]:
            return np.inf, False
        k = int(np.searchsorted(self.losses, epsilon, side="right"))
        if k >= len(self.losses):
            return self.lost, True
        p, q = self._sums(epsilon)
        return float(max(p[k] - q[k], 0.0) * (1 + REST) + self.lost), self._clear(k)


def epsilon(pairs: Sequence[Pair], counts: Sequence[int], delta: float, cells: float = FINE) -> float:
    """Return the smallest epsilon >= 0 at which the composition of all copies is (epsilon, delta)-DP; one direction."""
    if sum(counts) == 1:
        return _epsilon_of_one(pairs[0], delta)
    if delta < SMALLEST:
        raise UnsupportedEvent(f"losses are not added up for a delta below {SMALLEST:g}.")
    log_delta = float(np.log(delta))
    total = LossSum(pairs, counts, log_delta)
    if total.infinite >= delta:
        return np.inf
    _, theta = total.quantile(log_delta)
    best = np.inf
    while True:
        tail = total.around(theta, log_delta, cells)
        bound, clear = tail.epsilon()
        best = min(best, max(0.0, bound))  # an upper bound in every case
        if clear or theta < LEAST / total.deviation:
            return best
        theta /= 4  # the window was above the answer, so move it down


def delta(pairs: Sequence[Pair], counts: Sequence[int], epsilon: float, cells: float = FINE) -> float:
    """Return the smallest delta at which the composition of all copies is (epsilon, delta)-DP; one direction."""
    if sum(counts) == 1:
        return exact.delta(pairs[0], epsilon)
    guess = max(LossSum(pairs, counts, -30.0).log_tail(epsilon)[0], -600.0)
    total = LossSum(pairs, counts, guess)
    log_tail, theta = total.log_tail(epsilon)
    if log_tail < -600:  # (almost) out of reach
        return min(1.0, 1e-250 + total.infinite)
    best = 1.0
    while True:
        scaled, clear = total.around(theta, log_tail, cells).delta(epsilon)
        best = min(best, float(np.exp(log_tail)) * scaled)
        if clear or theta < LEAST / total.deviation:
            return best
        theta /= 4


def _epsilon_of_one(pair: Pair, target: float) -> float:
    if exact.delta(pair, 0.0) <= target:
        return 0.0
    high = 1.0
    while exact.delta(pair, high) > target:
        high *= 2
        if high > HUGE:
            return np.inf
    root = float(brentq(lambda e: exact.delta(pair, e) - target, 0.0, high, xtol=1e-13, rtol=1e-13))
    return root * (1 + 1e-12)


def composition(pairs: Sequence[Pair], counts: Sequence[int], points: int = 2**16) -> Atoms:
    """Return the composition of all copies as a pair, for a sampler that draws whole rounds; one direction.

    Args:
        pairs: the pairs.
        counts: the number of copies of each pair.
        points: the number of grid points of the result.
    """
    total = LossSum(pairs, counts, WHOLE)
    if total.infinite > 1 - 1e-6:
        return Atoms([-np.inf, np.inf], [0.0, 1.0], [1.0, 0.0])
    return total.everything(points)
