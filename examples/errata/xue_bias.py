"""Compute the mean of a released weight: Xue et al. (2023), Eq. (2), Lemma 6 and Theorem 2 (no bias).

python examples/errata/xue_bias.py
"""

import numpy as np

K, ETA, BETA = 16, 0.01, 1.1  # the paper's settings


def trained(start: float, target: float) -> tuple[float, float]:
    """Return the weight after K steps on (w - target)^2 / 2, and the mean of what Eq. (4) releases."""
    weights, gradients = [start], [0.0]
    for _ in range(K):
        gradients.append(weights[-1] - target)
        weights.append(weights[-1] - ETA * gradients[-1])
    q = BETA / 2 * abs(weights[K - 1] - ETA * gradients[K - 1])  # Eq. (2); the noise of Eq. (4) has mean zero
    return weights[K], float(np.clip(weights[K], start - q, start + q))


for start in (0.0, 0.05, 0.1, 1.0):
    weight, mean = trained(start, start + 1.0)
    print(f"A weight that starts at {start:g} and is trained to {weight:.4f} is released with mean {mean:.4f}.")
print("Theorem 2 says that the two are equal. The bias of a mean over clients is the same, however many there are.")
