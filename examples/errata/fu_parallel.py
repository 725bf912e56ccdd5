"""Move a record from one chunk to another: Fu et al. (2024), Lemma 2.7 (parallel composition).

Each of two chunks of a dataset publishes its number of records with Laplace noise of scale 1, which is 1-DP.

python examples/errata/fu_parallel.py
"""

import numpy as np

grid = np.linspace(-20, 30, 2001)  # outputs of the first count; those of the second are treated alike


def log_density(count: int) -> np.ndarray:
    """Return the logarithm of the density of count + Lap(1), up to a constant."""
    return -np.abs(grid - count)


def level(before: tuple[int, int], after: tuple[int, int]) -> float:
    """Return the largest logarithm of a ratio of the joint densities of both outputs."""
    return sum(float(np.max(log_density(b) - log_density(a))) for b, a in zip(before, after, strict=True))


print(f"A record is removed, (5, 5) to (4, 5): epsilon = {level((5, 5), (4, 5)):g}, the maximum, as in Lemma 2.7.")
print(f"A record is replaced and changes chunk, (5, 5) to (4, 6): epsilon = {level((5, 5), (4, 6)):g}, the sum.")
