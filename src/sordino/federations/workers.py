"""A federation of workers, which compute the clients of a round side by side.

Workers are processes on this machine (processes.py) or Ray actors on one or several machines (ray_workers.py); a
`Transport` starts them and carries bytes. The server's process loads the records and hands them over once; afterwards
it sends requests and gets messages that were clipped, noised and sealed where the clients are. In secure mode each
worker draws its own key, so that the server never holds the clients' noise.

Clients belong to blocks (blocks.py). What clients keep between rounds is at one worker, the home of their block, in
one file per block, and is used there alone. Clients that keep nothing are computed by any worker: in each round the
blocks of the cohort are dealt so that all workers have about the same to do. Processes of one machine read the records
in shared memory (shared.py); actors have those of their own blocks only, and so compute only these.

Neither the number of workers, nor the dealing, nor the transport changes a single bit, and a run may be resumed with
another number. If the server also uses one thread, the models equal those of the simulator with the same number of
blocks. `memory_gb` applies to each worker.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from torch import Tensor

from sordino.core.message import Message, together
from sordino.core.rng import Floats, Ints, Stream
from sordino.core.types import Clients, State
from sordino.federations import wire
from sordino.federations.base import Work, require_answers, require_cohort
from sordino.federations.blocks import LEAST, block_of, dealt, members, number, owned
from sordino.federations.capacity import Room, cores
from sordino.federations.facts import Facts
from sordino.federations.host import CodePaths, Rebuild, Share, joined
from sordino.federations.processes import Processes
from sordino.federations.simulator import ClientPart, by_part, fresh


class Transport(Protocol):
    """Protocol of a transport: it starts workers, each with a `Desk`, and exchanges bytes with them.

    A worker that is gone raises RunError; errors inside a worker are part of its answer.
    """

    shares: bool  # whether all workers can reach the same memory

    @property
    def pids(self) -> list[int]:
        """Return the ids of the processes of the workers, each on its machine."""

    def share(self, value: Any, what: str) -> Any:
        """Write an object to the memory that all workers reach, and return what to send in its place."""

    def pack(self, value: Any, what: str = "a message") -> bytes:
        """Serialise an object for the workers; raise an error naming `what` if it cannot be sent."""

    def check(self, count: int) -> None:
        """Raise an error if so many workers cannot be started; start none."""

    def start(self, count: int, module: str) -> None:
        """Start the workers, which need a module."""

    def deal(self, shares: Iterable[bytes]) -> list[bytes]:
        """Send each worker its share; return all answers, in the order of the workers."""

    def ask(self, question: bytes) -> list[bytes]:
        """Send all workers the same request; return their answers, in the order of the workers."""

    def end(self, at_once: bool) -> None:
        """End the workers, at once if they may be busy."""


RECORDS = "what makes the clients' records"


class _TraceError(Exception):
    """Carries the traceback of an error from the process in which it happened."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


class Workers:
    """The federation that runs clients in several workers."""

    def __init__(
        self,
        data: Clients,
        rng: Stream | None,  # source of the clients' streams; None: each worker draws its own key
        rebuild: Rebuild,
        workers: int = 0,
        memory_gb: float = 2.0,
        public: Stream | None = None,
        blocks: int = LEAST,
        facts: Facts | None = None,
        parts: Mapping[str, ClientPart] | None = None,  # data of the clients that no round uses
        transport: Transport | None = None,  # None: processes on this machine
        device: str = "cpu",  # where clients train; the server's part is computed on the CPU
        room: Room | None = None,  # the memory that workers take, if they are on this machine
    ) -> None:
        self._transport = transport or Processes()
        self.blocks = number(data.count, blocks)
        self.count = min(workers or cores(), self.blocks)
        self.room = room or Room()
        self._data, self._rng, self._rebuild, self._memory_gb = data, rng, rebuild, memory_gb
        self._public, self._facts, self._parts = public or Stream.research(0), facts, dict(parts or {})
        self._device = device
        self._work: Work | None = None
        self._started = self._busy = False

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
        return self._transport.pids

    def open(self, work: Work) -> None:
        """Set the work of the run; workers start with the first request."""
        self._work = work
        if self._started:
            self._asked(self._work_packed())

    def check(self) -> None:
        """Raise an error if something cannot be sent to workers, before any cost and without starting any."""
        self._share(0, [0], {0: self._clients(0)}, {})
        self._work_packed()
        if self._transport.shares:  # on this machine
            self.room.check(self.count)
        self._transport.check(self.count)

    def resume(self, path: Path, done: int, seen: bool = False) -> None:
        """Continue with the clients' state after `done` rounds; see `Federation.resume`."""
        self._ask_all("resume", str(path.absolute()), done, seen)

    def ask(self, phase: str, state: State, cohort: Sequence[int]) -> Message:
        """Return what leaves the clients of a cohort in one phase of a round."""
        plan = self.work.plan
        require_cohort(plan, len(cohort))
        ids = np.asarray(cohort, dtype=np.int64)
        answers: dict[int, list[Message]] = {}
        for part in self._ask_all("ask", phase, state, ids.tolist(), self._turns(state, ids)):
            answers |= part
        in_order = [answers[block] for block in sorted(answers)]
        message = together([joined(list(kind)) for kind in zip(*in_order, strict=True)])  # in time, then late ones
        require_answers(plan, len(cohort), len(message))
        return message

    def _turns(self, state: State, ids: Ints) -> list[list[int]]:
        """Return the blocks that each worker computes in a phase.

        Clients that keep something are computed where it is kept, and all others by whoever has least to do.
        """
        work, own = self.work, [list(owned(worker, self.count, self.blocks)) for worker in range(self.count)]
        if work.plan.stragglers.late > 0:
            return own  # every block may hold answers of the last round
        where = block_of(ids, self._data.count, self.blocks)
        if not len(ids):
            return [[0], *([] for _ in own[1:])]  # an empty message, which has the fields of any other
        busy = set(where.tolist())
        if not self._transport.shares or fresh(work.method, state, 1, work.plan):
            return [[block for block in blocks if block in busy] for blocks in own]
        costs = np.bincount(where, weights=self._costs(ids))
        return dealt({block: float(costs[block]) for block in busy}, self.count)

    def _costs(self, ids: Ints) -> Floats:
        """Return about how many records' gradients each client computes."""
        local, facts = self.work.plan.local, self._facts
        if facts is None or not facts.known:
            return np.ones(len(ids))
        return np.array([local.count(n) * local.expected_batch(n) for n in facts.records[ids].tolist()])

    def once(self, work: Work, state: State, part: str, rng: Stream) -> Message:
        """Return what all clients release once, outside the rounds.

        A secret stream is not passed to the workers: it only serves to label the release.
        """
        label, stream = rng.at("label").key.hex(), None if rng.secure else rng
        messages = self._ask_all("once", self._described(work), state, part, stream, label)
        return together([message for message in messages if message is not None])

    def save(self, done: int) -> None:
        """Save the clients' state for a checkpoint after `done` rounds."""
        if self._started:
            self._ask_all("save", done)

    def personal(self, state: State) -> dict[int, Tensor]:
        """Return the clients' personal models, by client."""
        return {i: model for models in self._ask_all("personal", state) for i, model in models.items()}

    def close(self) -> None:
        """End the workers; those that are still busy, because the caller stopped waiting, are ended immediately."""
        if self._started and not self._busy:
            with contextlib.suppress(Exception):
                self._ask_all("close")
        if self._started:
            self._transport.end(at_once=self._busy)
        self._started = self._busy = False

    # --- workers

    def _ask_all(self, verb: str, *args: Any) -> list[Any]:
        if not self._started:
            self._start()
        return self._asked(self._transport.pack((verb, args)))

    def _asked(self, question: bytes) -> list[Any]:
        """Return the answers of all workers to one request; raise the first error among them."""
        self._busy = True
        answers = self._transport.ask(question)
        self._busy = False
        return _opened(answers)

    def _start(self) -> None:
        work = self._work_packed()  # raises an error before a worker is started
        self._started = self._busy = True
        self._transport.start(self.count, getattr(self._rebuild, "func", self._rebuild).__module__)
        answers = self._transport.deal(self._shares())
        self._busy = False
        _opened(answers)
        self._asked(work)

    def _shares(self) -> Iterator[bytes]:
        """Return what each worker gets first; only one share is in memory at a time."""
        paths, parts = CodePaths.here(), self._parts_by_block()
        reached = range(self.blocks) if self._transport.shares else range(0)
        everywhere = {b: self._transport.share(self._clients(b), RECORDS) for b in reached}
        for worker in range(self.count):
            own = owned(worker, self.count, self.blocks)
            clients = everywhere or {b: self._clients(b) for b in own}
            yield wire.packed((paths, self._share(worker, own, clients, {b: parts.get(b, {}) for b in own})))

    def _clients(self, block: int) -> ClientPart:
        """Return the data of the clients of a block, as a copy."""
        population = self._data.count
        return ClientPart(self._data, np.arange(population)).only(members(block, population, self.blocks))

    def _parts_by_block(self) -> dict[int, dict[str, ClientPart]]:
        """Return the data that no round uses, by block and name."""
        parts: dict[int, dict[str, ClientPart]] = {}
        for name, part in self._parts.items():
            for block, clients in by_part(part, self._data.count, self.blocks).items():
                parts.setdefault(block, {})[name] = clients
        return parts

    def _share(
        self,
        worker: int,
        own: Sequence[int],
        clients: Mapping[int, Any],
        parts: Mapping[int, Mapping[str, ClientPart]],
    ) -> bytes:
        """Return what a worker gets first."""
        share = Share(
            worker=worker,
            clients=clients,
            home=own,
            parts=parts,
            blocks=self.blocks,
            population=self._data.count,
            rng=self._rng,
            public=self._public,
            memory_gb=self._memory_gb,
            device=self._device,
        )
        return self._transport.pack(share, RECORDS)

    def _work_packed(self) -> bytes:
        parts = self._described(self.work)
        for what, part in zip(("the method", "the plan", "the model", "the loss"), parts, strict=False):
            self._transport.pack(part, what)
        return self._transport.pack(("open", parts))

    def _described(self, work: Work) -> tuple[Any, ...]:
        """Return work in a form that can be sent: without gradient functions and without the server's records."""
        return work.method, replace(work.plan, public=None), work.model.module, work.model.loss, self._rebuild


def _opened(answers: Sequence[bytes]) -> list[Any]:
    """Return what the workers answered; raise the first error among the answers."""
    pairs = [wire.unpacked(answer) for answer in answers]
    for _, problem in pairs:
        if problem is not None:
            error, trace = problem
            raise error from _TraceError(trace)
    return [answer for answer, _ in pairs]
