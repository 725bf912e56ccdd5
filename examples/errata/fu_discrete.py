"""Compute moments and divergences of integer noise: Fu et al. (2024), Definitions 2.19 and 2.20.

python examples/errata/fu_discrete.py
"""

import numpy as np
from scipy.special import ive

k = np.arange(-400, 401)


def discrete_gaussian(sigma: float) -> np.ndarray:
    """Return the probabilities of Eq. (10) for mean 0."""
    weights = np.exp(-(k**2) / (2 * sigma**2))
    return weights / weights.sum()


for sigma in (0.3, 0.5, 1.0):
    print(f"sigma^2 = {sigma**2:g}: the discrete Gaussian has variance {np.sum(k**2 * discrete_gaussian(sigma)):.4f}.")

half = discrete_gaussian(0.5)
two, one = np.convolve(half, half), discrete_gaussian(np.sqrt(0.5))
print(f"A sum of two with sigma^2 = 0.25 is 0 with probability {two[800]:.4f}, and not {one[400]:.4f} as for 0.5.")

mu = 10.0
print(f"Skellam noise with mu = 10: the probabilities e^-mu I_k(mu) sum to {ive(k, mu).sum():.4f},")
print(f"and their variance is {np.sum(k**2 * ive(k, mu)):.2f}; with I_0 for I_k each would be {ive(0, mu):.4f}.")
