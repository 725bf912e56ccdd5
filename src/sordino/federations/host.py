"""A process that holds clients: their records, state and keys. `workers.py` starts it and sends it requests."""

from __future__ import annotations

import os
import signal
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing import connection, parent_process
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sordino.contract.method import Method
from sordino.contract.plan import Plan
from sordino.core import plugin
from sordino.core.errors import RunError
from sordino.core.message import Message, together
from sordino.core.rng import Stream
from sordino.core.types import Batch, Model, SampleLoss, State
from sordino.federations import wire
from sordino.federations.base import Work
from sordino.federations.blocks import block_of
from sordino.federations.simulator import ClientPart, Simulator
from sordino.federations.store import Store

CPU = torch.device("cpu")
Rebuild = Callable[[nn.Module, SampleLoss, Batch], Model]  # module, loss, one record -> model


@dataclass(frozen=True)
class Share:
    """The clients of a process's blocks, sent to the process once."""

    clients: Mapping[int, ClientPart]  # by block
    parts: Mapping[int, Mapping[str, ClientPart]]  # by block and name: data of the clients that no round uses
    blocks: int  # number of blocks over all processes
    population: int
    rng: Stream | None  # None: the process draws its own key, which nobody else ever holds
    public: Stream
    memory_gb: float


class Host:
    """Clients in blocks; each block is a small simulator with its own file of client state."""

    def __init__(self, share: Share) -> None:
        self._share = share
        self._rng = Stream.operating_system() if share.rng is None else share.rng
        self._blocks: dict[int, Simulator] = {}
        for block, clients in share.clients.items():
            parts = share.parts.get(block, {})
            simulator = Simulator(CPU, clients, self._rng, share.memory_gb, share.public, parts=parts)
            simulator.store = Store(share.memory_gb / share.blocks)
            simulator.whose = f"the clients of block {block} of {share.blocks}"
            self._blocks[block] = simulator

    def open(self, method: Method, plan: Plan, module: nn.Module, loss: SampleLoss, rebuild: Rebuild) -> None:
        """Rebuild the model and open all blocks for a run."""
        work = self._work(method, plan, module, loss, rebuild)
        for simulator in self._blocks.values():
            simulator.open(work)

    def _work(self, method: Method, plan: Plan, module: nn.Module, loss: SampleLoss, rebuild: Rebuild) -> Work:
        mine = next(iter(self._share.clients.values()))
        batch = mine.fetch(mine.ids[:1].tolist(), CPU)
        return Work(method, rebuild(module, loss, Batch(batch.x[:1], batch.y[:1], (1,))), plan)

    def resume(self, path: str, done: int, seen: bool) -> None:
        """Continue all blocks with the clients' state after `done` rounds; see `Federation.resume`."""
        for block, simulator in self._blocks.items():
            simulator.resume(store_of(Path(path), block), done, seen)

    def ask(self, phase: str, state: State, cohort: Sequence[int]) -> list[Message]:
        """Return the sealed answers of the clients here: those in time and, if answers may be late, the late ones."""
        ids, share = np.asarray(cohort, dtype=np.int64), self._share
        blocks = block_of(ids, share.population, share.blocks)
        parts = {block: ids[blocks == block].tolist() for block in self._blocks}
        plan = next(iter(self._blocks.values())).work.plan
        asked = [b for b, part in parts.items() if part or plan.stragglers.late > 0] or list(parts)[:1]
        answers = [self._blocks[block].answers(phase, state, parts[block]) for block in asked]
        return [plan.channel.seal(joined(list(kind)), cohort) for kind in zip(*answers, strict=True)]

    def once(self, work: tuple[Any, ...], state: State, part: str, rng: Stream | None, label: str) -> Message | None:
        """Return what the clients here release once, outside the rounds; None if none of them has that data part.

        If no stream is given, the noise comes from the key of this process, under the label of the release.
        """
        stream, ready = self._rng.at("once", label) if rng is None else rng, self._work(*work)
        have = [s for s in self._blocks.values() if not part or part in s.parts]
        messages = [simulator.once(ready, state, part, stream) for simulator in have]
        return ready.plan.channel.seal(together(messages), range(self._share.population)) if messages else None

    def save(self, done: int) -> None:
        """Save the clients' state of all blocks for a checkpoint after `done` rounds."""
        for simulator in self._blocks.values():
            simulator.save(done)

    def personal(self, state: State) -> dict[int, Tensor]:
        """Return the personal models of the clients here, by client."""
        return {i: model for simulator in self._blocks.values() for i, model in simulator.personal(state).items()}

    def close(self) -> None:
        """Close the files of all blocks."""
        for simulator in self._blocks.values():
            simulator.close()


def store_of(path: Path, block: int) -> Path:
    """Return the state file of a block: clients-3.sqlite beside clients.sqlite."""
    return path.with_name(f"{path.stem}-{block}{path.suffix}")


def joined(messages: Sequence[Message]) -> Message:
    """Concatenate messages; empty messages are ignored unless all are empty."""
    return together([m for m in messages if len(m)] or messages[:1])


def serve(pipe: connection.Connection) -> None:
    """Answer requests from the parent process until the pipe is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent process decides when to stop
    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(1)  # last bits depend on the number of threads, which must not depend on the machine
    try:
        host = None
        while True:
            data = pipe.recv_bytes()
            try:
                if host is None:
                    folders, share = wire.unpacked(data)
                    os.environ[plugin.VARIABLE] = folders  # the fork server may have started with other folders
                    host, answer = Host(_understood(share)), None
                else:
                    verb, args = _understood(data)
                    answer = getattr(host, verb)(*args)
                reply = wire.packed((answer, None))
            except Exception as error:
                reply = wire.packed((None, _sendable(error)))
            pipe.send_bytes(reply)
    except (EOFError, OSError):
        return  # the parent is gone; the run can be resumed from disk


def _understood(data: bytes) -> Any:
    try:
        return wire.unpacked(data)
    except (AttributeError, ImportError) as error:  # a class or function that exists only in the other process
        raise RunError(
            f"federation = workers: a process cannot find what it was sent ({error}). Define models, losses and "
            "functions in a module of their own, or use federation = simulator."
        ) from error


def _sendable(error: Exception) -> tuple[Exception, str]:
    """Return an error in a form that can be sent to another process, and its traceback."""
    trace = traceback.format_exc()
    try:
        wire.unpacked(wire.packed(error))
    except Exception:
        return RunError(f"{type(error).__name__}: {' '.join(str(error).split())}"), trace
    return error, trace


def _end_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)
