"""A worker holds clients, with their records, state and keys, and answers the requests of `workers.py`."""

from __future__ import annotations

import os
import socket
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
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
from sordino.federations.shared import SharedReader
from sordino.federations.simulator import ClientPart, Simulator
from sordino.federations.store import Store

CPU = torch.device("cpu")
Pack = Callable[[Any], bytes]
Rebuild = Callable[[nn.Module, SampleLoss, Batch], Model]  # module, loss, one record -> model


@dataclass(frozen=True)
class Share:
    """What a worker is sent once: the clients that it may be asked to compute, and those whose state it keeps."""

    worker: int  # number of this worker
    clients: Mapping[int, Any]  # by block, all that it may be asked to compute: ClientPart; Stored, with shared memory
    home: Sequence[int]  # the blocks whose clients' state is kept by this worker
    parts: Mapping[int, Mapping[str, ClientPart]]  # by block of home and name: data that no round uses
    blocks: int  # number of blocks over all workers
    population: int
    rng: Stream | None  # None: the process draws its own key, which nobody else ever holds
    public: Stream
    memory_gb: float
    device: str = "cpu"  # where the clients of this worker train: cpu or cuda


class Host:
    """Clients in blocks; each block is a small simulator, and each block of `home` has its own file of client state."""

    def __init__(self, share: Share, memory: SharedReader | None = None) -> None:
        self._share = share
        self._rng = Stream.operating_system() if share.rng is None else share.rng
        self._device = _device(share.device)
        self._blocks: dict[int, Simulator] = {}
        for block, held in share.clients.items():
            clients = held if memory is None else memory.get(held)
            parts = share.parts.get(block, {})
            simulator = Simulator(self._device, clients, self._rng, share.memory_gb, share.public, parts=parts)
            simulator.store = Store(share.memory_gb / share.blocks)
            simulator.whose = f"the clients of block {block} of {share.blocks}"
            self._blocks[block] = simulator
        self._home = {block: self._blocks[block] for block in share.home}

    def open(self, method: Method, plan: Plan, module: nn.Module, loss: SampleLoss, rebuild: Rebuild) -> None:
        """Rebuild the model and open all blocks for a run."""
        work = self._work(self._device, method, plan, module, loss, rebuild)
        for simulator in self._blocks.values():
            simulator.open(work)

    def _work(
        self,
        device: torch.device,
        method: Method,
        plan: Plan,
        module: nn.Module,
        loss: SampleLoss,
        rebuild: Rebuild,
    ) -> Work:
        held = next(iter(self._blocks.values())).everyone()
        batch = held.fetch(held.ids[:1].tolist(), device)
        return Work(method, rebuild(module.to(device), loss, Batch(batch.x[:1], batch.y[:1], (1,))), plan)

    def resume(self, path: str, done: int, seen: bool) -> None:
        """Continue the blocks of home with the clients' state after `done` rounds; see `Federation.resume`."""
        if not Path(path).parent.is_dir():
            raise RunError(
                f"{Path(path).parent} is not a folder on {socket.gethostname()}, and what clients keep between rounds "
                "is stored there: set `out` to a folder that all machines of the run share."
            )
        for block, simulator in self._home.items():
            simulator.resume(store_of(Path(path), block), done, seen)

    def ask(
        self, phase: str, state: State, cohort: Sequence[int], turns: Sequence[Sequence[int]]
    ) -> dict[int, list[Message]]:
        """Return the sealed answers of the blocks that are this worker's turn, by block.

        They are those in time and, if answers may be late, the late ones.
        """
        ids, share = np.asarray(cohort, dtype=np.int64), self._share
        blocks = block_of(ids, share.population, share.blocks)
        here, answers = _moved(state, self._device), {}
        for block in turns[share.worker]:
            simulator = self._blocks[block]
            sent = simulator.answers(phase, here, ids[blocks == block])
            answers[block] = [simulator.work.plan.channel.seal(message, cohort) for message in sent]
        return answers

    def once(self, work: tuple[Any, ...], state: State, part: str, rng: Stream | None, label: str) -> Message | None:
        """Return what the clients here release once, outside the rounds; None if none of them has that data part.

        If no stream is given, the noise comes from the key of this process, under the label of the release.
        """
        stream, ready = self._rng.at("once", label) if rng is None else rng, self._work(CPU, *work)
        have = [s for s in self._home.values() if not part or part in s.parts]
        messages = [simulator.once(ready, state, part, stream) for simulator in have]
        return ready.plan.channel.seal(together(messages), range(self._share.population)) if messages else None

    def save(self, done: int) -> None:
        """Save the clients' state of the blocks of home for a checkpoint after `done` rounds."""
        for simulator in self._home.values():
            simulator.save(done)

    def personal(self, state: State) -> dict[int, Tensor]:
        """Return the personal models of the clients of home, by client."""
        return {i: model for simulator in self._home.values() for i, model in simulator.personal(state).items()}

    def close(self) -> None:
        """Close the files of the blocks of home."""
        for simulator in self._home.values():
            simulator.close()


def store_of(path: Path, block: int) -> Path:
    """Return the state file of a block: clients-3.sqlite beside clients.sqlite."""
    return path.with_name(f"{path.stem}-{block}{path.suffix}")


def joined(messages: Sequence[Message]) -> Message:
    """Concatenate messages; empty messages are ignored unless all are empty."""
    return together([m for m in messages if len(m)] or messages[:1])


class Desk:
    """Answers packed requests: the first one brings the share, each further one calls a method of the host."""

    def __init__(self, pack: Pack, memory: SharedReader | None = None) -> None:
        self._pack, self._memory = pack, memory
        self._host: Host | None = None

    def answer(self, data: bytes) -> bytes:
        """Return the packed answer, or the packed error and its traceback."""
        try:
            if self._host is None:
                paths, share = wire.unpacked(data)
                paths.apply()
                self._host, answer = Host(_understood(share), self._memory), None
            else:
                verb, args = _understood(data)
                answer = getattr(self._host, verb)(*args)
            return self._pack((answer, None))
        except Exception as error:
            return self._pack((None, self._sendable(error)))

    def _sendable(self, error: Exception) -> tuple[Exception, str]:
        """Return an error in a form that can be sent to another process, and its traceback."""
        trace = traceback.format_exc()
        try:
            wire.unpacked(self._pack(error))
        except Exception:
            return RunError(f"{type(error).__name__}: {' '.join(str(error).split())}"), trace
        return error, trace


@dataclass(frozen=True)
class CodePaths:
    """Where the process that starts a run finds code that is not part of an installed package."""

    plugins: str  # folders of plug-ins, separated as in PATH
    modules: tuple[str, ...]  # sys.path

    @staticmethod
    def here() -> CodePaths:
        """Return the places of this process, as absolute paths."""
        folders = [str(Path(p).absolute()) for p in os.environ.get(plugin.VARIABLE, "").split(os.pathsep) if p]
        return CodePaths(os.pathsep.join(folders), tuple(str(Path(p).absolute()) for p in sys.path))

    def apply(self) -> None:
        """Look for plug-ins and, after its own places, for modules where that process does."""
        os.environ[plugin.VARIABLE] = self.plugins  # this process may have started with other folders
        sys.path.extend(p for p in self.modules if p not in sys.path and Path(p).exists())


def _device(name: str) -> torch.device:
    if name == "cuda" and not torch.cuda.is_available():
        raise RunError(f"device = cuda, but torch finds no CUDA device on {socket.gethostname()}. Use device = cpu.")
    return torch.device(name)


def _moved(state: State, device: torch.device) -> State:
    """Return the state on a device."""
    if device.type == "cpu":
        return state
    average = None if state.average is None else state.average.to(device)
    parts = {name: _moved_fields(getattr(state, name), device) for name in ("method", "algorithm", "inputs")}
    return replace(state, params=state.params.to(device), average=average, **parts)


def _moved_fields(part: Any, device: torch.device) -> Any:
    if not is_dataclass(part) or isinstance(part, type):
        return part
    tensors = {f.name: v for f in fields(part) if isinstance(v := getattr(part, f.name), Tensor)}
    return replace(part, **{name: value.to(device) for name, value in tensors.items()})


def _understood(data: bytes) -> Any:
    try:
        return wire.unpacked(data)
    except (AttributeError, ImportError) as error:  # a class or function that exists only in the other process
        raise RunError(
            f"a process that holds clients cannot find what it was sent ({error}). Define models, losses and functions "
            "in a module that it can import, or use federation = simulator."
        ) from error
