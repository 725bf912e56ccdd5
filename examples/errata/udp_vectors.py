"""Price staircase noise on the vector of a gradient, which UDP-FL never does: Feng et al. (2025), Sections 4 and 5.2.

A gradient is clipped in L2 to C, and each of d coordinates gets staircase noise with step C, as if it were alone. A
record that changes all coordinates by C / sqrt(d) moves each by a sliver of a step, and each sliver can cost lambda.

python examples/errata/udp_vectors.py
"""

import numpy as np
from scipy.stats import binom

from sordino import accounting

DIM, RATE, STEPS, DELTA, GAMMA = 26_010, 0.05, 300, 1e-5, 0.5
LAM = 1.3639  # gamma = 1/2 is randomized response: the price of one coordinate by itself is exact


def delta_of(epsilon: float, shift: float) -> float:
    """Return delta for one release of all coordinates, each shifted by this many steps (at most 2 gamma)."""
    b = np.exp(-LAM)
    plus = shift / (2 * (GAMMA + b * (1 - GAMMA)))  # probability of the loss +lambda; b plus is that of -lambda
    some = np.arange(1, DIM + 1)
    some = some[binom.pmf(some, DIM, plus * (1 + b)) > 1e-18]
    total = 0.0
    for n in some:  # coordinates whose loss is not zero
        k = np.arange(n + 1)
        gain = np.maximum(-np.expm1(np.minimum(epsilon - LAM * (2 * k - n), 0.0)), 0.0)
        total += binom.pmf(n, DIM, plus * (1 + b)) * float(binom.pmf(k, n, 1 / (1 + b)) @ gain)
    return total


def epsilon_of(delta: float, shift: float) -> float:
    """Return the smallest epsilon at delta, by bisection."""
    low, high = 0.0, DIM * LAM
    while high - low > 0.05:
        middle = (low + high) / 2
        low, high = (middle, high) if delta_of(middle, shift) > delta else (low, middle)
    return high


alone = accounting.epsilon(accounting.Repeated(accounting.Sampled(accounting.Pure(LAM), RATE), STEPS), DELTA)
once = epsilon_of(DELTA, 1 / np.sqrt(DIM))
drawn = float(np.log1p(RATE * np.expm1(epsilon_of(DELTA / RATE, 1 / np.sqrt(DIM)))))  # a Poisson step
print(
    f"One coordinate by itself, lambda = {LAM}: {STEPS} steps with rate {RATE:g} "
    f"cost epsilon {alone:.2f} at delta 1e-5."
)
print(f"All {DIM:,} coordinates of a dense gradient: one step costs epsilon {once:.0f}, one sampled step {drawn:.0f}.")
print(f"The pure level of the vector is d lambda = {DIM * LAM:,.0f}.")
steps = int(np.ceil(np.sqrt(DIM)))
print(
    f"As a density of the L1 norm: a clip to C in L2 allows {np.sqrt(DIM):.1f} C in L1, "
    f"a level of up to {steps * LAM:.0f}."
)
