"""Statistics of a released mean update: how strong, sparse and heavy-tailed its signal is, corrected for known noise.

Feng et al. (2025), Section 3.3: "the Harmonizer computes both the sparsity ratio and gradient magnitude distribution".
The paper computes them from private gradients, we from what was released, so they cost no privacy.

Model: a share p of the coordinates carries signal from one symmetric distribution, the others none. With s2, s4, s6 the
moments of the signal over all coordinates,
    kurtosis  s4 / s2^2       = (kurtosis of the distribution) / p;
    tail      s6 s2 / s4^2    = the same ratio of the distribution itself, as p cancels: 1 for two points, 5/3 for a
                                normal and 5/2 for a Laplace distribution.
The tail determines the kurtosis of the distribution (`of_law`, exact for generalised normal distributions), and p is
that kurtosis over the measured one. If the sixth moment is lost in its own sampling error, the tail is unknown and the
distribution is taken to be normal: p = 3 / kurtosis.

The moments of the signal S follow from those of X = S + N by cumulants, which are additive:
kappa_j(S) = kappa_j(X) - kappa_j(N). The noise has kappa_2 = v, kappa_4 = excess v^2, and kappa_6 close to 0, as it is
a sum of many draws."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import gammaln
from torch import Tensor

from sordino.core.rng import Floats

HEAVY = 6.0  # kurtosis of a Laplace distribution, and of a normal one with half of its values set to zero
NORMAL, LAPLACE = 5 / 3, 5 / 2  # tails of these distributions
CLEAR, CLEARLY = 3.0, 4.0  # standard errors above which the sixth moment, and the signal itself, count as significant
LEAST = 2  # smallest number of coordinates that carry signal


@dataclass(frozen=True)
class ReleasedStatistics:
    """Statistics of the signal in a released update."""

    signal: float  # mean square of the signal over that of the noise
    kurtosis: float  # kurtosis of the signal; 3 is normal
    visible: bool  # whether the signal stands out from the noise
    density: float = 1.0  # share of the coordinates that carry signal
    tail: float | None = None  # tail of those coordinates: 5/3 is normal, 5/2 Laplace; None: unknown

    @property
    def data(self) -> str | None:
        """The description in Table 2 that fits; None if the signal is not visible.

        It is "sparse", which favours Laplace noise, if few coordinates carry the signal or their tails are heavy: both
        make the kurtosis large."""
        return None if not self.visible else "sparse" if self.kurtosis >= HEAVY else "dense"


def seen(update: Tensor, variance: float, excess: float) -> ReleasedStatistics:
    """Return the statistics of a released mean update [dim] whose noise has this variance and excess kurtosis."""
    x = update.double()
    n, unit = max(1, x.numel()), float(x.abs().max()) if x.numel() else 0.0
    if unit > 0:  # prevents overflow of the twelfth powers
        x, variance = x / unit, variance / unit**2
    m2, m4, m6 = (float((x**j).mean()) for j in (2, 4, 6))
    s2 = m2 - variance
    visible = s2 > CLEARLY * math.sqrt((2 + excess) / n) * variance and s2 > 0
    signal = s2 / variance if variance > 0 else 0.0
    if not visible:
        return ReleasedStatistics(signal, 3.0, False)
    fourth, sixth = m4 - 3 * m2**2 - excess * variance**2, m6 - 15 * m4 * m2 + 30 * m2**3  # cumulants of the signal
    s4 = fourth + 3 * s2**2
    s6 = sixth + 15 * s4 * s2 - 30 * s2**3
    kurtosis = max(1.0, s4 / s2**2)
    error = math.sqrt(max(0.0, float((x**12).mean()) - m6**2) / n)
    tail = max(1.0, s6 * s2 / s4**2) if s4 > 0 and s6 > CLEAR * error else None
    density = min(1.0, max(of_law(NORMAL if tail is None else tail) / kurtosis, LEAST / n))
    return ReleasedStatistics(signal, kurtosis, True, density, tail)


def of_law(tail: float) -> float:
    """Return the kurtosis of the generalised normal distribution e^{-|x|^b} with this tail.

    Tails below that of the uniform distribution are interpolated down to the distribution on two points."""
    tails, kurtosis = _LAWS
    return float(np.interp(tail, tails, kurtosis))


def _laws() -> tuple[Floats, Floats]:
    """Return the tails of generalised normal distributions, in ascending order, and their kurtosis."""
    b = 1 / np.linspace(1 / 0.3, 1e-6, 400)  # from very heavy tails to uniform
    g1, g3, g5, g7 = (gammaln(k / b) for k in (1, 3, 5, 7))
    tails, kurtosis = np.exp(g7 + g3 - 2 * g5), np.exp(g5 + g1 - 2 * g3)
    return np.append(tails, 1.0)[::-1].copy(), np.append(kurtosis, 1.0)[::-1].copy()


_LAWS = _laws()
