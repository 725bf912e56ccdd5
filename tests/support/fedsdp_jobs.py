"""Jobs of the sound FedSDP and their rounds, which its tests share."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from sordino.core.message import Message
from sordino.core.types import State
from sordino.core.vector import Layout
from sordino.data.clients import adopt
from sordino.methods.fedsdp.method import UNITS, FedSdp
from sordino.runs import loop
from sordino.runs.prepare import with_tags
from support.methods import federation_of, play
from support.problems import federation, job

SIZES = (12, 5, 9, 7)


def tagged(pairs, groups=1, seed=0):
    held = adopt(pairs)
    draw = np.random.default_rng(seed)
    return with_tags(held, [draw.integers(0, groups + 1, n) for n in held.all_sizes().tolist()])


def made(groups=1, clients=None, **keys):
    return job(method="fedsdp", clients=clients or tagged(federation(SIZES), groups), groups=groups, **keys)


def at(round, ratio=0.5, merged=None):
    """A state as the server has it before a round."""
    start = FedSdp().variables(State(torch.zeros(1)), Layout(()), None)
    return knowing(State(torch.zeros(1), round, start), ratio=ratio, merged=round if merged is None else merged)


def knowing(state, **known):
    """The state with other numbers among what the method knows."""
    return replace(state, method=replace(state.method, **known))


def sent(here, states, clients=None, federation=None):
    """What all clients send in these states, one after the other."""
    federation = federation or federation_of(here, clients=clients)
    return [federation.ask("train", s, range(here.plan.population)) for s in states]


def budgets(federation, clients=4):
    """What the clients keep: units spent, participations, lost rounds."""
    return federation.store.read("budget", range(clients), torch.zeros(clients, 3, dtype=torch.int64))


def rounds_of(here, number, federation=None):
    """The states of some rounds with all clients, the first one included, and what the clients sent."""
    federation, states, messages = federation or federation_of(here), [loop.begin(here)], []
    for _ in range(number):
        played = play(here, state=states[-1], federation=federation)
        states.append(played.after)
        messages.append(played.sent)
    return states, messages


def message(sums, std, here, draw):
    """A refresh round's message of one client with these group sums."""
    noisy = sums + std * torch.randn(sums.shape, generator=draw)
    spent = torch.tensor([UNITS // 10])
    fields = {"update": torch.zeros(1, sums.shape[1]), "groups": noisy[None], "spent": spent, "left": UNITS - spent}
    return Message(fields | {"std": torch.tensor([std], dtype=torch.float64)}, ids=np.array([0]))
