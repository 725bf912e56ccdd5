"""Cost model that selects the cheapest way to compute a per-sample norm.

Mixed ghost clipping: Bu et al. (2022), arXiv:2205.10683. There are three ways. Their costs
are in multiplications per sample for t tokens, d inputs and p outputs, on top of the weight gradient itself, t p d,
which is always needed:

    hold     instantiate and keep: p d numbers written once and read twice, held until the factors are known
    ghost    Gram matrices: t² (d + p) more
    discard  instantiate, take the norm, free: t p d more, and p d numbers written and read
"""

from __future__ import annotations

TRAFFIC = 20  # multiplications that cost as much as writing one number and reading it back
HELD = 2  # largest memory of held gradients, relative to that of a and g
CHUNK = {"cpu": 600_000, "cuda": 400_000_000}  # patch entries created at a time
PATCHES = 16_000  # patch entries per sample up to which patches beat PyTorch's kernels on a CPU
PLAIN = {"cpu": 3_000_000, "cuda": 12_000_000}  # layer inputs and outputs per client from which it gets its own pass
ALONE = 120_000_000  # the same for passes with book-keeping, on a GPU
KEPT = {"cpu": 32_000_000, "cuda": 2_000_000_000}  # gradient entries that book-keeping holds at once, if it has to
SCALED = {"cpu": 600_000, "cuda": 16_000_000}  # entries divided by a scale at a time
LOOKUP_GRAM = 256  # tokens up to which comparing all pairs beats sorting them


def way(t: int, d: int, p: int) -> str:
    """Return "hold", "ghost" or "discard": the cheapest way whose memory is not out of proportion."""
    prices = {"ghost": t * t * (d + p), "discard": (t + TRAFFIC) * p * d}
    if holds(t, d, p):
        prices["hold"] = TRAFFIC * p * d
    return min(prices, key=lambda name: prices[name])


def holds(t: int, d: int, p: int) -> bool:
    """Return whether a sample's gradient may be held in addition to its factors a and g."""
    return p * d <= HELD * t * (d + p)


def records(numbers: int, cpu: bool) -> int:
    """Return how many records to process at a time.

    On a CPU these are few enough to reuse warm memory: fresh pages cost as much as the arithmetic. Results do not
    depend on the number beyond rounding.

    Args:
        numbers: inputs and outputs of all layers for one record.
        cpu: whether the device is a CPU.
    """
    numbers = max(1, numbers)
    if not cpu:
        return max(1, 2_000_000_000 // numbers)
    most = max(1, 250_000_000 // numbers)
    return min(most, 4096, max(64, 10_000_000 // numbers))


def plain(numbers: int, sizes: tuple[int, ...], cpu: bool) -> bool:
    """Return whether, without clipping, one backward pass per client is faster than one pass for all with book-keeping.

    A separate pass costs a fixed number of calls per client, which is little compared with the work of a big client.
    """
    busy = sum(1 for size in sizes if size)
    return numbers * sum(sizes) >= PLAIN["cpu" if cpu else "cuda"] * max(1, busy)


def alone(numbers: int, sizes: tuple[int, ...]) -> bool:
    """Return whether clients are so big that, on a GPU with book-keeping, running them one by one is faster."""
    return numbers * sum(sizes) >= ALONE * max(1, sum(1 for size in sizes if size))
