"""Jobs of the sound FedSDP and their rounds, which its tests share."""

from __future__ import annotations

import numpy as np
import torch

from problems import federation, job
from sordino.core.rng import Stream
from sordino.core.types import State
from sordino.data.clients import adopt
from sordino.engines.simulator import Simulator
from sordino.runs.prepare import with_tags

CPU = torch.device("cpu")
RNG = Stream.research(8)
SIZES = (12, 5, 9, 7)


def tagged(pairs, groups=1, seed=0):
    held = adopt(pairs)
    draw = np.random.default_rng(seed)
    return with_tags(held, [draw.integers(0, groups + 1, n) for n in held.all_sizes().tolist()])


def made(groups=1, clients=None, **keys):
    return job(method="fedsdp", clients=clients or tagged(federation(SIZES), groups), groups=groups, **keys)


def at(round, ratio=0.5, merged=None, **extra):
    """A state as the server has it before a round."""
    numbers = {"ratio": float(ratio), "merged": float(round if merged is None else merged)}
    return State(torch.zeros(1), {k: torch.tensor(v, dtype=torch.float64) for k, v in (numbers | extra).items()}, round)


def sent(here, clients, states, engine=None):
    engine = engine or Simulator(CPU)
    who = range(clients.count)
    return [
        engine.clients(here.method, s, who, clients, here.model, here.plan, RNG.at("round", s.round)) for s in states
    ]


def played(here, state, round):
    rows = sent(here, here.clients, [state], here.engine)[0]
    return here.method.merge(state, rows, here.plan, RNG.at("merge", round))


def message(sums, std, here, draw):
    """A refresh round's rows of one client with these group sums."""
    noisy = sums + std * torch.randn(sums.shape, generator=draw)
    told = torch.tensor([1.0, 1.0, 0.1, 0.9, std])
    return torch.cat([torch.zeros(sums.shape[1]), noisy.flatten(), told])[None]
