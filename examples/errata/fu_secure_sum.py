"""Add up Laplace noise of many clients: Fu et al. (2024), Section 3.4.2, noise Lap(0, epsilon / (K Delta f)) a client.

python examples/errata/fu_secure_sum.py
"""

import numpy as np

EPSILON, CLIENTS = 1.0, 10  # the sensitivity is 1
x = np.linspace(-40, 40, 2**16, endpoint=False)
frequency = 2 * np.pi * np.fft.fftfreq(len(x), x[1] - x[0])


def density(power: float, scale: float) -> np.ndarray:
    """Return the density of noise with the characteristic function (1 + (scale t)^2)^-power."""
    values = np.fft.ifft((1 + (scale * frequency) ** 2) ** -power).real
    return np.fft.fftshift(np.maximum(values, 0)) / (x[1] - x[0])


def delta(noise: np.ndarray) -> float:
    """Return delta at epsilon = 1 for a shift by 1."""
    steps = round(1 / (x[1] - x[0]))
    shifted = np.roll(noise, steps)
    return float(np.sum(np.maximum(noise - np.exp(EPSILON) * shifted, 0)) * (x[1] - x[0]))


printed = density(CLIENTS, EPSILON / CLIENTS)  # the sum of ten independent Lap(0.1)
shares = density(CLIENTS * (1 / CLIENTS), 1 / EPSILON)  # of ten differences of two Gamma(1/10) variables
print(f"Ten clients with Lap(0, 0.1) each: the sum has delta = {delta(printed):.3f} at epsilon = 1, not 0.")
print(f"Ten clients with Gamma(1/10, 1) - Gamma(1/10, 1) each: the sum is Lap(0, 1), delta = {delta(shares):.3f}.")
for epsilon in (0.1, 1.0, 10.0):
    print(
        f"Lap(0, epsilon / Delta f) at epsilon = {epsilon:g} has pure level {1 / epsilon:g}: more budget, more noise."
    )
