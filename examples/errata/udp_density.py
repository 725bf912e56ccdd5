"""Integrate the staircase density of UDP-FL as printed: Feng et al. (2025), Section 4.1, the constant y.

python examples/errata/udp_density.py
"""

import numpy as np

STEP, V = 1.0, 0.3


def mass(lam: float, constant: float) -> float:
    """Return the integral over both halves of the line, step by step, with this numerator in y."""
    y = constant / (2 * STEP * (V + np.exp(-lam) * (1 - V)))
    k = np.arange(1000)
    return float(2 * STEP * np.sum(V * y * np.exp(-lam * k) + (1 - V) * y * np.exp(-lam * (k + 1))))


printed = {lam: mass(lam, 1 - np.exp(-1)) for lam in (0.1, 1.0, 2.0)}
right = {lam: mass(lam, 1 - np.exp(-lam)) for lam in printed}
print(
    "With the printed numerator 1 - e^-1 the staircase density has total mass "
    + ", ".join(f"{value:.4f} at lambda = {lam:g}" for lam, value in printed.items())
    + "."
)
print(
    "With 1 - e^-lambda it has " + ", ".join(f"{value:.4f} at lambda = {lam:g}" for lam, value in right.items()) + "."
)
