"""Integrate the Renyi divergence of Laplace noise: El Ouadrhiri et al. (2022), Eq. (15).

python examples/errata/ouadrhiri_laplace.py
"""

import numpy as np
from scipy.integrate import quad


def integrated(a: float, scale: float) -> float:
    """Return the divergence of order a between Laplace noise and the same noise shifted by 1, from the densities."""

    def term(x: float) -> float:
        return float(np.exp(-a * abs(x) / scale - (1 - a) * abs(x - 1) / scale) / (2 * scale))

    mass = sum(quad(term, *ends)[0] for ends in ((-60 * scale, 0), (0, 1), (1, 60 * scale)))
    return float(np.log(mass) / (a - 1))


def printed(a: float, scale: float) -> float:
    """Return Eq. (15) for k = 1 without its last term."""
    first = np.log(a / (2 * a - 1) * np.exp((a - 1) / scale)) / (a - 1)
    return float(first + (a - 1) / (2 * a - 1) * np.exp((a - 1) / scale))


def right(a: float, scale: float) -> float:
    """Return the formula of Mironov (2017), Table II."""
    inside = a / (2 * a - 1) * np.exp((a - 1) / scale) + (a - 1) / (2 * a - 1) * np.exp(-a / scale)
    return float(np.log(inside) / (a - 1))


for a, scale in ((2.0, 1.0), (4.0, 2.0), (8.0, 20.0)):
    print(
        f"alpha = {a:g}, scale {scale:g}: Eq. (15) prints {printed(a, scale):.6f}; the integral is "
        f"{integrated(a, scale):.6f}; the right formula has "
        f"{right(a, scale):.6f}."
    )
