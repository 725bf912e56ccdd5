"""Derive Laplace and geometric noise from other mechanisms: El Ouadrhiri et al. (2022), Definitions 7 and 8, Table 2.

python examples/errata/ouadrhiri_exponential.py
"""

import numpy as np

EPSILON = 1.0
y = np.linspace(-60, 60, 1_200_001)


def exponential(sign: float, answer: float) -> np.ndarray:
    """Return the density of the exponential mechanism with score -|answer - y| (sensitivity 1)."""
    weights = np.exp(sign * EPSILON * -np.abs(answer - y) / 2)
    return weights / (weights.sum() * (y[1] - y[0]))


mean = float(np.sum(np.abs(y) * exponential(1.0, 0.0)) * (y[1] - y[0]))
level = float(np.max(np.log(exponential(1.0, 0.0)) - np.log(exponential(1.0, 1.0))))
print(f"With score -|f - y| the exponential mechanism is Laplace noise of scale {mean:.3f}, not 1: level {level:.3f}.")
best, worst = exponential(-1.0, 0.0)[600_000], exponential(-1.0, 0.0)[0]
print(f"With the sign of Table 2, an answer that is off by 60 is {worst / best:.1e} times as likely as the right one.")
chance = float(np.exp(EPSILON * 5 / 2))
print(f"Read as a probability, e^(epsilon u / 2) is {chance:.1f} for a score of 5.")
for change in (1, 3):
    print(f"Geometric noise with epsilon = 1 has level {EPSILON * change:g} if a record changes the count by {change}.")
