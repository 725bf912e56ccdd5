"""Evaluation on records that clients hold out: what it shows of them is noisy and charged like everything else.

- validation: a share of every client's records. With noise inside the clients each adds it to its own sum; with a
  trusted server the sum of the clients' means is noised there.
- tuning: a share of the training data that no client trains on, held by one party, to choose settings on.

A figure is the mean over units of a value in [0, 1] (accuracy; for regression the absolute error, at most 1). One unit
moves the sum by at most 1, so each evaluation is one Gaussian release with multiplier `release_noise`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sordino.core.errors import SpecError
from sordino.core.rng import Ints, Stream
from sordino.core.types import Batch
from sordino.data import splits
from sordino.data.clients import ArrayClients
from sordino.methods.base import Method, Plan
from sordino.models.losses import accuracy
from sordino.privacy import price
from sordino.privacy.events import Event, Gaussian, NonPrivate, Repeated
from sordino.runs.spec import Spec

RECORDS = 2000  # evaluated at once


@dataclass(frozen=True)
class HeldOut:
    kind: str  # validation or tuning
    x: Tensor
    y: Tensor
    holder: Ints  # [records]: the client that adds the noise to its part; all 0 where one party holds all
    unit: Ints  # [records]: whose value a record is part of; counted from 0


def split(spec: Spec, method: Method, clients: Any) -> tuple[Any, HeldOut | None]:
    """Clients without the records that are held out, and those of them that are evaluated on."""
    if not spec.validation and not spec.tuning:
        return clients, None
    if not isinstance(clients, ArrayClients):
        raise SpecError("validation and tuning need clients whose records are in memory.")
    unit, rng = spec.unit or method.units[0], Stream.research(spec.seed or 0).at("held out")
    if spec.tuning and unit != "record" and method.private:
        raise SpecError(f"tuning holds out single records; with unit = {unit} use validation.")
    found = None
    for kind in ("tuning", "validation"):
        share = getattr(spec, kind)
        if share:
            parts = [np.arange(a, b) for a, b in pairwise(clients.starts)]
            kept, out = splits.validation(parts, share, rng.at(kind))
            if not sum(map(len, out)):
                raise SpecError(f"{kind} = {share} holds out no record at all. Use a larger share.")
            if spec.evaluate_on == kind:
                found = _held(kind, clients, out, unit, spec, method)
            clients = ArrayClients.split(clients.x, clients.y, kept, users=clients.users, tags=clients.tags)
    return clients, found


def _held(kind: str, clients: ArrayClients, out: list[Ints], unit: str, spec: Spec, method: Method) -> HeldOut:
    index = np.concatenate(out)
    owner = np.repeat(np.arange(len(out)), [len(o) for o in out])
    central = method.viewer == "public"  # what is noised is the sum of the clients' means
    if unit == "client" or (unit == "user" and central):
        of = owner
    elif unit == "user" and clients.users is not None:
        pairs = np.stack([owner, clients.users[index]])  # a user in two clients is two
        of = np.unique(pairs, axis=1, return_inverse=True)[1].reshape(-1)
    else:
        of = np.arange(len(index))
    holder = np.zeros_like(owner) if kind == "tuning" or central else owner
    return HeldOut(kind, clients.x[index], clients.y[index], holder, np.unique(of, return_inverse=True)[1])


def public(spec: Spec, clients: Any) -> tuple[Any, Batch | None]:
    """Clients without the records that the server holds, and those; they count as public."""
    if not spec.server_data:
        return clients, None
    if not isinstance(clients, ArrayClients):
        raise SpecError("server_data needs clients whose records are in memory.")
    parts = [np.arange(a, b) for a, b in pairwise(clients.starts)]
    kept, out = splits.validation(parts, spec.server_data, Stream.research(spec.seed or 0).at("server data"))
    index = np.concatenate(out)
    if not len(index):
        raise SpecError(f"server_data = {spec.server_data} gives the server no record at all. Use a larger share.")
    left = ArrayClients.split(clients.x, clients.y, kept, users=clients.users, tags=clients.tags)
    return left, Batch(clients.x[index], clients.y[index], (len(index),))


def evaluations(spec: Spec) -> int:
    """How many there are in a run."""
    return spec.rounds // spec.evaluate_every + (spec.rounds % spec.evaluate_every > 0)


def events(spec: Spec, method: Method, plan: Plan) -> tuple[Event, ...]:
    """What is released beside the rounds, for the unit of the method."""
    if not method.private:
        exact = spec.evaluate_on != "test" or spec.standardise
        return (NonPrivate("statistics and evaluations on clients' records are exact"),) if exact else ()
    cost = price.cost_to(spec.viewer or method.viewer, method.costs(replace(plan, noise_multiplier=1.0)))
    z = spec.release_noise
    found: list[Event] = []
    central = method.viewer == "public"

    def release(z: float) -> Event:  # one party's noise covers all copies of a unit at once, else each pays
        return Gaussian(z / cost.copies) if central else Repeated(Gaussian(z), cost.copies)

    if spec.evaluate_on != "test":
        found.append(Repeated(release(z), evaluations(spec)))
    if spec.standardise:  # coordinates in [-1, 1]: replacing a unit moves the sum by twice what adding one does
        found.append(release(z / 2 if cost.relation == "replace" or cost.draw == "changed" else z))
    return tuple(found)


def deviation(held: HeldOut, z: float) -> float:
    """Of the noise in a figure."""
    return z * math.sqrt(len(np.unique(held.holder))) / (int(held.unit.max()) + 1)


def evaluate(held: HeldOut, module: nn.Module, regression: bool, z: float | None, rng: Stream) -> dict[str, Any]:
    """The mean over units, noisy unless z is None."""
    device = next(module.parameters()).device
    values = []
    with torch.inference_mode():
        for x, y in zip(held.x.split(RECORDS), held.y.split(RECORDS), strict=True):
            out, y = module(x.to(device)), y.to(device)
            if regression:
                error = (out.reshape(len(y), -1) - y.reshape(len(y), -1)).abs().mean(dim=1)
                values.append(torch.nan_to_num(error, nan=1.0).clamp(0, 1).cpu().double().numpy())
            else:
                values.append(accuracy(out, y).cpu().double().numpy())
    units = int(held.unit.max()) + 1
    means = np.bincount(held.unit, np.concatenate(values), units) / np.bincount(held.unit, minlength=units)
    holder = np.zeros(units, np.int64)
    holder[held.unit] = held.holder
    holders = np.unique(holder)
    total = float(means.sum())
    if z is not None:
        noise = rng.rows(holders).normal(1, like=torch.zeros((), dtype=torch.float64))
        total += z * float(noise.sum())
    name, where = "mae" if regression else "accuracy", f"{held.kind} records"
    noisy = "" if z is None else f", with noise of deviation {deviation(held, z):.2g}"
    return {name: total / units, "evaluated_on": where + noisy}
