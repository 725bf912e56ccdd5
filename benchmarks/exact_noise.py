"""Nanoseconds a number for exact Gaussian noise, beside Gaussian noise in floating point.

    python benchmarks/exact_noise.py [--threads 1] [--repeat 40]

Both come from the secure keystream. `sampler`: integers of the rounded normal law beside float32 normals. `mechanism`:
lattice, noise and the way back beside value + noise. Shapes [clients, dim]: a step of W1 (10 clients), a round of W2
(one sum), a million numbers, many small rows. Every draw has a key of its own; the two take turns. Prints one JSON line
for each: medians on the wall and in CPU time of all threads, and their ratios.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
from common import answer

from sordino.core.rng import RowStream, Stream
from sordino.federations.heap import keep_freed_memory
from sordino.privacy import rounded_normal
from sordino.privacy.clip import Bounded
from sordino.privacy.mechanisms.gaussian import Gaussian
from sordino.privacy.mechanisms.rounded_gaussian import RoundedGaussian

SHAPES = {"W1 step": (10, 26_010), "W2 round": (1, 26_010), "million": (1, 1_000_000), "small rows": (2000, 10)}
Work = Callable[[RowStream], object]


def medians(repeat: int, clients: int, numbers: int, works: list[Work]) -> list[tuple[float, float]]:
    """(wall, CPU) nanoseconds a number of each."""
    stream = Stream.operating_system()
    spent: list[list[tuple[float, float]]] = [[] for _ in works]
    for i in range(repeat + 2):
        rng = stream.at(i).rows(np.arange(clients))
        for work, times in zip(works, spent, strict=True):
            wall, own = time.perf_counter(), time.process_time()
            work(rng)
            times.append((time.perf_counter() - wall, time.process_time() - own))
    each = [zip(*times[2:], strict=True) for times in spent]
    return [tuple(round(1e9 * statistics.median(t) / numbers, 2) for t in both) for both in each]  # type: ignore[misc]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeat", type=int, default=40)
    parser.add_argument("--noise", type=float, default=1.1, help="noise multiplier")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    keep_freed_memory()  # as the simulator does
    for name, (clients, dim) in SHAPES.items():
        rows = Bounded(torch.randn(clients, dim) / dim**0.5, 1.0)
        floats, exact = Gaussian(args.noise), RoundedGaussian(args.noise)
        lattice = exact.lattice(rows)
        scale = args.noise * lattice.sensitivity / lattice.step
        works: dict[str, list[Work]] = {
            "sampler": [
                lambda rng, rows=rows: rng.normal(rows.value.shape[1], like=rows.value),
                lambda rng, dim=dim, scale=scale: rounded_normal.blocks(rng, dim, scale, lambda *block: None),
            ],
            "mechanism": [
                lambda rng, rows=rows, floats=floats: floats.add(rows, rng),
                lambda rng, rows=rows, exact=exact: exact.add(rows, rng),
            ],
        }
        for what, pair in works.items():
            (wall, own), (exact_wall, exact_own) = medians(args.repeat, clients, clients * dim, pair)
            answer(
                what=what,
                shape=name,
                scale=round(scale),
                threads=args.threads,
                float_ns=wall,
                exact_ns=exact_wall,
                ratio=round(exact_wall / wall, 2),
                float_cpu_ns=own,
                exact_cpu_ns=exact_own,
                cpu_ratio=round(exact_own / own, 2),
            )


if __name__ == "__main__":
    main()
