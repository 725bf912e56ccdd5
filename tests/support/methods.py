"""Two ways into a method that tests share: `play` a round of it, and `price` it; nothing else calls its verbs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from sordino.core.message import Message
from sordino.core.rng import Stream
from sordino.core.types import Clients, Model, State
from sordino.federations.base import Work
from sordino.federations.simulator import Simulator
from sordino.methods import pricing
from sordino.methods.base import Method, Plan
from sordino.methods.outlets import received
from sordino.privacy.events import Cost
from sordino.runs import build, loop

CPU = torch.device("cpu")
RNG = Stream.research(11)


def price(method: Method, plan: Plan, round: int = 0, state: State | None = None) -> tuple[Cost, ...]:
    """Return what one participation in a round costs, by viewer."""
    return pricing.costs(method, plan, round, state)


def whole(method: Method, plan: Plan) -> tuple[Cost, ...] | None:
    """Return what the run costs as a whole, where that is one price."""
    return pricing.whole(method, plan)


@dataclass(frozen=True)
class Played:
    sent: Message  # what left the clients in the last phase
    seen: Message  # what the server may use
    after: State  # the state after the round


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
    here, now = rng.at("round", state.round), state
    for phase in method.phases:
        sent = federation.ask(phase, now, ids)
        releases = [r for r in pricing.declared(method, plan, now.round, now) if r.phase == phase]
        arrived = plan.channel.carry(sent, here.at("channel", phase))
        seen = received(arrived, releases, now.round, here, rng, late=plan.stragglers.late > 0)
        now = method.between(phase, now, seen, plan) if phase != method.phases[-1] else now
    after = replace(method.merge(now, seen, plan.merging(here)), round=state.round + 1)
    return Played(sent, seen, after)


def rows(
    made: build.Job,
    cohort: Sequence[int] | None = None,
    state: State | None = None,
    federation: Simulator | None = None,
    rng: Stream = RNG,
    field: str = "update",
) -> torch.Tensor:
    """Return one field of what leaves the clients of a cohort in the last phase, weighed as in a sum."""
    federation = federation or federation_of(made, rng=rng)
    state = loop.begin(made) if state is None else state
    ids = list(range(made.federation.facts.population)) if cohort is None else list(cohort)
    message = federation.ask(made.method.phases[-1], state, ids)
    return Message({field: message[field]}, message.weight).weighed()[field]
