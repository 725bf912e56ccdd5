"""The simulator: trains the whole cohort on this machine, in chunks that fit into memory.

Chunk boundaries depend only on the plan, the model, `memory_gb` and `blocks`, never on the memory that happens to be
free, so that a seed reproduces a run bit for bit. Clients of different blocks (federations/blocks.py) are never in one
chunk, so that the federation of processes, which assigns clients by blocks, can compute exactly the same chunks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from sordino.contract.method import Method
from sordino.contract.outlets import Outlets, Witness
from sordino.contract.plan import Plan
from sordino.contract.pricing import check_weights, declared, setting
from sordino.contract.round_meter import RoundMeter
from sordino.contract.site import ALGORITHM, Own, Site
from sordino.core import clip_counts
from sordino.core.errors import DataError, RunError
from sordino.core.message import Message, together
from sordino.core.rng import Ints, Stream
from sordino.core.types import Batch, Clients, Model, State
from sordino.federations.base import Work, require_answers, require_cohort
from sordino.federations.blocks import block_of, by_block
from sordino.federations.facts import Facts
from sordino.federations.heap import keep_freed_memory
from sordino.federations.store import Store

COPIES = 6  # rows in memory per training client: weights, gradient, noise, step, optimiser state
SPENT = "spent"  # name of the client state that meters the total of a run
LATE = "late "  # prefix of the phase and name of a field that is held back


class RecordSource(Protocol):
    """A source of the clients' records."""

    def fetch(self, ids: Sequence[int], device: torch.device) -> Batch:
        """Return the records of these clients on the device."""
        ...


@dataclass(frozen=True)
class ClientPart:
    """A part of the clients' data, held by some of the clients: entry k of `data` belongs to client ids[k]."""

    data: Clients
    ids: Ints  # ascending

    def fetch(self, ids: Sequence[int], device: torch.device) -> Batch:
        """Return the records of these clients on the device."""
        return self.data.fetch(self._places(ids).tolist(), device)

    def only(self, ids: Ints) -> ClientPart:
        """Return this part restricted to some of its clients, with a copy of their records."""
        return ClientPart(self.data.subset(self._places(ids).tolist()), ids)

    def _places(self, ids: Sequence[int] | Ints) -> Ints:
        wanted = np.asarray(ids, dtype=np.int64)
        places = np.minimum(np.searchsorted(self.ids, wanted), max(0, len(self.ids) - 1))
        if strange := [int(i) for i, at in zip(wanted, places, strict=True) if self.ids[at] != i]:
            raise DataError(f"client {strange[0]} was asked for here, but its records are held elsewhere.")
        return places


class Simulator:
    """The federation that runs all clients in this process."""

    def __init__(
        self,
        device: torch.device,
        data: Clients | ClientPart,
        rng: Stream,  # source of the clients' streams of every round
        memory_gb: float = 2.0,
        public: Stream | None = None,
        facts: Facts | None = None,
        parts: Mapping[str, ClientPart] | None = None,  # data of the clients that no round uses
        blocks: int = 1,
    ) -> None:
        self.device, self.data, self.rng, self.blocks = device, data, rng, blocks
        self._facts, self.parts = facts, dict(parts or {})
        self.memory = memory_gb * 2**30
        self.store = Store(memory_gb)
        self.public = public or Stream.research(0)  # determines the clients' dropout probabilities
        self.whose = "all clients"  # the clients held here, as noted in the file of the store
        self.meter: RoundMeter | None = None  # measures clips and noise of every round, for the owner of the data
        self._work: Work | None = None
        self._by_block: dict[int, ClientPart] = {}  # data by block, if there are several blocks
        if device.type == "cpu":
            keep_freed_memory()
        else:  # a seed must reproduce a run bit for bit; cuDNN might otherwise pick nondeterministic kernels
            torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = True, False

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

    def once(self, work: Work, state: State, part: str, rng: Stream) -> Message:
        """Return what all clients release once, outside the rounds; see `Federation.once`."""
        everyone = self.parts[part] if part else self.everyone()
        phase, cpu = work.method.phases[0], torch.device("cpu")
        split = [everyone] if self.blocks <= 1 else list(by_part(everyone, work.plan.population, self.blocks).values())
        return together([answer(work, Store(), data, cpu, phase, state, data.ids, rng) for data in split])

    def everyone(self) -> ClientPart:
        """Return the data of all clients that train."""
        return self.data if isinstance(self.data, ClientPart) else ClientPart(self.data, np.arange(self.data.count))

    def open(self, work: Work) -> None:
        """Set the work of the run."""
        self._work = work

    def resume(self, path: Path, done: int, seen: bool = False) -> None:
        """Continue with the clients' state after `done` rounds; see `Federation.resume`."""
        self.store.open(path, done, (SPENT,) if seen else (), self.whose)
        if seen:
            for kind in self.store.kinds(LATE):
                self.store.drop(kind, self.store.clients(kind))

    def save(self, done: int) -> None:
        """Save the clients' state for a checkpoint after `done` rounds."""
        self.store.save(done)

    def close(self) -> None:
        """Close the file of the clients' state."""
        self.store.close()

    def ask(self, phase: str, state: State, cohort: Sequence[int]) -> Message:
        """Return the sealed message of a phase, including late answers of the previous round; see `Federation.ask`."""
        plan = self.work.plan
        require_cohort(plan, len(cohort))
        message = together(self.answers(phase, state, cohort))
        require_answers(plan, len(cohort), len(message))
        return plan.channel.seal(message, cohort)

    def answers(self, phase: str, state: State, cohort: Sequence[int]) -> list[Message]:
        """Return the answers of a cohort, not sealed.

        The first message holds the answers in time. If answers may be late, a second one holds those of the last round
        that were late.
        """
        plan, ids = self.work.plan, np.asarray(cohort, dtype=np.int64)
        law, rng = plan.stragglers, self.rng.at("round", state.round).at("clients")
        if law.none:
            return [self._answers(phase, state, ids, rng)]
        failing = law.failing(ids, self.public.at("dropout"))
        in_time, late = law.fates(ids, failing, rng.at("stragglers"))
        come = in_time | late  # clients that drop out do so before their state changes
        message = self._answers(phase, state, ids[come], rng)
        alike = law.late == 0 and law.dropout[0] == law.dropout[1]  # as wherever the plan has thresholds
        if alike and (plan.thresholds or not all(v.is_floating_point() for v in message.fields.values())):
            return [message]  # every answer weighs one, and whole numbers have no weights
        counts = torch.from_numpy(law.weights(failing[come])).to(state.params)
        waiting = torch.from_numpy(late[come]).to(state.params.device)
        return self._with_late(phase, message.weighted(counts), waiting)

    def _with_late(self, phase: str, message: Message, waiting: Tensor) -> list[Message]:
        """Hold back the answers that are late now, and deliver those that were late in this phase of the last round.

        Only the newest answer of each client is delivered.
        """
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
        with clip_counts.counting(None if self.meter is None else self.meter.clips):
            done = [
                answer(self.work, self.store, self._data(part), self.device, phase, state, part, rng, self.meter)
                for part in self._chunks(ids)
            ]
        return together(done)

    def measured(self) -> dict[str, Any] | None:
        """Return what was measured since the last call, for the owner of the data; None if nothing was."""
        return None if self.meter is None else self.meter.take(setting(self.work.method, self.work.plan).split)

    def _data(self, chunk: Ints) -> Clients | ClientPart:
        """Return the data with the records of these clients; last bits also depend on where records lie in memory."""
        if self.blocks <= 1 or not len(chunk):
            return self.data
        population = self.work.plan.population
        if not self._by_block:
            self._by_block = by_part(self.everyone(), population, self.blocks)
        return self._by_block[int(block_of(chunk[:1], population, self.blocks)[0])]

    def _chunks(self, cohort: Ints) -> list[Ints]:
        """Return chunks of clients of one block whose weights fit into memory; one empty chunk for an empty cohort."""
        parts = by_block(cohort, self.work.plan.population, self.blocks)
        return [chunk for part in parts for chunk in chunks(part, self.work.model, self.memory)]

    def personal(self, state: State) -> dict[int, Tensor]:
        """Return the clients' personal models, by client."""
        work = self.work
        models = {}
        for client in self.store.clients(ALGORITHM):
            rows = self.store.read(ALGORITHM, [client], work.plan.algorithm.keeps(state, 1))
            models[client] = work.plan.algorithm.own_models(state, rows)[0]
        return models


def by_part(everyone: ClientPart, population: int, blocks: int) -> dict[int, ClientPart]:
    """Return the data of each non-empty block; clients beyond the population belong to the last block."""
    where = block_of(np.minimum(everyone.ids, population - 1), population, blocks)
    return {int(block): everyone.only(everyone.ids[where == block]) for block in np.unique(where)}


def chunks(cohort: Ints, model: Model, memory: float) -> list[Ints]:
    """Split a cohort into chunks whose weights fit into memory; an empty cohort gives one empty chunk."""
    fit = max(1, int(memory / (4 * COPIES * max(1, model.layout.dim))))
    return [cohort[i : i + fit] for i in range(0, max(1, len(cohort)), fit)]


def fresh(method: Method, state: State, clients: int, plan: Plan) -> Own:
    """Return the clients' state before their first round: the algorithm's rows, the method's fields, the meter."""
    rows = plan.algorithm.keeps(state, clients)
    fields = method.keeps(state, clients, plan)
    if taken := [name for name in fields if name in (ALGORITHM, SPENT) or name.split(" ")[0] == LATE.strip()]:
        raise RunError(f"what clients keep may not be called {taken[0]!r}: that name is the federation's own.")
    client_state = ({ALGORITHM: rows} if rows.shape[1] else {}) | fields
    if any(r.total is not None and r.where == "client" for r in method.releases(plan)):
        client_state[SPENT] = torch.zeros(clients, dtype=torch.float64)
    return client_state


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
    """Train some clients, store their new state and return what they send.

    Args:
        work: The method, model and plan.
        store: The clients' state.
        data: The clients' records.
        device: Where to train.
        phase: Phase of the round.
        state: Public state at the start of the phase.
        ids: The clients.
        rng: Stream of the round, from which each client's stream is derived.
        witness: Observes the outlets (rehearsals).
    """
    method, plan = work.method, work.plan
    if phase != method.phases[0]:  # phases draw from separate streams
        rng = rng.at("phase", phase)
    batch, row = data.fetch(ids.tolist(), device), rng.rows(ids)
    start = fresh(method, state, len(ids), plan)
    client_state = {name: store.read(name, ids.tolist(), value) for name, value in start.items()}
    spent = client_state.pop(SPENT, None)
    out = Outlets(
        tuple(r for r in declared(method, plan, state.round, state) if r.phase == phase),
        row,
        round=state.round,
        split=setting(method, plan).split,
        own=plan.z_of(ids, state.params) if plan.multipliers and plan.noise_multiplier is not None else None,
        base=plan.noise_multiplier or 1.0,  # None: a method as printed, which passes its clients' multipliers itself
        spent=None if spent is None else spent.double().clone(),
        witness=witness,
    )
    message, new_client_state = method.train(
        state, Site(batch, client_state, work.model, plan, row.at("train"), out, phase)
    )
    out.check(message)
    check_weights(method, plan, message, batch)
    for name, value in new_client_state.items():
        store.write(name, ids.tolist(), value)
    if out.spent is not None:
        store.write_now(SPENT, ids.tolist(), out.spent, state.round + 1)
    return Message(message.fields, message.weight, ids, released=out.released(message))
