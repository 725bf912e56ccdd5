"""Canaries that are planted among the records of a run, so that the run itself can be audited.

A canary is a made-up record: random features and a random label. Each is given to one client or left out, by a fair
coin, and whoever can tell from the run which ones were included has measured a part of its epsilon (Steinke, Nasr,
Jagielski 2023, arXiv:2305.08846). They protect and reveal nobody, but the model is trained on them: that is the cost.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sordino.core.errors import SpecError
from sordino.core.rng import Ints, Stream
from sordino.core.types import Batch
from sordino.data.clients import ArrayClients
from sordino.spec.spec import Spec

MOST, SHARE = 1000, 0.02  # canaries: at most this many, and at most this share of the records
LEAST = 20  # fewer say nothing


@dataclass(frozen=True)
class Planted:
    """The canaries of a run; which of them are included is known to the auditor alone."""

    x: Tensor  # [canaries, ...]
    y: Tensor  # [canaries]
    clients: Ints  # [canaries]: the client that holds each, if it is included
    included: NDArray[np.bool_]  # [canaries]

    def batch(self) -> Batch:
        """Return all canaries, ordered by client."""
        at, (_, counts) = torch.from_numpy(self.order), np.unique(self.clients, return_counts=True)
        return Batch(self.x[at], self.y[at], tuple(counts.tolist()))

    def note(self) -> str:
        """Return what whoever starts the run should know of them."""
        return (
            f"{len(self.y)} canaries with random features and labels were made for the audit, and by fair coins about "
            "half of them are among the clients' records, which costs a little accuracy"
        )

    @property
    def order(self) -> Ints:
        """Return the places of the canaries in the order of `batch`."""
        return np.argsort(self.clients, kind="stable")


def plant(spec: Spec, clients: ArrayClients, outputs: int) -> tuple[ArrayClients, Planted]:
    """Return the clients with canaries among their records, and the canaries.

    Args:
        spec: the spec of the run.
        clients: the clients without them.
        outputs: the number of labels.
    """
    unit = spec.unit or spec.method_object().units[0]
    if unit != "record":
        raise SpecError(f"audit = true plants single records, but this run protects a {unit}: use `sordino audit`.")
    if not clients.x.is_floating_point() or clients.y.is_floating_point() or clients.y.ndim > 1 or outputs < 2:
        raise SpecError("audit = true plants records with decimal features and one label: use `sordino audit` here.")
    number = min(MOST, int(SHARE * len(clients.y)))
    if number < LEAST:
        raise SpecError(f"audit = true needs at least {int(LEAST / SHARE)} records, not {len(clients.y)}.")
    rng = Stream.research(spec.seed or 0).at("canaries")
    draw = torch.Generator().manual_seed(rng.integer())
    x = torch.randn(number, *clients.x.shape[1:], generator=draw).to(clients.x.dtype)
    y = torch.randint(outputs, (number,), generator=draw).to(clients.y.dtype)
    coins = rng.at("coins").uniform(number) < 0.5
    planted = Planted(x, y, np.arange(number) % clients.count, coins)
    return _with(clients, planted), planted


def _with(clients: ArrayClients, planted: Planted) -> ArrayClients:
    """Return the clients with the included canaries behind their own records."""
    x, y = torch.cat([clients.x, planted.x.to(clients.x.device)]), torch.cat([clients.y, planted.y])
    first, inside = len(clients.y), np.flatnonzero(planted.included)
    parts = []
    for client in range(clients.count):
        own = np.arange(clients.starts[client], clients.starts[client + 1])
        parts.append(np.concatenate([own, first + inside[planted.clients[inside] == client]]))
    tags = None if clients.tags is None else torch.cat([clients.tags, clients.tags.new_zeros(len(planted.y))])
    return ArrayClients.split(x, y, parts, tags=tags)
