"""The whole cohort at once, on this machine, in chunks that fit.

On a CPU the chunks go to a few threads of one core each (the arithmetic releases the interpreter lock); on a GPU
they follow each other. Chunk borders depend on the plan, the model and `memory_gb` alone, never on what happens
to be free, so that a seed repeats a run bit for bit.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import torch

from sordino.core.rng import Stream
from sordino.core.types import Clients, Model, Rows, State
from sordino.methods.base import Method, Plan

COPIES = 6  # rows a training client holds at once: weights, gradient, noise, step, optimiser state


class Simulator:
    def __init__(self, device: torch.device, memory_gb: float = 2.0, workers: int | None = None) -> None:
        self.device = device
        self.memory = memory_gb * 2**30
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        self.workers = 1 if device.type != "cpu" else workers or cores
        self._pool: ThreadPoolExecutor | None = None

    def clients(
        self, method: Method, state: State, cohort: Sequence[int], data: Clients, model: Model, plan: Plan, rng: Stream
    ) -> Rows:
        """Train, then release: what leaves the clients of a cohort, [clients, message]."""

        def one(ids: Sequence[int]) -> Rows:
            batch = data.fetch(ids, self.device)
            own = rng.rows(ids)
            rows = method.train(state, batch, model, plan, own.at("train"))
            return method.release(rows, batch.sizes, state, plan, own.at("release"))

        chunks = self._chunks(cohort, plan, model)
        if len(chunks) > 1 and self.workers > 1:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(self.workers, initializer=torch.set_num_threads, initargs=(1,))
            return torch.cat(list(self._pool.map(one, chunks)))
        return torch.cat([one(c) for c in chunks])

    def _chunks(self, cohort: Sequence[int], plan: Plan, model: Model) -> list[Sequence[int]]:
        """Runs of clients whose weights fit the memory, at least one a worker; one empty one if no one came."""
        per_client = 4 * COPIES * max(1, model.layout.dim)
        fit = max(1, int(self.memory / self.workers / per_client))
        fit = min(fit, max(1, -(-len(cohort) // self.workers)))
        return [cohort[i : i + fit] for i in range(0, max(1, len(cohort)), fit)]

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None
