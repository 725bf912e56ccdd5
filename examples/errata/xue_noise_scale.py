"""Tell neighbouring data apart by the scale of their noise: Xue et al. (2023), Eq. (2) to (4), no weight being zero.

python examples/errata/xue_noise_scale.py
"""

import numpy as np
from scipy.stats import chi2

EPSILON = 0.5


def least_delta(k: int, ratio: float) -> float:
    """Return the delta of the best test if k weights have `ratio` times as much noise under the neighbouring data."""
    threshold = 2 * (EPSILON + k * np.log(ratio)) / (1 - ratio**-2)
    return float(chi2.sf(threshold / ratio**2, k) - np.exp(EPSILON) * chi2.sf(threshold, k))


for k, ratio in ((1, 2.0), (10, 2.0), (100, 1.5), (26_010, 1.01), (26_010, 1.02)):
    print(
        f"{k:,} weights with {ratio:g} times the noise: delta is at least {least_delta(k, ratio):.4f} at epsilon = 0.5."
    )

# one record lights 100 pixels that are dark in all others, and a step of 0.01 moves their 3,200 weights by 0.00014
rng = np.random.default_rng(1)
start = rng.uniform(-1 / 28, 1 / 28, 3200)
log_ratio = np.log(np.abs(start + 0.00014 * rng.choice([-1, 1], 3200)) / np.abs(start))
square = np.ones((2000, 1)) * 0.0
for part in np.array_split(np.arange(3200), 8):
    z = rng.standard_normal((2000, len(part)))
    square += np.sum(0.5 * z**2 * np.expm1(2 * log_ratio[part]) - log_ratio[part], axis=1, keepdims=True)
delta = float(np.mean(np.maximum(1 - np.exp(EPSILON - square), 0)))
print(f"An image with 100 pixels of its own, after one step with learning rate 0.01: delta is {delta:.2f}.")
