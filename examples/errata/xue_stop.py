"""Follow the stopping rule of Algorithm 2 round by round: Xue et al. (2023), Algorithms 2 and 4.

python examples/errata/xue_stop.py
"""

import numpy as np

from sordino import accounting

TARGET = 1e-5


def algorithm4(epsilon: float, rounds: int, sigma: float) -> float:
    """Return delta by Algorithm 4 after this many participations."""
    orders = np.arange(np.floor(2 + np.log(1 / TARGET) / epsilon), 5000)
    return float(np.exp(np.min((orders - 1) * (rounds * orders / (2 * sigma**2) - epsilon))))


for epsilon, sigma in ((0.3, 26.0), (0.5, 26.0), (2.0, 26.0), (8.0, 10.0)):
    rounds = 1
    while algorithm4(epsilon, rounds, sigma) <= TARGET:
        rounds += 1  # lines 15 to 18 compare delta with delta* after the uploads
    before, after = algorithm4(epsilon, rounds - 1, sigma), algorithm4(epsilon, rounds, sigma)
    print(f"epsilon = {epsilon:g}, sigma_0 = {sigma:g}: the algorithm stops after {rounds} rounds with {after:.2e};")
    print(f"  after {rounds - 1} rounds its delta was {before:.2e}.")
exact = accounting.delta(accounting.Repeated(accounting.Gaussian(26.0), 7), 0.5)
loose = algorithm4(0.5, 7, 26.0) / exact
print(f"For seven rounds at epsilon = 0.5 and public scales the exact delta is {exact:.2e}, {loose:.0f} times smaller.")
