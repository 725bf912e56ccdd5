"""Ask what the staircase saves when little is spent per round: Feng et al. (2025), Section 4.1, after Lemma 1.

python examples/errata/udp_saving.py
"""

import numpy as np

from sordino import accounting


def least_variance(lam: float) -> float:
    """Return the smallest variance of staircase noise for sensitivity 1: Geng and Viswanath (2016)."""
    b = np.exp(-lam)
    return float(((b * (1 + b) / 2) ** (2 / 3) + b) / (1 - b) ** 2)


saving = {lam: 1 - least_variance(lam) / (2 / lam**2) for lam in (0.1, 1.0, 5.0)}
shares = ", ".join(f"{100 * share:.3g} % at epsilon = {lam:g}" for lam, share in saving.items())
print(
    f"The saving of Delta^2/12 is in comparison with Laplace noise alone, "
    f"and it is this share of its variance: {shares}."
)

PER_ROUND, ROUNDS, DELTA = 0.05, 300, 1e-5
total = accounting.epsilon(accounting.Repeated(accounting.Pure(PER_ROUND), ROUNDS), DELTA)
z = accounting.calibrate(lambda noise: accounting.Repeated(accounting.Gaussian(noise), ROUNDS), total, DELTA)
gaussian, staircase = z**2, least_variance(PER_ROUND)
print(
    f"At {ROUNDS} rounds of {PER_ROUND:g}-DP (in total epsilon {total:.2f} at delta 1e-5) the staircase has variance "
    f"{staircase:.0f}; Gaussian noise with the same total has variance {gaussian:.0f}."
)
print(
    f"Compared with Gaussian noise nothing is saved: the staircase needs {staircase / gaussian:.2f} times its variance."
)
