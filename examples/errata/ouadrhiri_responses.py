"""Compute the level of coin tosses and flipped bits: El Ouadrhiri et al. (2022), Eq. (25) and Section IV-B (Apple).

python examples/errata/ouadrhiri_responses.py
"""

import numpy as np

for epsilon in (0.5, 1.0, 1.9, 2.0):
    truth = epsilon / 2 + (1 - epsilon / 2) / 2  # Eq. (25) and the two lines that follow it
    with np.errstate(divide="ignore"):
        level = float(np.log(truth) - np.log(1 - truth))
    right = np.exp(epsilon) / (1 + np.exp(epsilon))
    print(
        f"Eq. (25), epsilon = {epsilon:g}: truth with probability {truth:.4f}, level {level:.4f}; right is {right:.4f}."
    )

for epsilon in (1.0, 2.0, 4.0):
    printed, right = 1 / (1 + np.exp(epsilon) / 2), 1 / (1 + np.exp(epsilon / 2))
    levels = [2 * np.log((1 - p) / p) for p in (printed, right)]  # two values differ in two positions
    print(
        f"Count mean sketch, epsilon = {epsilon:g}: flips with probability {printed:.4f}, level {abs(levels[0]):.4f}; "
        f"with 1 / (1 + e^(epsilon/2)) = {right:.4f} the level is {levels[1]:.4f}."
    )
