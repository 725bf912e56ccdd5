"""Tell neighbouring data apart by the scale of the noise, which follows R: Li et al. (2025), Eq. (4) to (6).

A client validates on 100 records, and one of them changes the accuracy of the full model from 0.60 to 0.61.

python examples/errata/li_leak.py
"""

import numpy as np
from scipy.stats import chi2

from sordino import accounting

EPSILON, DELTA = 0.5, 0.02


def tolerance(both: float, general: float, private: float) -> float:
    """Return T = R - 2 ln(delta), to whose root the noise is proportional."""
    return (both - general + private) / (2 * both) - 2 * np.log(DELTA)


def least_delta(weights: int, square: float) -> float:
    """Return the delta of a test of the squared distance; `square` is the ratio of the two variances.

    That the centres differ as well only helps the test, as the distance from the centre with less noise grows.
    """
    threshold = (2 * EPSILON + weights * np.log(square)) / (1 - 1 / square)
    return float(chi2.sf(threshold / square, weights) - np.exp(EPSILON) * chi2.sf(threshold, weights))


before, after = tolerance(0.60, 0.50, 0.30), tolerance(0.61, 0.50, 0.30)
ratios = [t + 2 * np.log(DELTA) for t in (before, after)]
print(f"R moves from {ratios[0]:.4f} to {ratios[1]:.4f}, and the noise by {np.sqrt(after / before) - 1:.4%}.")
for name, weights in (("26,010 weights", 26_010), ("ResNet-18, 11,173,962 weights", 11_173_962)):
    delta = least_delta(weights, after / before)
    print(f"{name}: from the scale of one upload alone, delta is at least {delta:.1e} at epsilon = 0.5.")
mu = (40 * 11_173_962 / 2) ** 0.5 * float(np.log(after / before))  # a sum of many small losses is nearly Gaussian
epsilon = accounting.epsilon(accounting.Gaussian(1 / mu), 1e-5)
print(f"Forty uploads to which this happens are about {mu:.1f}-GDP apart: epsilon {epsilon:.0f} at delta 1e-5.")
