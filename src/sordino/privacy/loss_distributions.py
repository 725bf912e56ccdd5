"""Many privacy losses added up: pairs rounded to a grid on the safe side, copies convolved by Fourier transforms.

Rounding ("connect the dots", Doroshenko, Ghazi, Kamath, Kumar, Manurangsi 2022, arXiv:2207.04380): the mass of a cell
is split between its two edges so that both the P- and the Q-mass are kept, which gives a pair that dominates the
first one.

Before it is transformed, a distribution is tilted by e^{theta loss} so that the losses which decide delta lie in its
middle (the change of measure of large deviations): delta is then exact to many digits however small it is, and the
window of the transform is a few standard deviations wide. What lies above the window is bounded by Chernoff and added
to delta; what lies below wraps around to the top, which is on the safe side too.
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
FINE, ROUGH, SLOPPY = 2e-3, 3e-2, 0.2  # cells of a grid, in standard deviations of one step's loss
MOST = {FINE: 2**20, ROUGH: 2**19, SLOPPY: 2**15}  # points of a transform
ALIKE = 1.2  # pairs whose losses reach as far, to this factor, are sketched together
REST = 1e-8  # share of delta that is given up to what lies above a window, and another to rounding of floats
THETAS: Floats = np.geomspace(1e-4, 1e7, 111)
CURVE: Floats = np.sinh(np.linspace(-1, 1, 601) * np.arcsinh(1e6)) / 1e6  # in [-1, 1], dense around 0
WHOLE = -40.0  # ln of the mass that may be left out where a whole law is wanted
FAR = 5.0  # deviations that a tilt may stay behind the saddle point, where rounding would show
LEAST = 1e-3  # the weakest tilt, likewise
STRONG = 40.0  # tilts stay below that many inverse standard deviations
DUST = float(np.log(1e-15))  # more than rounding can take from a share in a transform
MILD = 200.0  # tilts are looked for below that many inverse standard deviations
TINY = 1e-290
BLUR = 1e-4  # share of delta that may be rounding
NOISE = 1e-16  # rounding of a share, for each copy, in units of the largest share
SMALLEST = 1e-200  # delta
HUGE = 1e6  # a loss beyond which nobody asks
SIZES: Floats = np.geomspace(1.37e-9, HUGE, 241)  # no round numbers: atoms often lie there
LEAN = 0.6  # tilt, as a share of the saddle point: the whole of it would lift a heavy upper tail into the window


@dataclass(frozen=True)
class Rounded:
    """Probabilities of ascending losses under P; the rest is infinite."""

    losses: Floats
    probs: Floats
    infinite: float

    def variance(self, theta: float = 0.0) -> float:
        """Of the losses under a tilt."""
        some = self.probs > 0
        losses, probs = self.losses[some], self.probs[some]
        if not len(losses):
            return 0.0
        weights = probs * np.exp(theta * losses - max(theta * losses[0], theta * losses[-1]))
        weights /= weights.sum()
        return float(weights @ (losses - float(weights @ losses)) ** 2)

    def log_moments(self, thetas: Floats) -> Floats:
        """ln E[e^{theta L}; L finite]."""
        some = self.probs > 0
        losses, probs = self.losses[some], self.probs[some]
        if not len(losses):
            return np.full_like(thetas, -np.inf)
        peaks = np.maximum(thetas * losses[0], thetas * losses[-1])
        return np.asarray(np.log(np.exp(np.outer(thetas, losses) - peaks[:, None]) @ probs) + peaks)


def rounded(pair: Pair, edges: Floats) -> Rounded:
    """Connect the dots at ascending edges; losses above the last become infinite, losses below the first rise to it."""
    over, under = exact.tails(pair, edges)
    p, q = (  # differences of the smaller tail are the precise ones
        np.maximum(np.where((up < down)[:-1], up[:-1] - up[1:], down[1:] - down[:-1]), 0.0)
        for up, down in zip(over, under, strict=True)
    )
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        low = np.exp(edges[:-1] + np.log(q) - np.log(p))  # what the left edge keeps of Q, for each of P: at most 1
        right = p * (1 - low) / -np.expm1(edges[:-1] - edges[1:])
    right = np.where(q > TINY, np.clip(np.nan_to_num(right, nan=0.0), 0.0, p), p)  # a Q too small has no digits
    probs = np.append(p - right, 0.0)
    probs[1:] += right
    probs[0] += under[0][0]
    return Rounded(edges, probs, float(over[0][-1]))


def reach(pair: Pair, tail: float) -> tuple[float, float]:
    """Losses low < 0 < high outside of which P has at most `tail` on either side (infinite losses apart)."""
    over, under = pair.above(SIZES)[0], pair.below(-SIZES)[0]
    return -float(_first(SIZES, under <= tail)), float(_first(SIZES, over - over[-1] <= tail))


def _first(sizes: Floats, enough: NDArray[np.bool_]) -> float:
    return float(sizes[np.argmax(enough)]) if enough.any() else HUGE


class LossSum:
    """The loss of independent pairs, each with the number of its copies; one direction."""

    def __init__(self, pairs: Sequence[Pair], counts: Sequence[int], log_delta: float) -> None:
        self.pairs, self.counts = pairs, counts
        tail = max(np.exp(max(log_delta, -600.0)) * REST / sum(counts), 1e-280)
        self._reach = [reach(pair, min(tail, 1e-14)) for pair in pairs]
        self._sketches = list(self._sketch())
        self._moments = self.log_moments(THETAS)
        self._mild = self.deviation * THETAS < MILD  # steeper tilts would see nothing but the largest sum

    def _sketch(self) -> Iterator[tuple[Rounded, int]]:
        """A few unequal cells of each pair, with its count: good enough to choose tilts and windows by.

        Of the releases of a schedule whose losses reach about as far, both ways, one stands for all.
        """
        alike: dict[tuple[int, int], list[int]] = {}
        for i, (low, high) in enumerate(self._reach):
            key = round(np.log(-low) / np.log(ALIKE)), round(np.log(high) / np.log(ALIKE))
            alike.setdefault(key, []).append(i)
        for group in alike.values():
            one = max(group, key=lambda i: self._reach[i][1])
            low, high = self._reach[one]
            edges = np.unique(np.where(CURVE < 0, -low * CURVE, high * CURVE))
            yield rounded(self.pairs[one], edges), sum(self.counts[i] for i in group)

    @property
    def infinite(self) -> float:
        """The mass of infinite losses and of those out of reach."""
        beyond = 0.0
        for pair, (_, high), count in zip(self.pairs, self._reach, self.counts, strict=True):
            beyond += count * np.log1p(-min(float(pair.above(np.array([high]))[0][0]), 1 - 1e-16))
        return -float(np.expm1(beyond))

    def log_moments(self, thetas: Floats) -> Floats:
        """About ln E[e^{theta L}] of the sum."""
        return np.asarray(sum((n * one.log_moments(thetas) for one, n in self._sketches), np.zeros_like(thetas)))

    @property
    def deviation(self) -> float:
        """The standard deviation of the sum under P; never quite zero."""
        total = sum(n * one.variance() for one, n in self._sketches)
        return float(np.sqrt(max(total, 1e-18)))

    def quantile(self, log_tail: float) -> tuple[float, float]:
        """A loss that is exceeded with about that probability at most (Chernoff), and the tilt that shows it."""
        return self._least(lambda moments, thetas: (moments - log_tail) / thetas)

    def log_tail(self, loss: float) -> tuple[float, float]:
        """About the most that ln P(L > loss) can be (Chernoff), and the tilt that shows it."""
        found, theta = self._least(lambda moments, thetas: moments - thetas * loss)
        return min(found, 0.0), theta

    def _least(self, bound: Callable[[Floats, Floats], Floats]) -> tuple[float, float]:
        """The best tilt on a coarse grid, then between its neighbours."""
        best = int(np.argmin(np.where(self._mild, bound(self._moments, THETAS), np.inf)))
        fine = np.geomspace(THETAS[max(best - 1, 0)], THETAS[min(best + 1, len(THETAS) - 1)], 17)
        bounds = bound(self.log_moments(fine), fine)
        best = int(np.argmin(bounds))
        return float(bounds[best]), float(fine[best])

    def around(self, theta: float, log_delta: float, cells: float) -> Tail:
        """The upper tail of the sum around its mean under a tilt, in units of e^log_delta."""
        far = FAR if sum(self.counts) < 10_000 else FAR / 2
        theta = min(max(LEAN * theta, theta - far / self.deviation), STRONG / self.deviation)
        top, steep = self.quantile(log_delta + np.log(REST))
        window = self._window(theta, top, cells)
        if theta * window.step > 1:  # a tilt that neighbours on the grid would not survive
            theta = 1 / window.step
            window = self._window(theta, top, cells)
        ones = [window.rounded(pair, *reached) for pair, reached in zip(self.pairs, self._reach, strict=True)]
        logs, _, noise = window.convolved(ones, self.counts, theta)
        lost = _any_infinite(ones, self.counts) + _above(ones, self.counts, steep, float(window.losses[-1]))
        lost *= float(np.exp(-log_delta))
        with np.errstate(over="ignore"):
            probs, noise = (np.minimum(np.exp(x - log_delta), 1e280) for x in (logs, noise))
            return Tail(window.losses, probs, lost, noise)

    def everything(self, points: int) -> Atoms:
        """The whole law of the sum as a pair: P and Q precise in both tails, put together from several tilts."""
        top, steep = self.quantile(WHOLE)
        bottom, down = self._lower(WHOLE)
        margin = (top - bottom) / 30  # rounding moves some losses out
        bottom, top = bottom - margin, top + margin
        window = Window(bottom, (top - bottom) / (points - 2), points)
        ones = [window.rounded(pair, *reached) for pair, reached in zip(self.pairs, self._reach, strict=True)]
        strong = 8 / self.deviation  # a normal sum has e^WHOLE nine deviations out
        up, down = min(steep, strong), min(down, strong)
        tilts = (up, up * 2 / 3, up / 3, 0.0, -1.0, -1 - down / 3, -1 - down * 2 / 3, -1 - down)
        logs, heights, _ = np.stack([window.convolved(ones, self.counts, t) for t in tilts], axis=1)
        clearest = np.choose(np.argmax(heights, axis=0), logs)
        most = np.min(logs - heights + np.logaddexp(heights, DUST), axis=0)  # no view is short of more than DUST
        logs = np.minimum(clearest, most)
        p, q = np.exp(np.minimum(logs, 0.0)), np.exp(np.minimum(logs - window.losses, 0.0))
        lost = max(1 - float(p.sum()), _any_infinite(ones, self.counts))
        lost += _above(ones, self.counts, steep, float(window.losses[-1]))
        losses = np.concatenate([[-np.inf], window.losses, [np.inf]])
        return Atoms(losses, np.concatenate([[0.0], p, [lost]]), np.concatenate([[max(1 - q.sum(), 0.0)], q, [0.0]]))

    def _lower(self, log_tail: float) -> tuple[float, float]:
        """A loss below which Q hardly ever falls, and the tilt of Q that shows it: E_Q[e^-tL] = E_P[e^-(t+1)L]."""
        thetas = np.geomspace(1e-3, 1e4, 141)
        bounds = (log_tail - self.log_moments(-1 - thetas)) / thetas
        best = int(np.nanargmax(bounds))
        return float(bounds[best]), float(thetas[best])

    def _window(self, theta: float, top: float, cells: float) -> Window:
        most, bottom = MOST[cells], self._bottom(theta)
        # the error falls with the square of a cell; of many steps, and of many unlike ones, speed is worth more
        cells *= 2 if sum(self.counts) >= 5000 or len(self.pairs) > 40 else 1
        width = max(top - bottom, 1e-3 * self.deviation)
        step = max(cells * self._deviation(theta), width / most, max(high for _, high in self._reach) / most)
        size = int(np.clip(np.ceil(width / step), 512, most))
        step, copies = max(step, width / (size - 2)), sum(self.counts)
        margin = int(min(copies, 40 + 10 * np.sqrt(copies)))  # cells by which rounding may lift a sum
        return Window(bottom, step, next_fast_len(size + margin, real=True))

    def _bottom(self, theta: float) -> float:
        """A loss below which a tilted sum hardly ever falls."""
        down = np.geomspace(1e-2, 1e2, 61) / self.deviation
        here = float(self.log_moments(np.array([theta]))[0])
        return float(np.nanmax((np.log(1e-13) - self.log_moments(theta - down) + here) / down))

    def _deviation(self, theta: float) -> float:
        """The standard deviation of an average step's loss under a tilt."""
        return float(np.sqrt(sum(n * one.variance(theta) for one, n in self._sketches) / sum(self.counts)))


@dataclass(frozen=True)
class Window:
    """A grid of losses on which sums are computed modulo its length."""

    bottom: float
    step: float
    size: int

    @property
    def first(self) -> int:
        return int(np.floor(self.bottom / self.step))

    @property
    def losses(self) -> Floats:
        return np.asarray(np.arange(self.first, self.first + self.size) * self.step, dtype=np.float64)

    def rounded(self, pair: Pair, low: float, high: float) -> Rounded:
        low = max(low, -self.step * self.size)  # so low a loss takes the sum out of the window, wherever it is put
        places = np.arange(np.floor(low / self.step) - 1, np.ceil(high / self.step) + 2)
        return rounded(pair, places * self.step)

    def convolved(self, ones: Sequence[Rounded], counts: Sequence[int], theta: float) -> tuple[Floats, Floats, Floats]:
        """ln P of every loss of the window, ln of its share in the tilted law, ln of the rounding in P."""
        spectrum, weight = np.ones(self.size // 2 + 1, dtype=np.complex128), 0.0
        for one, count in zip(ones, counts, strict=True):
            tilts = theta * one.losses
            peak = float(tilts[one.probs > 0].max(initial=-np.inf))
            tilted = one.probs * np.exp(np.minimum(tilts - peak, 0.0))
            mass = float(tilted.sum())
            places = np.rint(one.losses / self.step).astype(np.int64) % self.size
            spectrum *= _power(rfft(np.bincount(places, tilted / mass, minlength=self.size)), count)
            weight += count * (np.log(mass) + peak)
        shares = np.maximum(np.roll(irfft(spectrum, self.size), -(self.first % self.size)), 0.0)
        noise = NOISE * sum(counts) * float(shares.max())  # rounding grows with the power, and must take nothing away
        heights, scale = np.log(shares + noise), weight - theta * self.losses
        return heights + scale, heights, np.log(noise) + scale


def _above(ones: Sequence[Rounded], counts: Sequence[int], theta: float, loss: float) -> float:
    """The mass of all sums above a loss, at most (Chernoff)."""
    moments = sum(n * float(one.log_moments(np.array([theta]))[0]) for one, n in zip(ones, counts, strict=True))
    return float(np.exp(min(moments - theta * loss, 0.0)))


def _power(spectrum: NDArray[np.complex128], count: int) -> NDArray[np.complex128]:
    """The spectrum of `count` copies; frequencies whose power is below e^-90 are left at zero."""
    if count == 1:
        return spectrum
    large = np.flatnonzero(spectrum.real**2 + spectrum.imag**2 > np.exp(-180 / count))
    out = np.zeros_like(spectrum)
    out[large] = spectrum[large] ** count
    return out


def _any_infinite(ones: Sequence[Rounded], counts: Sequence[int]) -> float:
    each = zip(ones, counts, strict=True)
    return -float(np.expm1(sum(n * np.log1p(-min(one.infinite, 1 - 1e-16)) for one, n in each)))


@dataclass(frozen=True)
class Tail:
    """Probabilities of the losses on a grid and of those beyond it, in some unit of delta."""

    losses: Floats
    probs: Floats
    lost: float
    noise: Floats  # the part of the probabilities that may be rounding

    def _clear(self, k: int) -> bool:
        """Whether what is known from a place on is more than rounding."""
        return bool(self.noise[k:].sum() < BLUR)

    def _sums(self, around: float) -> tuple[Floats, Floats]:
        """Of all losses from each place on: the P-mass, and the Q-mass times e^around."""
        with np.errstate(over="ignore", invalid="ignore"):
            other = np.minimum(np.nan_to_num(self.probs * np.exp(around - self.losses)), 1e280)
        return np.cumsum(self.probs[::-1])[::-1], np.cumsum(other[::-1])[::-1]

    def epsilon(self) -> tuple[float, bool]:
        """Where delta is one unit, at most; and whether that lies clearly in the window."""
        goal = (1 - REST) - self.lost
        if goal <= 0:
            return np.inf, True
        p = np.cumsum(self.probs[::-1])[::-1]
        around = float(self.losses[int(np.searchsorted(-p, -goal))]) if p[-1] < goal else float(self.losses[-1])
        p, q = self._sums(around)
        with np.errstate(over="ignore", invalid="ignore"):
            deltas = p - q * np.exp(self.losses - around)  # at the places themselves: a place's own mass cancels
        over = np.flatnonzero(np.where(np.isnan(deltas), p, deltas) > goal)
        if not len(over):  # nothing is known of what lies lower
            return float(self.losses[0]), bool(self.losses[0] <= 0)
        k = int(over[-1]) + 1
        if k >= len(self.losses):
            return float(self.losses[-1]), True
        found = around + np.log(p[k] - goal) - np.log(q[k]) if p[k] > goal else self.losses[k]
        return max(float(found), float(self.losses[k - 1])), self._clear(k)

    def delta(self, epsilon: float) -> tuple[float, bool]:
        """In units, at most; and whether it was seen clearly."""
        if epsilon < self.losses[0]:
            return np.inf, False
        k = int(np.searchsorted(self.losses, epsilon, side="right"))
        if k >= len(self.losses):
            return self.lost, True
        p, q = self._sums(epsilon)
        return float(max(p[k] - q[k], 0.0) * (1 + REST) + self.lost), self._clear(k)


def epsilon(pairs: Sequence[Pair], counts: Sequence[int], delta: float, cells: float = FINE) -> float:
    """The least epsilon >= 0 at which the composition of all copies is (epsilon, delta)-DP; one direction."""
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
        found, clear = tail.epsilon()
        best = min(best, max(0.0, found))  # an upper bound in any case
        if clear or theta < LEAST / total.deviation:
            return best
        theta /= 4  # the window was above the answer: look lower


def delta(pairs: Sequence[Pair], counts: Sequence[int], epsilon: float, cells: float = FINE) -> float:
    """The least delta at which the composition of all copies is (epsilon, delta)-DP; one direction."""
    if sum(counts) == 1:
        return exact.delta(pairs[0], epsilon)
    guess = max(LossSum(pairs, counts, -30.0).log_tail(epsilon)[0], -600.0)
    total = LossSum(pairs, counts, guess)
    log_tail, theta = total.log_tail(epsilon)
    if log_tail < -600:  # out of reach, or nearly
        return min(1.0, 1e-250 + total.infinite)
    best = 1.0
    while True:
        found, clear = total.around(theta, log_tail, cells).delta(epsilon)
        best = min(best, float(np.exp(log_tail)) * found)
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


def whole(pairs: Sequence[Pair], counts: Sequence[int], points: int = 2**16) -> Atoms:
    """The composition of all copies as a pair of its own, for a sampler that draws whole rounds; one direction."""
    total = LossSum(pairs, counts, WHOLE)
    if total.infinite > 1 - 1e-6:
        return Atoms([-np.inf, np.inf], [0.0, 1.0], [1.0, 0.0])
    return total.everything(points)
