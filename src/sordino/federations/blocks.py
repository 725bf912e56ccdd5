"""Blocks of clients that are computed together, whichever process computes them.

The last bits of a client's answer depend on which clients are computed together with it. A federation of processes
assigns clients to blocks, and the blocks depend only on the population and on the number of blocks, never on the number
of processes; so any number of processes, and the simulator with the same number of blocks, give the same bits.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping

import numpy as np

from sordino.core.rng import Ints

TOGETHER, LEAST, MOST = 4, 4, 64  # defaults: cohort members per block on a GPU; least and most blocks


def usual(cohort: float, device: str = "cpu") -> int:
    """Return the default number of blocks of a federation of workers for an expected cohort size.

    On a CPU it is the most: a client takes little longer alone than together with others, and only many small blocks
    can be dealt evenly to many workers. A GPU is slow with small blocks.
    """
    return MOST if device == "cpu" else max(LEAST, min(MOST, round(cohort / TOGETHER)))


def number(population: int, blocks: int) -> int:
    """Return the number of blocks, limited so that none is empty."""
    return min(population, blocks)


def block_of(ids: Ints, population: int, blocks: int) -> Ints:
    """Return the block of each client: blocks are runs of consecutive clients of nearly equal length."""
    return ids * blocks // population


def members(block: int, population: int, blocks: int) -> Ints:
    """Return the clients of a block."""
    first, end = -(-block * population // blocks), -(-(block + 1) * population // blocks)
    return np.arange(first, end, dtype=np.int64)


def by_block(cohort: Ints, population: int, blocks: int) -> list[Ints]:
    """Return the clients of a cohort by block, without empty blocks; an empty cohort gives one empty block."""
    if blocks <= 1 or not len(cohort):
        return [cohort]
    where = block_of(cohort, population, blocks)
    return [cohort[where == block] for block in np.unique(where)]


def owned(worker: int, workers: int, blocks: int) -> range:
    """Return the blocks whose clients' state a worker keeps."""
    return range(worker * blocks // workers, (worker + 1) * blocks // workers)


def dealt(costs: Mapping[int, float], workers: int) -> list[list[int]]:
    """Deal blocks to workers so that all have about the same to do.

    The costliest blocks are dealt first, each to the worker that has least to do so far.

    Args:
        costs: What computing each block costs, in any unit.
        workers: Number of workers.
    """
    turns: list[list[int]] = [[] for _ in range(workers)]
    least = [(0.0, worker) for worker in range(workers)]  # cost of all blocks of each worker, as a heap
    for block in sorted(costs, key=lambda b: (-costs[b], b)):
        cost, worker = least[0]
        turns[worker].append(block)
        heapq.heapreplace(least, (cost + costs[block], worker))
    return turns
