"""Add up the rounds that Theorem 1 does not count: Li et al. (2025), Section IV-A, 400 rounds with 10 % of the clients.

python examples/errata/li_total.py
"""

import numpy as np

from sordino import accounting

RATIO, DELTA, RECORDS = 0.5, 0.02, 500

for epsilon in (0.1, 0.2, 0.3, 0.4, 0.5):
    multiplier = float(np.sqrt(RATIO + 2 * np.log(1 / DELTA))) / epsilon  # noise over 2C / |D|, Eq. (5) and (6)
    granted = [accounting.epsilon(accounting.Repeated(accounting.Gaussian(multiplier), n), 1e-5) for n in (40, 400)]
    true = accounting.epsilon(accounting.Gaussian(multiplier / RECORDS), 1e-5)
    print(
        f"epsilon = {epsilon:g}: with sensitivity 2C / |D| 40 rounds cost {granted[0]:.2f} and 400 rounds "
        f"{granted[1]:.2f}; with 2C one round costs {true:,.0f}."
    )
