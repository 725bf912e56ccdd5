"""A process that holds clients: their records, what they keep and their keys. `workers.py` starts it and asks it."""

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
Rebuild = Callable[[nn.Module, SampleLoss, Batch], Model]  # a model of its module and loss, tried on one record


@dataclass(frozen=True)
class Share:
    """What a process is given once: the clients of its blocks."""

    clients: Mapping[int, ClientPart]  # by block
    parts: Mapping[int, Mapping[str, ClientPart]]  # by block and name: of the clients' data, that no round touches
    blocks: int  # among all processes
    population: int
    rng: Stream | None  # None: the process draws a key of its own, which nobody else ever holds
    public: Stream
    memory_gb: float


class Host:
    """Clients in blocks, each block a small simulator with its own file of what clients keep."""

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
        work = self._work(method, plan, module, loss, rebuild)
        for simulator in self._blocks.values():
            simulator.open(work)

    def _work(self, method: Method, plan: Plan, module: nn.Module, loss: SampleLoss, rebuild: Rebuild) -> Work:
        mine = next(iter(self._share.clients.values()))
        batch = mine.fetch(mine.ids[:1].tolist(), CPU)
        return Work(method, rebuild(module, loss, Batch(batch.x[:1], batch.y[:1], (1,))), plan)

    def resume(self, path: str, done: int, seen: bool) -> None:
        for block, simulator in self._blocks.items():
            simulator.resume(store_of(Path(path), block), done, seen)

    def ask(self, phase: str, state: State, cohort: Sequence[int]) -> list[Message]:
        """Return what the clients here answer, sealed: in time; then, where answers may be late, late ones."""
        ids, share = np.asarray(cohort, dtype=np.int64), self._share
        blocks = block_of(ids, share.population, share.blocks)
        parts = {block: ids[blocks == block].tolist() for block in self._blocks}
        plan = next(iter(self._blocks.values())).work.plan
        asked = [b for b, part in parts.items() if part or plan.stragglers.late > 0] or list(parts)[:1]
        found = [self._blocks[block].answers(phase, state, parts[block]) for block in asked]
        return [plan.channel.seal(joined(list(kind)), cohort) for kind in zip(*found, strict=True)]

    def once(self, work: tuple[Any, ...], state: State, part: str, rng: Stream | None, label: str) -> Message | None:
        """Return what the clients here let out beside the rounds, None if nobody here has that part of the data.

        Without a stream the noise comes from the key of this process, below the label of the release."""
        stream, ready = self._rng.at("once", label) if rng is None else rng, self._work(*work)
        have = [s for s in self._blocks.values() if not part or part in s.parts]
        found = [simulator.once(ready, state, part, stream) for simulator in have]
        return together(found) if found else None

    def save(self, done: int) -> None:
        for simulator in self._blocks.values():
            simulator.save(done)

    def personal(self, state: State) -> dict[int, Tensor]:
        return {i: model for simulator in self._blocks.values() for i, model in simulator.personal(state).items()}

    def close(self) -> None:
        for simulator in self._blocks.values():
            simulator.close()


def store_of(path: Path, block: int) -> Path:
    """Return the file of what the clients of a block keep: clients-3.sqlite beside clients.sqlite."""
    return path.with_name(f"{path.stem}-{block}{path.suffix}")


def joined(messages: Sequence[Message]) -> Message:
    """Return all rows as one message; messages without rows count only if there are no others."""
    return together([m for m in messages if len(m)] or messages[:1])


def serve(pipe: connection.Connection) -> None:
    """Answer one question after another until there is nobody left to ask."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the one who started it says when to stop
    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(1)  # last bits follow the number of threads, which must not follow the machine
    try:
        host = None
        while True:
            data = pipe.recv_bytes()
            try:
                if host is None:
                    folders, share = wire.unpacked(data)
                    os.environ[plugin.VARIABLE] = folders  # the process that this one is forked from may be older
                    host, answer = Host(_understood(share)), None
                else:
                    verb, args = _understood(data)
                    answer = getattr(host, verb)(*args)
                reply = wire.packed((answer, None))
            except Exception as error:
                reply = wire.packed((None, _told(error)))
            pipe.send_bytes(reply)
    except (EOFError, OSError):
        return  # nobody listens any more; what is on disk goes on another day


def _understood(data: bytes) -> Any:
    try:
        return wire.unpacked(data)
    except (AttributeError, ImportError) as error:  # a class or function that only the other process has
        raise RunError(
            f"federation = workers: a process cannot find what it was sent ({error}). Define models, losses and "
            "functions in a module of their own, or use federation = simulator."
        ) from error


def _told(error: Exception) -> tuple[Exception, str]:
    """Return an error as it can travel, and its trace."""
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
