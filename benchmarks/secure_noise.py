"""Seconds for noise from the secure keystream: exact integers beside floats.

    python benchmarks/secure_noise.py [--dim 25000000] [--scale 100 1000] [--repeat 3]

One row of `dim` zeros. Discrete Gaussian: drawn from its table by two threads, `scale` lattice steps wide. Gaussian:
53-bit uniforms, Box and Muller. Prints one JSON line for each; the best of `repeat` times counts.
"""

import argparse
import time
from collections.abc import Callable

import torch
from common import Memory, answer

from sordino.core.rng import Stream
from sordino.privacy.clip import Bounded
from sordino.privacy.mechanisms.discrete_gaussian import DiscreteGaussian
from sordino.privacy.mechanisms.gaussian import Gaussian
from sordino.privacy.quantise import Bounds, Integers


def best(repeat: int, work: Callable[[], object]) -> float:
    seconds = []
    for _ in range(repeat):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return round(min(seconds), 3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dim", type=int, default=25_000_000)
    parser.add_argument("--scale", type=float, nargs="+", default=[1.0, 100.0, 1000.0, 10_000.0])
    parser.add_argument("--repeat", type=int, default=3)
    args = parser.parse_args()
    memory, rng = Memory(), Stream.operating_system().rows([0])
    unit = Bounds(dim=args.dim, l1=1, l2_squared=1, linf=1)
    rows = Integers(torch.zeros(1, args.dim, dtype=torch.int64), unit)
    for scale in args.scale:
        mechanism = DiscreteGaussian(scale)
        start = time.perf_counter()
        entries = len(mechanism.table(unit).upper)
        table = round(time.perf_counter() - start, 3)
        seconds = best(args.repeat, lambda m=mechanism: m.add(rows, rng))
        answer(what="discrete-gaussian", dim=args.dim, scale=scale, seconds=seconds, table_s=table, entries=entries)
    floats = Bounded(torch.zeros(1, args.dim), 1.0)
    seconds = best(args.repeat, lambda: Gaussian(1.0).add(floats, rng))
    answer(what="gaussian", dim=args.dim, seconds=seconds, peak_mb=memory.peak_mb())


if __name__ == "__main__":
    main()
