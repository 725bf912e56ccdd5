"""Compare Theorem 1 of UDP-FL with the Renyi divergence of the staircase: Feng et al. (2025), Section 4.1.

python examples/errata/udp_theorem1.py
"""

import numpy as np


def density(x: np.ndarray, lam: float, v: float) -> np.ndarray:
    """Return the staircase density with step 1, rightly normalised."""
    whole, part = np.divmod(np.abs(x), 1.0)
    return (1 - np.exp(-lam)) / (2 * (v + np.exp(-lam) * (1 - v))) * np.exp(-lam * (whole + (part >= v)))


def exact(order: float, lam: float, v: float) -> float:
    """Return D_order for a shift by one step: both densities are constant between two neighbouring edges."""
    whole = np.arange(-60, 61)
    edges = np.unique(np.round(np.concatenate([whole, whole + v, whole - v, whole + 1 - v]), 12))
    middle, width = (edges[1:] + edges[:-1]) / 2, np.diff(edges)
    p, q = density(middle, lam, v), density(middle - 1, lam, v)
    return float(np.log(np.sum(width * p**order * q ** (1 - order))) / (order - 1))


def printed(order: float, lam: float, v: float) -> float:
    """Return Theorem 1 as it stands."""
    both = np.exp((order - 1) * lam) + np.exp(-order * lam)
    tail = abs(2 * v - 1) * np.exp(-np.sign(0.5 - v) * lam)
    return float(both / 2 + (1 - np.exp(-1)) / (2 * (v + np.exp(-lam) * (1 - v))) * (both * (1 - v) + tail))


for order, lam, v in ((2.0, 1.0, 0.3), (2.0, 1.0, 0.5), (2.0, 1.0, 0.8), (2.0, 5.0, 0.5), (1.1, 5.0, 0.5)):
    paper, true = printed(order, lam, v), exact(order, lam, v)
    print(
        f"alpha = {order:g}, lambda = {lam:g}, v = {v:g}: Theorem 1 prints {paper:.4f}; with a logarithm "
        f"over alpha - 1 it is {np.log(paper) / (order - 1):.4f}; the divergence is {true:.4f}."
    )
