"""Minimise a loss with a flat slope and compare with the bound of Theorem 2: Li et al. (2025), Eq. (7).

One client, no noise. F(w) = log(1 + w^2) is 2-smooth, its gradient is at most 1, and it is not convex: it is weakly
convex for rho = 1/4 and for no smaller rho.

python examples/errata/li_convergence.py
"""

import numpy as np

L, G, RHO, RATE, EPOCHS, START = 2.0, 1.0, 0.25, 0.1, 2, 1e6  # the rate is below 1 / (4 L), as the theorem asks


def bound(rounds: int) -> float:
    """Return the right side of Eq. (7) for K = N = 1 and no noise."""
    u, w = 1 - RATE * RHO, 6 * L * G**2 + 8 * (EPOCHS - 1) ** 2 * G**2
    return L * u**rounds / 2 * START**2 + (1 - u) * w / RHO**2


w = np.linspace(-10, 10, 100_001)
slope, bend = 2 * w / (1 + w**2), 2 * (1 - w**2) / (1 + w**2) ** 2
print(
    f"The slope is at most {np.max(np.abs(slope)):.2f}, its derivative between {bend.min():.2f} and {bend.max():.2f}."
)
weight, losses = START, [np.log1p(START**2)]
for _ in range(2000):
    for _ in range(EPOCHS):
        weight -= RATE * 2 * weight / (1 + weight**2)
    losses.append(np.log1p(weight**2))
for rounds in (0, 1000, 1500, 2000):
    print(f"After {rounds:,} rounds Eq. (7) allows {bound(rounds):.3g}; the loss is {losses[rounds]:.1f}.")
