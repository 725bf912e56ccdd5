"""A federation of processes on this machine. Each process owns the records, the state and the keys of its clients.

The server's process loads the records and distributes them once; afterwards it sends requests and gets messages that
were clipped, noised and sealed where the clients are. The clients' state is in files of their processes, one per block.
In secure mode each process draws its own key, so that the server never holds the clients' noise.

Clients belong to blocks (blocks.py) and blocks to processes. The number of processes does not change a single bit, and
a run may be resumed with another number. If the server also uses one thread, the models equal those of the simulator
with the same number of blocks. `memory_gb` applies to each process.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from multiprocessing import connection
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from sordino.core import plugin
from sordino.core.errors import RunError
from sordino.core.message import Message, together
from sordino.core.rng import Stream
from sordino.core.types import Clients, State
from sordino.federations import wire
from sordino.federations.base import Work, require_answers, require_cohort
from sordino.federations.blocks import LEAST, members, number, owned
from sordino.federations.facts import Facts
from sordino.federations.host import Rebuild, Share, joined, serve
from sordino.federations.simulator import ClientPart, by_part

SLOW = ("torch._dynamo",)  # modules that torch imports lazily; preloaded if already in use here
PATIENCE = 5.0  # seconds that a process has to end by itself before it is stopped


class _TraceError(Exception):
    """Carries the traceback of an error from the process in which it happened."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


class _Worker:
    def __init__(self, context: Any) -> None:
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=serve, args=(theirs,), daemon=True)
        self.process.start()
        theirs.close()  # so that the pipe closes when the process ends

    def end(self, at_once: bool) -> None:
        self.pipe.close()  # the process exits when it next reads
        if not at_once:
            self.process.join(PATIENCE)
        for stop in (self.process.terminate, self.process.kill):
            if self.process.is_alive():
                stop()
                self.process.join(PATIENCE)
        self.process.close()


class Workers:
    """The federation that runs clients in several processes."""

    def __init__(
        self,
        data: Clients,
        rng: Stream | None,  # source of the clients' streams; None: each process draws its own key
        rebuild: Rebuild,
        workers: int = 0,
        memory_gb: float = 2.0,
        public: Stream | None = None,
        blocks: int = LEAST,
        facts: Facts | None = None,
        parts: Mapping[str, ClientPart] | None = None,  # data of the clients that no round uses
    ) -> None:
        _refuse_inside()
        self.blocks = number(data.count, blocks)
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        self.count = min(workers or cores, self.blocks)
        self._data, self._rng, self._rebuild, self._memory_gb = data, rng, rebuild, memory_gb
        self._public, self._facts, self._parts = public or Stream.research(0), facts, dict(parts or {})
        self._workers: list[_Worker] = []
        self._work: Work | None = None
        self._busy = False

    @property
    def work(self) -> Work:
        """Return the work that the federation was opened with."""
        if self._work is None:
            raise RuntimeError("the federation was not opened")
        return self._work

    @property
    def facts(self) -> Facts:
        """Return the public facts about the clients' data."""
        if self._facts is None:
            raise RuntimeError("the facts of these clients were not recorded")
        return self._facts

    @property
    def processes(self) -> list[int]:
        """Return the ids of the processes that currently hold clients."""
        return [int(worker.process.pid or 0) for worker in self._workers]

    def open(self, work: Work) -> None:
        """Set the work of the run; processes start with the first request."""
        self._work = work
        if self._workers:
            self._send_work()

    def check(self) -> None:
        """Raise an error if something cannot be sent to other processes, before any cost and without starting any."""
        self._share(0)
        self._work_packed()

    def resume(self, path: Path, done: int, seen: bool = False) -> None:
        """Continue with the clients' state after `done` rounds; see `Federation.resume`."""
        self._ask_all("resume", str(path), done, seen)

    def ask(self, phase: str, state: State, cohort: Sequence[int]) -> Message:
        """Return what leaves the clients of a cohort in one phase of a round."""
        plan = self.work.plan
        require_cohort(plan, len(cohort))
        answers = self._ask_all("ask", phase, state, [int(i) for i in cohort])
        message = together([joined(list(kind)) for kind in zip(*answers, strict=True)])  # in time, then late ones
        require_answers(plan, len(cohort), len(message))
        return message

    def once(self, work: Work, state: State, part: str, rng: Stream) -> Message:
        """Return what all clients release once, outside the rounds.

        A secret stream is not passed to the processes: it only serves to label the release.
        """
        label, stream = rng.at("label").key.hex(), None if rng.secure else rng
        messages = self._ask_all("once", self._described(work), state, part, stream, label)
        return together([message for message in messages if message is not None])

    def save(self, done: int) -> None:
        """Save the clients' state for a checkpoint after `done` rounds."""
        if self._workers:
            self._ask_all("save", done)

    def personal(self, state: State) -> dict[int, Tensor]:
        """Return the clients' personal models, by client."""
        return {i: model for models in self._ask_all("personal", state) for i, model in models.items()}

    def close(self) -> None:
        """End the processes; those that are still busy, because the caller stopped waiting, are ended immediately."""
        workers, self._workers = self._workers, []
        if workers and not self._busy:
            with contextlib.suppress(Exception):
                self._exchange(workers, [wire.packed(("close", ()))] * len(workers))
        for worker in workers:
            worker.end(at_once=self._busy)
        self._busy = False

    # --- processes

    def _ask_all(self, verb: str, *args: Any) -> list[Any]:
        if not self._workers:
            self._start()
        return self._exchange(self._workers, [wire.packed((verb, args))] * len(self._workers))

    def _start(self) -> None:
        shares = [self._share(k) for k in range(self.count)]
        self._work_packed()  # raises an error before a process is started
        context = multiprocessing.get_context("forkserver")  # torch is imported once for all processes
        module = getattr(self._rebuild, "func", self._rebuild).__module__
        slow = [name for name in SLOW if name in sys.modules]
        context.set_forkserver_preload([__name__, module, *slow])
        self._workers = [_Worker(context) for _ in range(self.count)]
        folders = os.environ.get(plugin.VARIABLE, "")
        self._exchange(self._workers, [wire.packed((folders, share)) for share in shares])
        self._send_work()

    def _share(self, worker: int) -> bytes:
        population, blocks = self._data.count, owned(worker, self.count, self.blocks)
        everyone = ClientPart(self._data, np.arange(population))
        clients = {b: everyone.only(members(b, population, self.blocks)) for b in blocks}
        dealt = {name: by_part(part, population, self.blocks) for name, part in self._parts.items()}
        parts = {b: {name: by_block[b] for name, by_block in dealt.items() if b in by_block} for b in blocks}
        share = Share(clients, parts, self.blocks, population, self._rng, self._public, self._memory_gb)
        return wire.packed(share, "what makes the clients' records")

    def _send_work(self) -> None:
        self._exchange(self._workers, [self._work_packed()] * len(self._workers))

    def _work_packed(self) -> bytes:
        parts = self._described(self.work)
        for what, part in zip(("the method", "the plan", "the model", "the loss"), parts, strict=False):
            wire.packed(part, what)
        return wire.packed(("open", parts))

    def _described(self, work: Work) -> tuple[Any, ...]:
        """Return work in a form that can be sent: without gradient functions and without the server's records."""
        return work.method, replace(work.plan, public=None), work.model.module, work.model.loss, self._rebuild

    def _exchange(self, workers: list[_Worker], questions: list[bytes]) -> list[Any]:
        """Send each process its request, wait for all answers and return them in order; raise the first error."""
        self._busy = True
        for worker, question in zip(workers, questions, strict=True):
            with contextlib.suppress(OSError):  # the process died; reading from its pipe fails below
                worker.pipe.send_bytes(question)
        answers: list[Any] = [None] * len(workers)
        waiting = {worker.pipe: k for k, worker in enumerate(workers)}
        while waiting:
            for pipe in connection.wait(list(waiting)):
                k = waiting.pop(pipe)
                try:
                    answers[k] = wire.unpacked(workers[k].pipe.recv_bytes())
                except (EOFError, OSError):
                    raise self._lost(workers[k], k, len(workers)) from None
        self._busy = False
        for _, problem in answers:
            if problem is not None:
                error, trace = problem
                raise error from _TraceError(trace)
        return [answer for answer, _ in answers]

    def _lost(self, worker: _Worker, k: int, count: int) -> RunError:
        worker.process.join(PATIENCE)
        code = worker.process.exitcode
        how = f"was killed by signal {-code}" if code is not None and code < 0 else f"ended with code {code}"
        return RunError(
            f"process {k + 1} of {count}, which holds clients of this run, {how}. If memory was short, lower "
            "memory_gb or workers; a script must call sordino under `if __name__ == '__main__':`. What was saved is "
            "intact: resume the run."
        )


def _refuse_inside() -> None:
    """Raise an error where processes cannot be started, before any cost."""
    here = multiprocessing.current_process()
    if getattr(here, "_inheriting", False):
        raise RunError(
            "federation = workers starts processes that import this script, which would start it again: put the call "
            "under `if __name__ == '__main__':`."
        )
    if here.daemon:
        raise RunError(
            "federation = workers cannot start processes inside those of a comparison: compare with --jobs 1, or use "
            "federation = simulator."
        )
