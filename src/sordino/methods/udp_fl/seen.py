"""What a released mean update looks like: how strong, how sparse, how heavy-tailed, with its known noise taken off.

Feng et al. (2025), Section 3.3: "the Harmonizer computes both the sparsity ratio and gradient magnitude distribution".
There of private gradients; here of what was released, so it costs nothing.

Model: a share p of the coordinates carries signal of one symmetric law, the others none. With s2, s4, s6 the moments of
the signal over all coordinates,
    kurtosis  s4 / s2^2       = (kurtosis of the law) / p;
    tail      s6 s2 / s4^2    = the same ratio of the law itself: p cancels. Two points 1, normal 5/3, Laplace 5/2.
The tail tells the law's kurtosis (`of_law`, exact for generalised normal laws), and p = (that) / kurtosis. Where the
sixth moment is lost in its own sampling error the tail is not known and the law is taken for normal, p = 3 / kurtosis.

Moments of the signal S follow from those of X = S + N by cumulants, which add up: kappa_j(S) = kappa_j(X) - kappa_j(N).
The noise has kappa_2 = v, kappa_4 = excess v^2, and kappa_6 close to 0: it is a sum of many draws."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import gammaln
from torch import Tensor

from sordino.core.rng import Floats

HEAVY = 6.0  # kurtosis of a Laplace law; and of normal numbers of which half are zero
NORMAL, LAPLACE = 5 / 3, 5 / 2  # tails
CLEAR, CLEARLY = 3.0, 4.0  # standard errors that the sixth moment, and the signal as such, must have to be believed
LEAST = 2  # coordinates that a share is never below


@dataclass(frozen=True)
class ReleasedStatistics:
    signal: float  # mean square above that of the noise, over that of the noise
    kurtosis: float  # of the signal; 3 is normal
    visible: bool  # whether the signal stands out of the noise at all
    density: float = 1.0  # share of the coordinates that carry signal
    tail: float | None = None  # of those; 5/3 is normal, 5/2 Laplace; None: not to be seen

    @property
    def data(self) -> str | None:
        """The row of Table 2 that it looks like, where anything is seen: for Laplace noise where few coordinates carry
        the signal or their tails are heavy, both of which make its kurtosis large."""
        return None if not self.visible else "sparse" if self.kurtosis >= HEAVY else "dense"


def seen(update: Tensor, variance: float, excess: float) -> ReleasedStatistics:
    """Of a released mean [dim] whose noise has this variance and excess kurtosis."""
    x = update.double()
    n, unit = max(1, x.numel()), float(x.abs().max()) if x.numel() else 0.0
    if unit > 0:  # twelfth powers stay within floats
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
    """Kurtosis of the generalised normal law e^{-|x|^b} with that tail; below the uniform law, down to two points."""
    tails, kurtosis = _LAWS
    return float(np.interp(tail, tails, kurtosis))


def _laws() -> tuple[Floats, Floats]:
    b = 1 / np.linspace(1 / 0.3, 1e-6, 400)  # from very heavy tails to uniform
    one, three, five, seven = (gammaln(k / b) for k in (1, 3, 5, 7))
    tails, kurtosis = np.exp(seven + three - 2 * five), np.exp(five + one - 2 * three)
    return np.append(tails, 1.0)[::-1].copy(), np.append(kurtosis, 1.0)[::-1].copy()


_LAWS = _laws()
