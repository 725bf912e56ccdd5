"""Release a weight with adaptive noise, with and without a record: Xue et al. (2023), Algorithm 3, Eq. (2) to (4).

Logistic regression on 20 records; the third feature is 0 in all of them, and 1 in one record of the neighbouring data.

python examples/errata/xue_zero_noise.py
"""

import numpy as np

K, ETA, BETA, SIGMA0, M = 4, 0.01, 1.1, 26.0, 26_010  # eta, beta and sigma_0 of Section VI; M as of a small network
rng = np.random.default_rng(0)
X = np.column_stack([rng.standard_normal((20, 2)), np.zeros(20)])
Y = (rng.random(20) > 0.5).astype(float)


def third_weight(x: np.ndarray) -> tuple[float, float]:
    """Return the centre and the standard deviation of the third weight's release; w_0 is zero."""
    weights = [np.zeros(3)]
    gradients = [np.zeros(3)]
    for _ in range(K):
        gradients.append(x.T @ (1 / (1 + np.exp(-(x @ weights[-1]))) - Y) / len(Y))
        weights.append(weights[-1] - ETA * gradients[-1])
    q = BETA / 2 * np.abs(weights[K - 1] - ETA * gradients[K - 1])  # Eq. (2), Algorithm 3, line 19
    return float(np.clip(weights[K], -q, q)[2]), float(np.sqrt(M) * SIGMA0 * 2 * q[2])


lit = X.copy()
lit[0, 2] = 1.0
without, present = third_weight(X), third_weight(lit)
orders = np.arange(25, 2000)
claimed = np.exp(np.min((orders - 1) * (orders / (2 * SIGMA0**2) - 0.5)))
print(f"Without the record the weight is released as {without[0]:g} with noise of standard deviation {without[1]:g}.")
print(f"With the record it is released as {present[0]:.2e} with noise of standard deviation {present[1]:.2f}.")
print("The event that a 0 is released has probability 1 and 0: delta is 1 for every epsilon.")
print(f"The claim for one round with sigma_0 = 26 is delta = {claimed:.1e} at epsilon = 0.5.")
