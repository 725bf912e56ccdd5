"""Compose randomised response exactly: El Ouadrhiri et al. (2022), Eq. (9) and the text on Renyi divergence.

python examples/errata/ouadrhiri_composition.py
"""

from math import comb

import numpy as np
from scipy.stats import binom


def exact(k: int, epsilon: float, total: float) -> float:
    """Return delta of k uses of randomised response at the level `total`, over all numbers of truthful answers."""
    n = np.arange(k + 1)
    p = binom.pmf(n, k, np.exp(epsilon) / (1 + np.exp(epsilon)))
    return float(np.sum(p * np.maximum(1 - np.exp(total - (2 * n - k) * epsilon), 0)))


def kov(k: int, epsilon: float, i: int, sign: int) -> float:
    """Return delta_i of Eq. (9); the exponent of the second term has this sign."""
    terms = (comb(k, m) * (np.exp((k - m) * epsilon) - np.exp(sign * (k - 2 * i + m) * epsilon)) for m in range(i))
    return float(sum(terms) / (1 + np.exp(epsilon)) ** k)


print(
    f"k = 10, epsilon = 0.5, i = 3: Eq. (9) gives delta {kov(10, 0.5, 3, -1):.6f}; exact is {exact(10, 0.5, 2.0):.6f},"
)
print(f"which Eq. (9) gives with a plus sign in the second exponent: {kov(10, 0.5, 3, 1):.6f}.")

k, epsilon, delta = 100, 0.1, 1e-5
low, high = 0.0, k * epsilon
for _ in range(50):
    middle = (low + high) / 2
    low, high = (middle, high) if exact(k, epsilon, middle) > delta else (low, middle)
a = np.arange(1.01, 200, 0.01)
truth = np.exp(epsilon) / (1 + np.exp(epsilon))
divergence = np.log(truth**a * (1 - truth) ** (1 - a) + (1 - truth) ** a * truth ** (1 - a)) / (a - 1)
by_renyi = float(np.min(k * divergence + np.log(1 / delta) / (a - 1)))  # Eq. (13)
print(f"100 answers with epsilon = 0.1 at delta = 1e-5: {high:.4f} by Eq. (9) in its right form, which is optimal;")
print(f"by Renyi divergence, Eq. (13), {by_renyi:.4f}.")
