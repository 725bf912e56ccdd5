"""Split a local budget over the coordinates of a vector: Fu et al. (2024), Section 3.2 ("exponential increase").

python examples/errata/fu_dimension.py
"""

import numpy as np

EPSILON = 1.0


def split(dim: int) -> float:
    """Return the largest variance of a coordinate in [-1, 1] that Duchi's mechanism releases with epsilon / dim."""
    return float(1 / np.tanh(EPSILON / dim / 2) ** 2)


def sampled(dim: int) -> float:
    """Return the same if one coordinate is drawn, released with the whole epsilon and multiplied by dim (Harmony)."""
    return float(dim / np.tanh(EPSILON / 2) ** 2)


for dim in (10, 100, 1000, 10_000):
    print(f"{dim:,} coordinates: variance {split(dim):,.0f} if epsilon is split, {sampled(dim):,.0f} if one is drawn.")
print("Ten times as many coordinates: a hundred times the variance, or ten times. Both are powers, not exponentials.")
