"""Which way to a per-sample norm is cheapest.  Mixed ghost clipping: Bu et al. (2022), arXiv:2205.10683.

Three ways, in multiplications a sample for t tokens, d inputs and p outputs; the weight gradient itself, t p d,
is needed in any case:

    hold     instantiate and keep: p d numbers written once and read twice, held until the factors are known
    ghost    Gram matrices: t² (d + p) more
    discard  instantiate, take the norm, let go: t p d more, and p d numbers written and read
"""

from __future__ import annotations

TRAFFIC = 20  # multiplications that cost as much as one number written and read again
HELD = 2  # how many times the memory of a and g the held gradients may take
CHUNK = {"cpu": 600_000, "cuda": 400_000_000}  # numbers of patches made at a time
PATCHES = 16_000  # numbers of patches a sample up to which they beat PyTorch's kernels on a CPU
PLAIN = {"cpu": 3_000_000, "cuda": 12_000_000}  # numbers in and out of a client's layers, from which a pass is its own
ALONE = 120_000_000  # such numbers of a client on a GPU, from which a pass with the book kept is its own, too
KEPT = {"cpu": 32_000_000, "cuda": 2_000_000_000}  # entries of gradients that the book holds at once, if it must
SCALED = {"cpu": 600_000, "cuda": 16_000_000}  # numbers divided by a scale at a time
LOOKUP_GRAM = 256  # tokens up to which comparing all pairs beats sorting them


def way(t: int, d: int, p: int) -> str:
    """ "hold", "ghost" or "discard", whichever is cheapest and not out of proportion in memory."""
    prices = {"ghost": t * t * (d + p), "discard": (t + TRAFFIC) * p * d}
    if holds(t, d, p):
        prices["hold"] = TRAFFIC * p * d
    return min(prices, key=lambda name: prices[name])


def holds(t: int, d: int, p: int) -> bool:
    """Whether a sample's gradient may be kept beside what it is made of."""
    return p * d <= HELD * t * (d + p)


def records(numbers: int, cpu: bool) -> int:
    """How many records to take at a time if the layers of one take in and give out that many numbers.

    On a CPU few enough to reuse warm memory: fresh pages cost as much as the arithmetic. Results do not depend
    on it beyond rounding.
    """
    numbers = max(1, numbers)
    if not cpu:
        return max(1, 2_000_000_000 // numbers)
    most = max(1, 250_000_000 // numbers)
    return min(most, 4096, max(64, 10_000_000 // numbers))


def plain(numbers: int, sizes: tuple[int, ...], cpu: bool) -> bool:
    """Whether a backward pass for each client is quicker than one for all with the book kept, nothing being clipped.

    A pass of its own costs a client so many calls, whatever its size; that is little beside a big client's work.
    """
    busy = sum(1 for size in sizes if size)
    return numbers * sum(sizes) >= PLAIN["cpu" if cpu else "cuda"] * max(1, busy)


def alone(numbers: int, sizes: tuple[int, ...]) -> bool:
    """Whether clients are so big that, on a GPU and with the book kept, one after the other is quicker."""
    return numbers * sum(sizes) >= ALONE * max(1, sum(1 for size in sizes if size))
