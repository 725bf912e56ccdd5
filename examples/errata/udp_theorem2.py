"""Check the v of Theorem 2 of UDP-FL, which does not contain lambda: Feng et al. (2025), Section 4.1.

python examples/errata/udp_theorem2.py
"""

import numpy as np


def exact(order: float, lam: float, v: float) -> float:
    """Return the Renyi divergence of the staircase for a shift by one step."""
    b, both = np.exp(-lam), np.exp((order - 1) * lam) + np.exp(-order * lam)
    plus = 0.5 + (1 - b) * min(v, 1 - v) / (2 * (v + b * (1 - v)))  # probability of the loss +lambda
    return float(np.log(plus * both + 1 - plus * (1 + b)) / (order - 1))


ORDER, LEVEL = 2.0, 3.0
v = float(np.log(LEVEL - 1) / (ORDER - 1))
levels = {lam: exact(ORDER, lam, v) for lam in (1.0, 4.0, 10.0)}
print(
    f"For alpha = 2 and the level 3, Theorem 2 prints v = {v:.4f} whatever lambda is; the level of that staircase is "
    + ", ".join(f"{level:.4f} at lambda = {lam:g}" for lam, level in levels.items())
    + "."
)
with np.errstate(divide="ignore", invalid="ignore"):
    print(f"For the levels 1 and 0.5 the printed v is {np.log(1.0 - 1)} and {np.log(0.5 - 1)}: no staircase at all.")
