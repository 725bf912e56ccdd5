"""Count clients and weights in the convergence bound: Xue et al. (2023), Lemma 8 and Theorem 3.

python examples/errata/xue_convergence.py
"""

import numpy as np
from scipy.stats import norm

# Lemma 8: clients drawn m of n have m T / n rounds each; the variance of one upload is c L_i
for drawn, printed in ((1, "1"), (2, "1"), (3, "1/2")):
    share = (1 / drawn**2) * drawn * drawn  # variance of the mean of m uploads, each c m T / n, in units of c T / n
    print(f"Lemma 8, {drawn} of n clients: printed {printed} c T / n, true {share:g} c T / n.")

inside = 2 * norm.cdf(np.sqrt(3)) - 1
print(f"Theorem 3: noise stays within the root of 3 variances with probability {inside:.4f}, not close to 1;")
print(f"of 26,010 weights {26_010 * (1 - inside):,.0f} do not. Three standard deviations would have 0.9973.")

rng = np.random.default_rng(2)
few, many = (float(np.std(rng.standard_normal((n, 5000)).mean(axis=0))) for n in (50, 700))
print(f"From 50 to 700 clients the printed bound falls by a factor of 14, the noise by {few / many:.1f}.")
