"""The whole cohort at once, on this machine, in chunks that fit.

Chunk borders depend on the plan, the model and `memory_gb` alone, never on what happens to be free, so that a seed
repeats a run bit for bit.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from sordino.core.rng import Stream
from sordino.core.types import Clients, Model, Rows, State
from sordino.engines.heap import keep_freed_memory
from sordino.methods.base import Method, Plan

COPIES = 6  # rows a training client holds at once: weights, gradient, noise, step, optimiser state


class Simulator:
    def __init__(self, device: torch.device, memory_gb: float = 2.0) -> None:
        self.device = device
        self.memory = memory_gb * 2**30
        if device.type == "cpu":
            keep_freed_memory()
        else:  # a seed must repeat a run bit for bit; cuDNN would otherwise pick kernels that add in any order
            torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = True, False

    def clients(
        self, method: Method, state: State, cohort: Sequence[int], data: Clients, model: Model, plan: Plan, rng: Stream
    ) -> Rows:
        """Train, then release: what leaves the clients of a cohort, [clients, message]."""
        done = []
        for ids in self._chunks(cohort, model):
            batch, own = data.fetch(ids, self.device), rng.rows(ids)
            rows = method.train(state, batch, model, plan, own.at("train"))
            done.append(method.release(rows, batch.sizes, state, plan, own.at("release")))
        return torch.cat(done) if len(done) > 1 else done[0]

    def _chunks(self, cohort: Sequence[int], model: Model) -> list[Sequence[int]]:
        """Runs of clients whose weights fit the memory; one empty one if no one came."""
        fit = max(1, int(self.memory / (4 * COPIES * max(1, model.layout.dim))))
        return [cohort[i : i + fit] for i in range(0, max(1, len(cohort)), fit)]
