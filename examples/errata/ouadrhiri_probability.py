"""Compare delta with the probability of a loss above epsilon: El Ouadrhiri et al. (2022), after Eq. (3).

python examples/errata/ouadrhiri_probability.py
"""

from scipy.stats import norm

from sordino import accounting

DELTA = 1e-5
for epsilon in (0.1, 1.0, 4.0):
    mu = 1 / accounting.calibrate(accounting.Gaussian, epsilon, DELTA)
    above = float(norm.cdf(mu / 2 - epsilon / mu))  # the loss of the Gaussian mechanism is N(mu^2 / 2, mu^2)
    print(
        f"Gaussian noise that is ({epsilon:g}, 1e-5)-DP has a loss above {epsilon:g} with probability {above:.1e}, "
        f"{above / DELTA:.1f} times delta."
    )
print(
    f"Publishing each of 1,000 records with probability 0.001 is (0, 0.001)-DP; of them {1000 * 0.001:g} is published"
)
print(
    f"in the mean, and at least one with probability {1 - (1 - 0.001) ** 1000:.2f}. The size of S plays no part in it."
)
