"""Blocks of clients: which belong together, whoever computes them.

Last bits of a client's answer depend on which clients are computed together with it. A federation of processes owns
clients by blocks, and the blocks follow from the population and their number alone, never from the number of processes;
so any number of processes, and the simulator with as many blocks, give the same bits.
"""

from __future__ import annotations

import numpy as np

from sordino.core.rng import Ints

TOGETHER, LEAST, MOST = 4, 4, 64  # clients of a cohort in a block, and the number of blocks, unless told otherwise


def usual(cohort: float) -> int:
    """Return into how many blocks a federation of processes deals its clients, by the expected cohort.

    Fewer clients at once waste time on small steps; fewer blocks keep fewer processes busy."""
    return max(LEAST, min(MOST, round(cohort / TOGETHER)))


def number(population: int, blocks: int) -> int:
    """Return how many blocks there are; none is empty."""
    return min(population, blocks)


def block_of(ids: Ints, population: int, blocks: int) -> Ints:
    """Return the block of each client: runs of neighbours of nearly equal lengths."""
    return ids * blocks // population


def members(block: int, population: int, blocks: int) -> Ints:
    """Return the clients of a block."""
    first, end = -(-block * population // blocks), -(-(block + 1) * population // blocks)
    return np.arange(first, end, dtype=np.int64)


def by_block(cohort: Ints, population: int, blocks: int) -> list[Ints]:
    """Return the clients of a cohort block by block, without empty ones; one empty one if no one came."""
    if blocks <= 1 or not len(cohort):
        return [cohort]
    where = block_of(cohort, population, blocks)
    return [cohort[where == block] for block in np.unique(where)]


def owned(worker: int, workers: int, blocks: int) -> range:
    """Return the blocks that a worker owns: neighbours, so that the workers' rows in turn are in the clients' order."""
    return range(worker * blocks // workers, (worker + 1) * blocks // workers)
