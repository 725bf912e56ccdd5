"""Compute the delta of the classical Gaussian mechanism: Fu et al. (2024), Section 2.3.1; El Ouadrhiri et al. (2022),
Eq. (22).

python examples/errata/fu_gaussian.py
"""

import numpy as np

from sordino import accounting

DELTA = 1e-5
for epsilon in (0.5, 1.0, 4.0, 8.0, 10.0, 20.0):
    fu = float(np.sqrt(2 * np.log(1.25 / DELTA))) / epsilon
    other = float(np.sqrt(2 * np.log(2 / DELTA))) / epsilon
    print(
        f"epsilon = {epsilon:g}: delta is {accounting.delta(accounting.Gaussian(fu), epsilon):.1e} with 1.25 / delta "
        f"and {accounting.delta(accounting.Gaussian(other), epsilon):.1e} with 2 / delta; promised is 1e-05."
    )
least = accounting.calibrate(accounting.Gaussian, 1.0, DELTA)
print(f"At epsilon = 1 the formula adds noise of {np.sqrt(2 * np.log(1.25 / DELTA)):.2f} where {least:.2f} is enough.")
