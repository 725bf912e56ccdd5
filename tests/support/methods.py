"""Ways into a method that tests share: `play` a round of it, and `price` it; nothing else calls its verbs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from sordino.contract import pricing
from sordino.contract.method import Method, Plan, Release, Site
from sordino.contract.outlets import Outlets, received
from sordino.core.message import Message
from sordino.core.rng import Ints, Stream
from sordino.core.types import Batch, Clients, Model, State
from sordino.federations.base import Work
from sordino.federations.simulator import Simulator, answer
from sordino.federations.store import Store
from sordino.privacy.clip import Bounded
from sordino.privacy.events import Cost
from sordino.runs import build, loop

CPU = torch.device("cpu")
RNG = Stream.research(11)


def price(method: Method, plan: Plan, round: int = 0, state: State | None = None) -> tuple[Cost, ...]:
    """Return what one participation in a round costs, by viewer."""
    return pricing.costs(method, plan, round, state)


def whole(method: Method, plan: Plan) -> tuple[Cost, ...] | None:
    """Return what the run costs as a whole, where that is one price."""
    return pricing.run_costs(method, plan)


def federation_of(
    made: build.Job,
    plan: Plan | None = None,
    clients: Clients | None = None,
    model: Model | None = None,
    rng: Stream = RNG,
    memory_gb: float = 2.0,
) -> Simulator:
    """Return a simulator of a job's clients, opened; parts of the job may be replaced."""
    found = Simulator(CPU, made.federation.data if clients is None else clients, rng, memory_gb)
    found.open(Work(made.method, model or made.model, plan or made.plan))
    return found


def clients_stream(rng: Stream = RNG, round: int = 0) -> Stream:
    """Return the stream from which the simulator derives those of the clients in a round."""
    return rng.at("round", round).at("clients")


@dataclass(frozen=True)
class Played:
    sent: Message  # what left the clients in the last phase
    seen: Message  # what the server may use
    after: State  # the state after the round


def play(
    made: build.Job,
    cohort: Sequence[int] | None = None,
    state: State | None = None,
    federation: Simulator | None = None,
    rng: Stream = RNG,
) -> Played:
    """Play one round of a job with a cohort (everyone unless said), without ledger and files."""
    federation = federation or federation_of(made, rng=rng)
    state, plan, method = loop.begin(made) if state is None else state, federation.work.plan, made.method
    ids = list(range(made.federation.facts.population)) if cohort is None else list(cohort)
    now = state
    for phase in method.phases:
        sent = federation.ask(phase, now, ids)
        seen = arrived(method, plan, now, sent, rng, phase)
        now = method.between(phase, now, seen, plan) if phase != method.phases[-1] else now
    after = replace(method.merge(now, seen, plan.merging(rng.at("round", state.round))), round=state.round + 1)
    return Played(sent, seen, after)


def rows(
    made: build.Job,
    cohort: Sequence[int] | None = None,
    state: State | None = None,
    federation: Simulator | None = None,
    rng: Stream = RNG,
    field: str = "update",
) -> Tensor:
    """Return one field of what leaves the clients of a cohort in the last phase, weighed as in a sum."""
    federation = federation or federation_of(made, rng=rng)
    state = loop.begin(made) if state is None else state
    ids = list(range(made.federation.facts.population)) if cohort is None else list(cohort)
    message = federation.ask(made.method.phases[-1], state, ids)
    return Message({field: message[field]}, message.weight, heavy=message.heavy).weighed()[field]


# --- parts of a round, with messages and updates of our choice


def declared(method: Method, plan: Plan, state: State, phase: str = "") -> tuple[Release, ...]:
    """Return the releases of one phase of the round that begins with this state, the last one unless said."""
    phase = phase or method.phases[-1]
    return tuple(r for r in pricing.declared(method, plan, state.round, state) if r.phase == phase)


def arrived(method: Method, plan: Plan, state: State, sent: Message, rng: Stream = RNG, phase: str = "") -> Message:
    """Return what the server may use of a message: carried, and with the noise of a trusted server."""
    here, phase = rng.at("round", state.round), phase or method.phases[-1]
    releases, carried = declared(method, plan, state, phase), plan.channel.carry(sent, here.at("channel", phase))
    late, dtype = plan.stragglers.late > 0, state.params.dtype
    return received(carried, releases, state.round, here, rng, late, dtype)


def merged(method: Method, plan: Plan, state: State, sent: Message, rng: Stream = RNG) -> State:
    """Return the state that a message of our choice leads to."""
    return method.merge(state, arrived(method, plan, state, sent, rng), plan.merging(rng.at("round", state.round)))


def site_of(method: Method, plan: Plan, state: State, sizes: Sequence[int], rng: Stream = RNG) -> Site:
    """Return clients of these sizes, whose records nobody will look at, with the outlets of the last phase."""
    data, row = Batch(torch.zeros(sum(sizes), 1), torch.zeros(sum(sizes)), tuple(sizes)), rng.rows(range(len(sizes)))
    out = Outlets(declared(method, plan, state), row, state.round, pricing.setting(method, plan).split)
    return Site(data, {}, None, plan, row.at("train"), out, method.phases[-1])  # type: ignore[arg-type]


@dataclass(frozen=True)
class Passed:
    """One use of an outlet."""

    release: Release
    x: Bounded  # what went in, clipped
    ids: Ints
    output: Tensor


class Watched:
    """A witness of what goes through the outlets."""

    def __init__(self) -> None:
        self.uses: list[Passed] = []

    def known(self, release: Release, ids: Ints) -> Tensor | None:
        return None

    def passed(self, release: Release, x: Bounded, ids: Ints, output: Tensor, multiplier: Tensor | None) -> None:
        self.uses.append(Passed(release, x, ids, output))


def let_out(
    made: build.Job,
    cohort: Sequence[int] | None = None,
    state: State | None = None,
    clients: Clients | None = None,
    rng: Stream = RNG,
) -> list[Passed]:
    """Return what goes through the outlets of a cohort's clients in the last phase, use by use."""
    state = loop.begin(made) if state is None else state
    held, seen = made.federation.data if clients is None else clients, Watched()
    ids = np.arange(made.federation.facts.population) if cohort is None else np.asarray(cohort, dtype=np.int64)
    work, stream = Work(made.method, made.model, made.plan), clients_stream(rng, state.round)
    answer(work, Store(), held, CPU, made.method.phases[-1], state, ids, stream, seen)
    return seen.uses
