"""Worker processes on this machine, which `workers.py` reaches through pipes."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Iterable
from multiprocessing import connection, parent_process, reduction
from typing import Any

import torch

from sordino.core.errors import RunError
from sordino.federations import wire
from sordino.federations.host import Desk
from sordino.federations.shared import SharedReader, SharedWriter, Stored

SLOW = ("torch._dynamo",)  # modules that torch imports lazily; preloaded if already in use here
PATIENCE = 5.0  # seconds that a process has to end by itself before it is stopped


class _Worker:
    def __init__(self, context: Any, memory: int) -> None:
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=serve, args=(theirs,), daemon=True)
        self.process.start()
        theirs.close()  # so that the pipe closes when the process ends
        with contextlib.suppress(OSError, RuntimeError):  # the process died; reading from its pipe fails later
            reduction.send_handle(self.pipe, memory, self.process.pid)

    def end(self, at_once: bool) -> None:
        self.pipe.close()  # the process exits when it next reads
        if not at_once:
            self.process.join(PATIENCE)
        for stop in (self.process.terminate, self.process.kill):
            if self.process.is_alive():
                stop()
                self.process.join(PATIENCE)
        self.process.close()


class Processes:
    """Processes of this machine as workers; see `Transport`."""

    shares = True

    def __init__(self) -> None:
        _refuse_inside()
        self._workers: list[_Worker] = []
        self._memory: SharedWriter | None = None

    @property
    def pids(self) -> list[int]:
        """Return the ids of the processes that were started."""
        return [int(worker.process.pid or 0) for worker in self._workers]

    def pack(self, value: Any, what: str = "a message") -> bytes:
        """Serialise an object for the processes."""
        return wire.packed(value, what)

    def check(self, count: int) -> None:
        """Do nothing: processes can always be started."""

    def start(self, count: int, module: str) -> None:
        """Start the processes with a module that they need."""
        context = multiprocessing.get_context("forkserver")  # torch is imported once for all processes
        slow = [name for name in SLOW if name in sys.modules]
        context.set_forkserver_preload([__name__, module, *slow])
        self._memory = SharedWriter()
        self._workers = [_Worker(context, self._memory.handle) for _ in range(count)]

    def share(self, value: Any, what: str) -> Stored:
        """Write an object to the memory that all processes share, and return its place."""
        if self._memory is None:
            raise RuntimeError("the processes were not started")
        return self._memory.put(value, what)

    def deal(self, shares: Iterable[bytes]) -> list[bytes]:
        """Send each process its share; return all answers, in the order of the processes."""
        for worker, share in zip(self._workers, shares, strict=True):
            with contextlib.suppress(OSError):  # the process died; reading from its pipe fails below
                worker.pipe.send_bytes(share)
        answers = [b""] * len(self._workers)
        waiting = {worker.pipe: k for k, worker in enumerate(self._workers)}
        while waiting:
            for pipe in connection.wait(list(waiting)):
                k = waiting.pop(pipe)
                try:
                    answers[k] = self._workers[k].pipe.recv_bytes()
                except (EOFError, OSError):
                    raise self._lost(k) from None
        return answers

    def ask(self, question: bytes) -> list[bytes]:
        """Send all processes the same request; return their answers, in the order of the processes."""
        return self.deal([question] * len(self._workers))

    def end(self, at_once: bool) -> None:
        """End the processes."""
        workers, self._workers = self._workers, []
        for worker in workers:
            worker.end(at_once)
        if self._memory is not None:
            self._memory.close()
            self._memory = None

    def _lost(self, k: int) -> RunError:
        process = self._workers[k].process
        process.join(PATIENCE)
        code = process.exitcode
        how = f"was killed by signal {-code}" if code is not None and code < 0 else f"ended with code {code}"
        return RunError(
            f"process {k + 1} of {len(self._workers)}, which holds clients of this run, {how}. If memory was short, "
            "lower memory_gb or workers; a script must call sordino under `if __name__ == '__main__':`. What was saved "
            "is intact: resume the run."
        )


def serve(pipe: connection.Connection) -> None:
    """Answer requests from the parent process until the pipe is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent process decides when to stop
    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(1)  # last bits depend on the number of threads, which must not depend on the machine
    with contextlib.suppress(EOFError, OSError):  # the parent is gone; the run can be resumed from disk
        desk = Desk(wire.packed, SharedReader(reduction.recv_handle(pipe)))
        while True:
            pipe.send_bytes(desk.answer(pipe.recv_bytes()))


def _end_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)


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
