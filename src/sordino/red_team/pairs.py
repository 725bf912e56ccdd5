"""Audits on two datasets that the auditor chooses: whether a viewer can tell which of them a client holds.

Every client holds one of the two datasets and draws noise of its own, so that clients are independent trials. A pair
that the auditor knows to be bad refutes a claim that no canary would: a counterexample, run through the real pipeline.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from sordino.audits.bounds import Floats
from sordino.audits.game import Trials
from sordino.contract.claim import Claim
from sordino.core import check
from sordino.core.errors import SpecError
from sordino.core.message import Message
from sordino.core.rng import Stream
from sordino.core.view import View
from sordino.data.clients import ArrayClients
from sordino.federations.base import Work
from sordino.federations.simulator import Simulator
from sordino.runs import loop, public_facts, returned
from sordino.runs.job import Job

Records = tuple[Tensor, Tensor]  # inputs and targets of one client


def pair_trials(
    job: Job, inside: Records, outside: Records, count: int, seed: int = 0, fields: Sequence[str] = ()
) -> Trials:
    """Return what the server saw of clients that hold one dataset, and of clients that hold the other.

    Args:
        job: a job with an even number of clients, each as large as either dataset, on a channel that shows rows.
        inside: the dataset of one half of the clients.
        outside: the dataset of the other half.
        count: the number of trials of each kind; there are as many as fit into whole runs.
        seed: of the noise; runs have seeds of their own.
        fields: the fields of the messages that are looked at; none: all of them.
    """
    check.count(count=count)
    population = job.plan.population
    if job.plan.channel.name != "direct":
        raise SpecError("clients are independent trials only if the server sees each one's row: use channel = direct.")
    if population % 2 or len(inside[1]) != len(outside[1]):
        raise SpecError("a pair needs an even number of clients, and two datasets of one size.")
    data = clients_of(job, inside, outside)
    one, zero = [], []
    for k in range(math.ceil(count / (population // 2))):
        rows = _seen(job, data, Stream.research(seed * 1_000_003 + k), fields)
        one.append(rows[::2])
        zero.append(rows[1::2])
    return Trials(np.concatenate(one), np.concatenate(zero))


def clients_of(job: Job, inside: Records, outside: Records) -> ArrayClients:
    """Return clients of whom every second one holds the one dataset, and the others the other."""
    half, size = job.plan.population // 2, len(inside[1])
    x, y = (torch.cat([a, b]).repeat(half, *[1] * (a.ndim - 1)) for a, b in zip(inside, outside, strict=True))
    tags = torch.zeros(len(y), dtype=torch.int64) if job.method.tagged else None
    return ArrayClients(x, y, [size] * (2 * half), tags=tags)


def claim_curve(claim: Claim, rounds: int = 1) -> Callable[[float], float]:
    """Return the curve of a paper's claim: its epsilon at its delta and above, nothing below.

    Args:
        claim: what is claimed.
        rounds: the rounds that are played. A claim for one round is added up over them (basic composition), which is
            the most that it can mean.
    """
    check.count(rounds=rounds)
    times = rounds if claim.scope == "round" else 1

    def curve(delta: float) -> float:
        return times * claim.epsilon if delta >= times * claim.delta * (1 - 1e-12) else math.inf

    return curve


def _seen(job: Job, data: ArrayClients, rng: Stream, fields: Sequence[str]) -> Floats:
    """Return what the server saw of every client in one run [clients, numbers]."""
    federation = Simulator(job.device, data, rng, job.spec.memory_gb, Stream.research(0), public_facts.of_clients(data))
    federation.open(Work(returned.checked(job), job.model, job.plan))
    seen: list[Floats] = []

    def look(view: View) -> None:
        if view.viewer == "server" and view.seen is not None:
            seen.append(_rows(view.seen, job.plan.population, fields))

    loop.unpaid(replace(job, federation=federation), rng, [look])
    return np.concatenate(seen, axis=1)


def _rows(message: Message, clients: int, fields: Sequence[str]) -> Floats:
    """Return the numbers of a message by client; those of a client who was not there are zero."""
    chosen = [v.double().reshape(len(v), -1) for k, v in message.fields.items() if not fields or k in fields]
    if not chosen or message.ids is None:
        raise SpecError(f"the server sees no rows of clients with {', '.join(fields) or 'any field'}.")
    wide = torch.cat(chosen, dim=1).cpu().numpy()
    out = np.zeros((clients, wide.shape[1]))
    out[message.ids] = wide
    return out
