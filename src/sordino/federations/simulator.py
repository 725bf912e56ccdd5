"""The whole cohort at once, on this machine, in chunks that fit.

Chunk borders depend on the plan, the model, `memory_gb` and `blocks` alone, never on what happens to be free, so that a
seed repeats a run bit for bit. Clients of different blocks (federations/blocks.py) are never in one chunk: so that the
federation of processes, which owns clients by blocks, can compute the very same chunks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from sordino.contract.method import Method
from sordino.contract.outlets import Outlets, Witness
from sordino.contract.plan import Plan
from sordino.contract.pricing import check_weights, declared, setting
from sordino.contract.site import ALGORITHM, Own, Site
from sordino.core.errors import DataError, RunError
from sordino.core.message import Message, together
from sordino.core.rng import Ints, Stream
from sordino.core.types import Batch, Clients, Model, State
from sordino.federations.base import Work
from sordino.federations.blocks import block_of, by_block
from sordino.federations.facts import Facts
from sordino.federations.heap import keep_freed_memory
from sordino.federations.store import Store

COPIES = 6  # rows a training client holds at once: weights, gradient, noise, step, optimiser state
SPENT = "spent"  # of the total that covers a run, what a client's outlets have metered
LATE = "late "  # before the phase, and the name, of a field that is held back


class RecordSource(Protocol):
    """Where clients' records come from."""

    def fetch(self, ids: Sequence[int], device: torch.device) -> Batch: ...


@dataclass(frozen=True)
class ClientPart:
    """A part of the clients' data, of some of the clients: those with these numbers, in order."""

    data: Clients
    ids: Ints  # ascending

    def fetch(self, ids: Sequence[int], device: torch.device) -> Batch:
        return self.data.fetch(self._places(ids).tolist(), device)

    def only(self, ids: Ints) -> ClientPart:
        """Return some of these clients alone, with a copy of their records."""
        return ClientPart(self.data.subset(self._places(ids).tolist()), ids)

    def _places(self, ids: Sequence[int] | Ints) -> Ints:
        wanted = np.asarray(ids, dtype=np.int64)
        places = np.minimum(np.searchsorted(self.ids, wanted), max(0, len(self.ids) - 1))
        if strange := [int(i) for i, at in zip(wanted, places, strict=True) if self.ids[at] != i]:
            raise DataError(f"client {strange[0]} is asked for here, and its records are held elsewhere.")
        return places


class Simulator:
    def __init__(
        self,
        device: torch.device,
        data: Clients | ClientPart,
        rng: Stream,  # from which the clients' streams of every round are derived
        memory_gb: float = 2.0,
        public: Stream | None = None,
        facts: Facts | None = None,
        parts: Mapping[str, ClientPart] | None = None,  # of the clients' data, that no round touches
        blocks: int = 1,
    ) -> None:
        self.device, self.data, self.rng, self.blocks = device, data, rng, blocks
        self._facts, self.parts = facts, dict(parts or {})
        self.memory = memory_gb * 2**30
        self.store = Store(memory_gb)
        self.public = public or Stream.research(0)  # deals clients their own probabilities to fail
        self.whose = "all clients"  # are here: what the file of the store says
        self._work: Work | None = None
        self._by_block: dict[int, ClientPart] = {}  # the data, where there are several blocks
        if device.type == "cpu":
            keep_freed_memory()
        else:  # a seed must repeat a run bit for bit; cuDNN would otherwise pick kernels that add in any order
            torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = True, False

    @property
    def work(self) -> Work:
        if self._work is None:
            raise RuntimeError("the federation was not opened")
        return self._work

    @property
    def facts(self) -> Facts:
        if self._facts is None:
            raise RuntimeError("the facts of these clients were not taken down")
        return self._facts

    def once(self, work: Work, state: State, part: str, rng: Stream) -> Message:
        everyone = self.parts[part] if part else self._everyone()
        phase, cpu = work.method.phases[0], torch.device("cpu")
        split = [everyone] if self.blocks <= 1 else list(by_part(everyone, work.plan.population, self.blocks).values())
        return together([answer(work, Store(), data, cpu, phase, state, data.ids, rng) for data in split])

    def _everyone(self) -> ClientPart:
        return self.data if isinstance(self.data, ClientPart) else ClientPart(self.data, np.arange(self.data.count))

    def open(self, work: Work) -> None:
        self._work = work

    def resume(self, path: Path, done: int, seen: bool = False) -> None:
        self.store.open(path, done, (SPENT,) if seen else (), self.whose)
        if seen:
            for kind in self.store.kinds(LATE):
                self.store.drop(kind, self.store.clients(kind))

    def save(self, done: int) -> None:
        self.store.save(done)

    def close(self) -> None:
        self.store.close()

    def ask(self, phase: str, state: State, cohort: Sequence[int]) -> Message:
        """Train, let out and seal: what arrives in a phase; late answers of the last round too."""
        return self.work.plan.channel.seal(together(self.answers(phase, state, cohort)), cohort)

    def answers(self, phase: str, state: State, cohort: Sequence[int]) -> list[Message]:
        """Return what a cohort answers in time; then, where answers may be late, what was late before. Not sealed."""
        plan, ids = self.work.plan, np.asarray(cohort, dtype=np.int64)
        law, rng = plan.stragglers, self.rng.at("round", state.round).at("clients")
        if law.none:
            return [self._answers(phase, state, ids, rng)]
        failing = law.failing(ids, self.public.at("dropout"))
        in_time, late = law.fates(ids, failing, rng.at("stragglers"))
        come = in_time | late  # who fails does so before anything has changed
        message = self._answers(phase, state, ids[come], rng)
        counts = torch.from_numpy(law.weights(failing[come])).to(state.params)
        waiting = torch.from_numpy(late[come]).to(state.params.device)
        return self._with_late(phase, message.weighted(counts), waiting)

    def _with_late(self, phase: str, message: Message, waiting: Tensor) -> list[Message]:
        """Hold back what is late now, hand over what was late in that phase before; of one client only the newest."""
        ids = message.ids if message.ids is not None else np.zeros(0, dtype=np.int64)
        kinds = {name: f"{LATE}{phase} {name}".strip() for name in ("", *message.fields)}
        before = self.store.clients(kinds[""])
        now = set(ids[~waiting.cpu().numpy()].tolist())
        arrived = [i for i in before if i not in now]
        values = {"": message.weight if message.weight is not None else torch.ones(len(message))} | dict(message.fields)
        old = {
            name: self.store.read(kinds[name], arrived, value.new_zeros(len(arrived), *value.shape[1:]))
            for name, value in values.items()
        }
        late = ids[waiting.cpu().numpy()].tolist()
        for name, value in values.items():
            self.store.drop(kinds[name], before)
            self.store.write(kinds[name], late, value[waiting])
        weight = old.pop("")
        held = Message(old, weight, np.asarray(arrived, dtype=np.int64), released=message.released)
        return [message.pick(~waiting), held]

    def _answers(self, phase: str, state: State, ids: Ints, rng: Stream) -> Message:
        done = [
            answer(self.work, self.store, self._data(part), self.device, phase, state, part, rng)
            for part in self._chunks(ids)
        ]
        return together(done)

    def _data(self, chunk: Ints) -> Clients | ClientPart:
        """Return the data in which these clients are; last bits also depend on where in memory records lie."""
        if self.blocks <= 1 or not len(chunk):
            return self.data
        population = self.work.plan.population
        if not self._by_block:
            self._by_block = by_part(self._everyone(), population, self.blocks)
        return self._by_block[int(block_of(chunk[:1], population, self.blocks)[0])]

    def _chunks(self, cohort: Ints) -> list[Ints]:
        """Return runs of clients of one block whose weights fit the memory; one empty one if no one came."""
        parts = by_block(cohort, self.work.plan.population, self.blocks)
        return [chunk for part in parts for chunk in chunks(part, self.work.model, self.memory)]

    def personal(self, state: State) -> dict[int, Tensor]:
        work = self.work
        found = {}
        for client in self.store.clients(ALGORITHM):
            rows = self.store.read(ALGORITHM, [client], work.plan.algorithm.keeps(state, 1))
            found[client] = work.plan.algorithm.own_models(state, rows)[0]
        return found


def by_part(everyone: ClientPart, population: int, blocks: int) -> dict[int, ClientPart]:
    """Return the data of each block that has any; parties beyond the population belong to the last block."""
    where = block_of(np.minimum(everyone.ids, population - 1), population, blocks)
    return {int(block): everyone.only(everyone.ids[where == block]) for block in np.unique(where)}


def chunks(cohort: Ints, model: Model, memory: float) -> list[Ints]:
    """Return runs of clients whose weights fit the memory; one empty one if no one came."""
    fit = max(1, int(memory / (4 * COPIES * max(1, model.layout.dim))))
    return [cohort[i : i + fit] for i in range(0, max(1, len(cohort)), fit)]


def fresh(method: Method, state: State, clients: int, plan: Plan) -> Own:
    """Return what clients keep before their first round: the algorithm's rows, the method's fields, the meter."""
    rows = plan.algorithm.keeps(state, clients)
    fields = method.keeps(state, clients, plan)
    if taken := [name for name in fields if name in (ALGORITHM, SPENT) or name.split(" ")[0] == LATE.strip()]:
        raise RunError(f"what clients keep may not be called {taken[0]!r}: that name is the federation's own.")
    found = ({ALGORITHM: rows} if rows.shape[1] else {}) | fields
    if any(r.total is not None and r.where == "client" for r in method.releases(plan)):
        found[SPENT] = torch.zeros(clients, dtype=torch.float64)
    return found


def answer(
    work: Work,
    store: Store,
    data: RecordSource,
    device: torch.device,
    phase: str,
    state: State,
    ids: Ints,
    rng: Stream,
    witness: Witness | None = None,
) -> Message:
    """Train some clients and return what they let out; what they keep goes to the store."""
    method, plan = work.method, work.plan
    if phase != method.phases[0]:  # no draw of one phase is that of another
        rng = rng.at("phase", phase)
    batch, row = data.fetch(ids.tolist(), device), rng.rows(ids)
    start = fresh(method, state, len(ids), plan)
    own = {name: store.read(name, ids.tolist(), value) for name, value in start.items()}
    spent = own.pop(SPENT, None)
    out = Outlets(
        tuple(r for r in declared(method, plan, state.round, state) if r.phase == phase),
        row,
        round=state.round,
        split=setting(method, plan).split,
        own=plan.z_of(ids, state.params) if plan.multipliers and plan.noise_multiplier is not None else None,
        base=plan.noise_multiplier or 1.0,  # None: a printed method, which hands over its clients' own multipliers
        spent=None if spent is None else spent.double().clone(),
        witness=witness,
    )
    message, kept = method.train(state, Site(batch, own, work.model, plan, row.at("train"), out, phase))
    out.check(message)
    check_weights(method, plan, message, batch)
    for name, value in kept.items():
        store.write(name, ids.tolist(), value)
    if out.spent is not None:
        store.write_now(SPENT, ids.tolist(), out.spent, state.round + 1)
    return Message(message.fields, message.weight, ids, released=out.released(message))
