"""Count clients and weights in the convergence bound: Xue et al. (2023), Lemma 8 and Theorem 3.

python examples/errata/xue_convergence.py
"""

from math import comb

import numpy as np
from scipy.stats import norm

N = 50  # clients, of whom m take part in a round; all variances are in units of c T / n of Lemma 7

PROOF = {1: 1.0, 2: (N - 1) / 2 * 2 / (N - 1), 3: 3 * (N - 1) * (N - 2) / (6 * (N - 1) * (N - 2))}

for m, printed in PROOF.items():
    uploads = comb(N - 1, m - 1) / comb(N, m)  # expected number of uploads of a client, per round
    true = m / m**2 * uploads * N  # the mean of m uploads, each with variance c times the number of uploads
    print(f"Lemma 8, {m} of {N} clients: the proof has {printed:g} c T / n; the variance is {true:g} c T / n.")

inside = 2 * norm.cdf(np.sqrt(3)) - 1
print(f"Theorem 3: noise stays within the root of 3 variances with probability {inside:.4f}, not close to 1;")
print(f"of 26,010 weights {26_010 * (1 - inside):,.0f} do not. Three standard deviations would have 0.9973.")

rng = np.random.default_rng(2)
few, many = (float(np.std(rng.standard_normal((n, 5000)).mean(axis=0))) for n in (50, 700))
print(f"From 50 to 700 clients the printed bound falls by a factor of 14, the noise by {few / many:.1f}.")
