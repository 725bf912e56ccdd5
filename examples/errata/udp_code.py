"""Compute what the published staircase sampler of UDP-FL draws: github.com/datasec-lab/UDP-FL, gradients/noise.py.

The repository belongs to Feng et al. (2025). The sampler takes torch's geometric variable, which starts at 0, and
subtracts 1 from it.

python examples/errata/udp_code.py
"""

import numpy as np

from sordino import accounting

LAM, GAMMA, STEP, DIM, CLIP, STD = 5.0, 0.498, 0.01, 421_642, 2.0, 0.1  # defaults; DIM: its CNN for MNIST
B = np.exp(-LAM)
LOW = GAMMA / (GAMMA + (1 - GAMMA) * B)  # probability of the part [0, gamma)


def density(x: np.ndarray, start: int) -> np.ndarray:
    """Return the density of the noise, in steps, if the geometric index starts at `start` (0 is right, -1 the code)."""
    total = np.zeros_like(x)
    for place in (x, -x):  # sign +1 and -1, each with probability 1/2
        whole, part = np.floor(place), place - np.floor(place)
        index = np.where(whole >= start, (1 - B) * B ** np.maximum(whole - start, 0), 0.0)
        total += 0.5 * index * np.where(part < GAMMA, LOW / GAMMA, (1 - LOW) / (1 - GAMMA))
    return total


def level(start: int) -> float:
    """Return the largest log-ratio for shifts of at most one step."""
    x = (np.arange(-4000, 4000) + 0.5) / 1000
    here = np.log(density(x, start))
    return max(float(np.max(np.abs(here - np.log(density(x + s / 100, start))))) for s in range(0, 101, 2))


wide = (np.arange(-8000, 8000) + 0.5) / 1000
right, code = level(0), level(-1)
mean = {start: float(np.sum(np.abs(wide) * density(wide, start)) / 1000) for start in (0, -1)}
square = float(np.sum(wide**2 * density(wide, -1)) / 1000)
norms = [np.sqrt(DIM) * s for s in (STEP * np.sqrt(square), STD, np.sqrt(2.0))]
one = accounting.delta(accounting.Gaussian(STD / (2 * CLIP)), 100.0)
print(
    f"The level of staircase noise with epsilon = 5 is {right:.1f}; the sampler's is {code:.1f}, three times as much."
)
print(f"Its noise is also larger: E|X| is {mean[-1]:.4f} steps instead of {mean[0]:.4f}.")
print(
    f"With the default scales the noise on {DIM:,} weights has length {norms[0]:.1f} (staircase), "
    f"{norms[1]:.1f} (Gaussian) and {norms[2]:.0f} (Laplace), "
    f"against a clip of {CLIP:g}: the scales differ, not the mechanisms."
)
print(
    f"One Gaussian step is {2 * CLIP / STD:.0f}-GDP for a replaced record, as the batch and not the record is clipped: "
    f"delta is {one:.4f} even at epsilon = 100."
)
