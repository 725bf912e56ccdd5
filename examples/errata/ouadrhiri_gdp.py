"""Compare the conversion of Gaussian DP with the exact one: El Ouadrhiri et al. (2022), Eq. (22) to (24), Figure 6.

python examples/errata/ouadrhiri_gdp.py
"""

from collections.abc import Callable

import numpy as np

from sordino import accounting

SIGMA, DELTA = 20.0, 1e-5


def exact(k: int) -> float:
    """Return epsilon of k Gaussian releases."""
    return accounting.epsilon(accounting.Gaussian(SIGMA / np.sqrt(k)), DELTA)


def printed(k: int) -> float:
    """Return Eq. (24)."""
    return float(np.sqrt(2 * np.log(2 / DELTA) * k) / SIGMA)


def renyi(k: int) -> float:
    """Return Eq. (14), whose minimum is at alpha = 1 + sigma sqrt(2 log(1 / delta) / k)."""
    return float(k / (2 * SIGMA**2) + np.sqrt(2 * k * np.log(1 / DELTA)) / SIGMA)


def most(bound: Callable[[int], float], epsilon: float) -> int:
    """Return the largest number of releases that a bound allows at this epsilon, by bisection."""
    low, high = 1, 10_000
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if bound(middle) <= epsilon else (low, middle)
    return low


for k in (400, 1000, 2000, 4000):
    delta = accounting.delta(accounting.Gaussian(SIGMA / np.sqrt(k)), printed(k))
    print(f"{k:,} releases: Eq. (24) prints {printed(k):.2f}, exact is {exact(k):.2f}, Eq. (14) has {renyi(k):.2f};")
    print(f"  at the epsilon of Eq. (24) delta is {delta:.1e} where 1e-05 is promised.")
crossing = most(lambda k: exact(k) - printed(k), 0.0) + 1
print(f"From {crossing:,} releases on, where epsilon is {exact(crossing):.2f}, Eq. (24) is below the truth.")
for epsilon in (7.0, 12.0):
    counts = [most(bound, epsilon) for bound in (renyi, printed, exact)]
    print(f"epsilon = {epsilon:g}: {counts[0]:,} releases by (14), {counts[1]:,} by (24), {counts[2]:,} in truth.")
