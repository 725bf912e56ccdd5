"""Add up the probabilities of local randomisers: Fu et al. (2024), Eq. (14) and (15).

python examples/errata/fu_ranges.py
"""

import numpy as np

EPSILON, X = 1.0, 0.5
s = np.exp(EPSILON / 2)
inside, outside = s / 2 * (s - 1) / (s + 1), (s - 1) / (2 * s * (s + 1))
left, right = (s * X - 1) / (s - 1), (s * X + 1) / (s - 1)
limit = (s + 1) / (s - 1)
for width in (limit, 2 * limit, 100 * limit):
    mass = inside * (right - left) + outside * (2 * width - (right - left))
    print(f"Eq. (14) with reports in [-{width:.2f}, {width:.2f}] has total probability {mass:.4f}.")

values = 10
p, q = np.exp(EPSILON) / (np.exp(EPSILON) + values - 1), 1 / (np.exp(EPSILON) + values - 1)
print(f"Eq. (15) with {values} values: for v = x and v = 1 - x, as printed, the probabilities sum to {p + q:.4f};")
print(f"with each of the {values - 1} other values they sum to {p + (values - 1) * q:.4f}.")
