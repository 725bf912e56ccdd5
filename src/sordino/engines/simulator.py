"""The whole cohort at once, on this machine, in chunks that fit.

Chunk borders depend on the plan, the model and `memory_gb` alone, never on what happens to be free, so that a seed
repeats a run bit for bit.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from sordino.core.rng import Stream
from sordino.core.types import Clients, Model, Rows, State
from sordino.engines.heap import keep_freed_memory
from sordino.engines.store import Store
from sordino.methods.base import Method, Plan

COPIES = 6  # rows a training client holds at once: weights, gradient, noise, step, optimiser state


class Simulator:
    def __init__(self, device: torch.device, memory_gb: float = 2.0, public: Stream | None = None) -> None:
        self.device = device
        self.memory = memory_gb * 2**30
        self.store = Store(memory_gb)
        self.public = public or Stream.research(0)  # deals clients their own probabilities to fail
        if device.type == "cpu":
            keep_freed_memory()
        else:  # a seed must repeat a run bit for bit; cuDNN would otherwise pick kernels that add in any order
            torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = True, False

    def clients(
        self, method: Method, state: State, cohort: Sequence[int], data: Clients, model: Model, plan: Plan, rng: Stream
    ) -> Rows:
        """Train, then release: what arrives in a round, [clients, message]; late answers of the last round too."""
        law, ids = plan.stragglers, np.asarray(cohort, dtype=np.int64)
        if law.none:
            return self._answers(method, state, ids.tolist(), data, model, plan, rng)
        failing = law.failing(ids, self.public.at("dropout"))
        in_time, late = law.fates(ids, failing, rng.at("stragglers"))
        come = ids[in_time | late]  # who fails does so before anything has changed
        rows = self._answers(method, state, come.tolist(), data, model, plan, rng)
        counts = torch.from_numpy(law.weights(failing[in_time | late])).to(rows)
        rows = rows * counts[:, None]
        waiting = torch.from_numpy(late[in_time | late]).to(rows.device)
        return self._with_late(rows, come, waiting)

    def _with_late(self, rows: Rows, come: np.ndarray[tuple[int], np.dtype[np.int64]], waiting: torch.Tensor) -> Rows:
        """Hold back what is late now, hand over what was late before; of one client only the newest."""
        before = self.store.clients("late")
        now = set(come[~waiting.cpu().numpy()].tolist())
        arrived = [i for i in before if i not in now]
        old = self.store.read("late", arrived, rows.new_zeros(len(arrived), rows.shape[1]))
        self.store.drop("late", before)
        self.store.write("late", come[waiting.cpu().numpy()].tolist(), rows[waiting])
        return torch.cat([rows[~waiting], old])

    def _answers(
        self, method: Method, state: State, ids: list[int], data: Clients, model: Model, plan: Plan, rng: Stream
    ) -> Rows:
        done = []
        for part in self._chunks(ids, model):
            batch, row = data.fetch(part, self.device), rng.rows(part)
            own = self.store.read("own", part, method.fresh(state, len(part), plan))
            rows, own = method.train(state, batch, own, model, plan, row.at("train"))
            if own.shape[1]:
                self.store.write("own", part, own)
            done.append(method.release(rows, batch.sizes, state, plan, row.at("release")))
        return torch.cat(done) if len(done) > 1 else done[0]

    def _chunks(self, cohort: Sequence[int], model: Model) -> list[Sequence[int]]:
        """Runs of clients whose weights fit the memory; one empty one if no one came."""
        fit = max(1, int(self.memory / (4 * COPIES * max(1, model.layout.dim))))
        return [cohort[i : i + fit] for i in range(0, max(1, len(cohort)), fit)]
