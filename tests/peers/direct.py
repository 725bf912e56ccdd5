"""A second accountant, as plain as can be: two laws over finitely many outcomes, all sums of losses written down.

Slow and exact (up to rounding near 1e-14 of delta) where losses coincide; a lower bound where they are put on a grid.
"""

from __future__ import annotations

import numpy as np
from scipy.optimize import brentq


def delta(p, q, copies: int, epsilon: float) -> float:
    """sup_S P(S) - e^epsilon Q(S) of so many independent copies."""
    losses, mass, infinite = _sums(p, q, copies)
    return float(infinite - mass @ np.expm1(np.minimum(epsilon - losses, 0.0)))


def epsilon(p, q, copies: int, delta: float) -> float:
    """The least epsilon >= 0 with delta(epsilon) <= delta."""
    losses, mass, infinite = _sums(p, q, copies)

    def excess(at):
        found = infinite - mass @ np.expm1(np.minimum(at - losses, 0.0))
        return np.log(max(found, 1e-320)) - np.log(delta)

    if excess(0.0) <= 0:
        return 0.0
    if infinite >= delta:
        return np.inf
    return float(brentq(excess, 0.0, float(losses.max()), xtol=1e-14, rtol=1e-14))


def mixed(*laws) -> tuple[np.ndarray, np.ndarray]:
    """Several independent releases as one: all pairs of outcomes."""
    p, q = np.ones(1), np.ones(1)
    for one, other in laws:
        p, q = np.outer(p, one).ravel(), np.outer(q, other).ravel()
    return p, q


def cells(cdf, shift: float, points: int = 20_001, far: float = 40.0) -> tuple[np.ndarray, np.ndarray]:
    """Noise with that distribution function, moved by `shift` or not, seen through cells: a function of the output.

    Whatever is computed from the cells is at most the truth.
    """
    at = np.linspace(-far, far + shift, points)
    laws = [np.diff(np.concatenate([[0.0], cdf(at - move), [1.0]])) for move in (shift, 0.0)]
    some = (laws[0] > 1e-15) & (laws[1] > 1e-15)  # smaller differences have no digits
    return laws[0][some], laws[1][some]


def _sums(p, q, copies: int, digits: int = 11) -> tuple[np.ndarray, np.ndarray, float]:
    """The sums of all losses with their masses under P, and the mass of an infinite one."""
    p, q = np.asarray(p, dtype=np.float64), np.asarray(q, dtype=np.float64)
    both = (p > 0) & (q > 0)
    one, infinite = _merged(np.log(p[both] / q[both]), p[both], digits), float(p[q <= 0].sum())
    losses, mass = np.zeros(1), np.ones(1)
    for _ in range(copies):
        losses, mass = _merged(np.add.outer(losses, one[0]).ravel(), np.outer(mass, one[1]).ravel(), digits)
    return losses, mass, -float(np.expm1(copies * np.log1p(-infinite)))


def _merged(losses, mass, digits: int) -> tuple[np.ndarray, np.ndarray]:
    """Equal losses, up to rounding, once; the first of them stands for all."""
    _, first, at = np.unique(np.round(losses, digits), return_index=True, return_inverse=True)
    return losses[first], np.bincount(at, mass)


def lower_epsilon(p, q, copies: int, delta: float, step: float) -> float:
    """At most the least epsilon: losses are rounded down to multiples of `step` and added up by a plain transform."""
    both = (p > 0) & (q > 0)
    places = np.floor(np.log(p[both] / q[both]) / step).astype(np.int64)
    low = int(places.min())
    one = np.bincount(places - low, p[both])
    size = copies * (len(one) - 1) + 1
    spectrum = np.fft.rfft(one, 2 ** int(np.ceil(np.log2(size)))) ** copies
    mass = np.maximum(np.fft.irfft(spectrum), 0.0)[:size]
    losses = (copies * low + np.arange(size)) * step

    def excess(at):
        return -float(mass @ np.expm1(np.minimum(at - losses, 0.0))) - 1e-13 - delta

    return float(brentq(excess, 0.0, float(losses[-1]), xtol=1e-12)) if excess(0.0) > 0 else 0.0
