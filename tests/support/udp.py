"""What the tests of UDP-FL share: several rounds of a job, and what its clients keep."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from sordino.core.message import Message
from sordino.core.rng import Stream
from sordino.core.types import Batch, Clients, State
from sordino.federations.simulator import Simulator
from sordino.runs import build, loop
from support.methods import CPU, federation_of, play
from support.problems import CLASSES, FEATURES, job

RNG = Stream.research(4)
FILTER = "filter"  # what clients keep of their budgets where multipliers are managed


def budgeted(**keys: Any) -> build.Job:
    """Return a job in which half of the clients have a budget of 0.5 and half one of 4."""
    return job(nn.Linear(FEATURES, CLASSES), method="udp-fl", budgets="0.5:0.5,4:0.5", epsilon=4.0, **keys)


def held(made: build.Job) -> Clients:
    """Return the clients of a job."""
    return made.federation.data


def records(made: build.Job, ids: Sequence[int]) -> Batch:
    return held(made).fetch(ids, CPU)


def rounds_of(
    made: build.Job,
    rounds: int = 1,
    cohorts: Sequence[Sequence[int]] | None = None,
    federation: Simulator | None = None,
    rng: Stream = RNG,
) -> tuple[list[State], list[Message], Simulator]:
    """Return the states of some rounds, the first one included, what was sent in each, and who ran the clients."""
    federation = federation or federation_of(made, rng=rng)
    states: list[State] = [loop.begin(made)]
    sent: list[Message] = []
    for r in range(rounds):
        done = play(made, None if cohorts is None else cohorts[r], states[-1], federation, rng)
        states.append(done.after)
        sent.append(done.sent)
    return states, sent, federation


def spent(federation: Simulator, filters: Sequence[Sequence[int]]) -> Simulator:
    """Let clients 0, 1, ... have such histories of managed budgets: units, participations, lost rounds."""
    federation.store.write(FILTER, range(len(filters)), torch.tensor(filters, dtype=torch.int64))
    return federation


def filters(federation: Simulator, clients: int) -> Tensor:
    """Return what clients keep of their budgets [clients, 3]."""
    return federation.store.read(FILTER, range(clients), torch.zeros(clients, 3, dtype=torch.int64))
