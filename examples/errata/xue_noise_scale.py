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


def network_delta(seed: int) -> float:
    """Return delta of one step with learning rate 0.01 on a batch of 64 images, one of which lights 100 dark pixels.

    The network has 784 inputs, 32 hidden units and 10 classes, and the usual initial weights; only the weights of the
    100 pixels are looked at. Their noise follows |w|, which the step changes if the image is there. The loss is that of
    two Gaussians of the same mean, as their means differ by far less than one standard deviation.
    """
    rng = np.random.default_rng(seed)
    first, second = rng.uniform(-1 / 28, 1 / 28, (784, 32)), rng.uniform(-1, 1, (32, 10)) / np.sqrt(32)
    image = np.where(np.arange(784) < 100, 1.0, 0.0)
    hidden = image @ first
    scores = np.exp(np.maximum(hidden, 0) @ second)
    error = scores / scores.sum() - (np.arange(10) == 3)  # the image shows a three
    step = 0.01 / 64 * (second @ error) * (hidden > 0)
    change = np.log(np.abs(1 - step / first[:100])).ravel()
    change = change[change != 0]
    normal = rng.standard_normal((1000, len(change)))
    loss = 0.5 * normal**2 @ np.expm1(2 * change) - change.sum()
    return float(np.mean(np.maximum(1 - np.exp(EPSILON - loss), 0)))


for k, ratio in ((1, 2.0), (10, 2.0), (100, 1.5), (26_010, 1.01), (26_010, 1.02)):
    delta = least_delta(k, ratio)
    print(f"{k:,} weights with {ratio:g} times the noise: delta is at least {delta:.4f} at epsilon = 0.5.")
deltas = [network_delta(seed) for seed in range(10)]
print(f"An image with 100 pixels of its own, one step, ten initial models: delta is {np.median(deltas):.2f} in the")
print(f"median and up to {max(deltas):.2f}. The paper promises 0.00001 after seven such rounds.")
