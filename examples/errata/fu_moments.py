"""Ask for the order at which the moments accountant finds its delta: Fu et al. (2024), Definition 2.10, Eq. (4).

python examples/errata/fu_moments.py
"""

import numpy as np
from scipy.stats import norm

EPSILON = 6.0
orders = np.linspace(0.01, 30, 3000)
moments = orders * (orders + 1) / 2  # G_alpha of Eq. (3), for Gaussian noise with sigma = 1 and sensitivity 1
best = int(np.argmin(moments - orders * EPSILON))
delta = float(np.exp(moments[best] - orders[best] * EPSILON))
exact = float(norm.cdf(0.5 - EPSILON) - np.exp(EPSILON) * norm.cdf(-0.5 - EPSILON))
print(f"At epsilon = 6 the minimum is at alpha = {orders[best]:.1f}, where G = {moments[best]:.1f}, above epsilon.")
print(f"Its delta = {delta:.2e} is nevertheless right (the exact one is {exact:.2e}).")
print(
    f"No Gaussian mechanism meets G <= epsilon for all alpha, as G grows without bound: at 30 it is {moments[-1]:.0f}."
)
