"""Compute the delta of the noise of Eq. (6) and compare it with Theorem 1: Li et al. (2025), for a single round.

The sensitivity 2C / |D| is granted here; li_sensitivity.py shows that it is wrong.

python examples/errata/li_delta.py
"""

import numpy as np

from sordino import accounting

EPSILON, DELTA = 0.5, 0.02


def true_delta(tolerance: float) -> float:
    """Return delta at epsilon = 0.5 for noise of sqrt(tolerance) / epsilon sensitivities."""
    return accounting.delta(accounting.Gaussian(float(np.sqrt(tolerance)) / EPSILON), EPSILON)


print("Theorem 1: (epsilon, delta alpha / 2), with delta = 0.02, epsilon = 0.5 and R = 0:")
for alpha in (2.0, 1.0, 0.5, 0.1):
    true = true_delta(alpha * np.log(1 / DELTA))
    print(f"  alpha = {alpha:g}: printed {DELTA * alpha / 2:.4f}, true {true:.4f}.")
print("Theorem 1: (epsilon, e^beta delta) where the lower bound beta sets the noise:")
for beta in (0.1, 1.0, 5.0):
    print(f"  beta = {beta:g}: printed {np.exp(beta) * DELTA:.4f}, true {true_delta(beta):.4f}.")
lost = 500 * DELTA
print("A program that publishes each of 500 records in clear with probability 0.02 is (0, 0.02)-DP,")
print(f"and publishes {lost:.0f} of them in the mean.")
