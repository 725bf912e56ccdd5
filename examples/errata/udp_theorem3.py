"""Scale the noise and count the rounds in Theorem 3 of UDP-FL: Feng et al. (2025), Section 4.1.

python examples/errata/udp_theorem3.py
"""

import numpy as np

LAM, V, B = 1.0, 0.4, np.exp(-1.0)


def printed(step: float, rounds: int = 1) -> float:
    """Return Theorem 3 for one weight (m = 1)."""
    return float(rounds / (1 - B) * (V**2 * step**2 + B * step**2 - B * V**2 * step**2 + step * B))


def draw(rng: np.random.Generator, shape: tuple[int, int], step: float) -> np.ndarray:
    """Return staircase noise: Geng and Viswanath (2016), Algorithm 1."""
    whole = rng.geometric(1 - B, shape) - 1
    low = rng.random(shape) < V / (V + B * (1 - V))
    size = np.where(low, V * rng.random(shape), V + (1 - V) * rng.random(shape))
    return np.where(rng.random(shape) < 0.5, -1, 1) * step * (whole + size)


def exact(step: float) -> float:
    """Return E|X| of staircase noise."""
    return float(step * (B / (1 - B) + (V**2 + B * (1 - V**2)) / (2 * (V + B * (1 - V)))))


noise = draw(np.random.default_rng(3), (10_000, 100), 1.0)
once, sums = float(np.abs(noise[:, 0]).mean()), float(np.abs(noise.sum(axis=1)).mean())
print(f"One round, step 1: Theorem 3 prints {printed(1.0):.4f}; E|X| is {exact(1.0):.4f} (10,000 draws: {once:.2f}).")
print(f"A step of 0.1 must scale it by 0.1, to {exact(0.1):.4f}; Theorem 3 prints {printed(0.1):.4f}.")
print(
    f"A hundred rounds: Theorem 3 prints {printed(1.0, 100):.1f}; independent noises add up to {sums:.1f}, "
    f"as the root of the number of rounds; 100 E|X| = {100 * exact(1.0):.1f} is an upper bound."
)
