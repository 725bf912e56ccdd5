"""Change one record of a client and look at its clipped weights: Li et al. (2025), Eq. (6), sensitivity 2C / |D|.

Least squares with one weight: 499 records that are zero, and one record (x, y) = (5, 100) or (5, -100).

python examples/errata/li_sensitivity.py
"""

import numpy as np

from sordino import accounting

RECORDS, BATCH, RATE, EPOCHS, GRADIENT_CLIP, C = 500, 50, 0.1, 2, 20.0, 1.0  # the paper's, except C, which it omits
EPSILON, DELTA, RATIO = 0.5, 0.02, 0.5


def clipped_weight(label: float) -> float:
    """Return the client's weight after training from zero, clipped to C as before the noise of Eq. (6)."""
    x, y = np.zeros(RECORDS), np.zeros(RECORDS)
    x[0], y[0] = 5.0, label
    weight = 0.0
    for _ in range(EPOCHS):
        for batch in np.split(np.arange(RECORDS), RECORDS // BATCH):
            gradient = np.mean((weight * x[batch] - y[batch]) * x[batch])
            weight -= RATE * float(np.clip(gradient, -GRADIENT_CLIP, GRADIENT_CLIP))
    return float(np.clip(weight, -C, C))


change = clipped_weight(100.0) - clipped_weight(-100.0)
claimed = 2 * C / RECORDS
sigma = claimed * np.sqrt(RATIO + 2 * np.log(1 / DELTA)) / EPSILON
factor = change / claimed
print(f"One record changes the clipped weight by {change:g}; Eq. (6) counts {claimed:g}, {factor:.0f} times less.")
delta = accounting.delta(accounting.Gaussian(sigma / change), EPSILON)
total = accounting.epsilon(accounting.Gaussian(sigma / change), 1e-5)
print(f"The noise of Eq. (6) for epsilon = 0.5 has standard deviation {sigma:.4f}: delta is {delta:.4f}, not 0.02.")
print(f"At delta = 1e-5 the one round costs epsilon {total:,.0f}.")
