"""Price the Gaussian mechanism that is compared with Laplace: El Ouadrhiri et al. (2022), Eq. (5), Table 2, Figure 5.

python examples/errata/ouadrhiri_gaussian.py
"""

from sordino import accounting

for epsilon in (0.5, 1.0, 2.0, 5.0):
    noise = accounting.Gaussian(1 / epsilon)  # N(0, Delta^2 / epsilon^2)
    needed = accounting.calibrate(accounting.Gaussian, epsilon, 1e-5)
    print(
        f"epsilon = {epsilon:g}: delta is {accounting.delta(noise, epsilon):.4f}; at delta = 1e-5 the noise costs "
        f"{accounting.epsilon(noise, 1e-5):.2f}. ({epsilon:g}, 1e-5)-DP needs "
        f"{needed * epsilon:.2f} times as much."
    )
