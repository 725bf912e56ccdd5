"""Evaluation on records that clients hold out; the figures are noisy and charged like every other release.

- validation: a fraction of every client's records or, with unit = user, of the users with all their records at any
  client. If noise is added inside the clients, each adds it to its own sum; a trusted server adds it to the sum over
  all clients.
- tuning: a fraction of the training data that no client trains on, held by one party, for choosing settings.

A figure is the mean over units of a value in [0, 1] (accuracy; for regression the absolute error, at most 1), or comes
from counts by class (measures/measure.py). One unit changes the sum of one party by at most 1, so each evaluation is
one Gaussian release; measures/settings.py decides how much noise it has, and which units are on one side of the split
only.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from torch import Tensor

from sordino.contract import pricing
from sordino.contract.method import Method, Plan
from sordino.core.errors import SpecError
from sordino.core.rng import Ints, Stream
from sordino.core.types import Batch
from sordino.data import splits
from sordino.data.clients import ArrayClients
from sordino.federations.simulator import ClientPart
from sordino.measures import settings
from sordino.measures.feature_moments import planned
from sordino.measures.figure import Figure
from sordino.measures.row_moments import RowNoise
from sordino.measures.settings import Evaluation
from sordino.privacy import derive, price
from sordino.privacy.algebra import gdp_mu_squared
from sordino.privacy.events import Composed, Event, NonPrivate, Repeated
from sordino.spec.spec import Spec

HELD_OUT = "held out"  # the part of the clients' data that no round touches


@dataclass(frozen=True)
class Held:
    """The public facts about held-out records, which the server knows."""

    kind: str  # validation or tuning
    units: int
    holders: int  # parties that add noise


@dataclass(frozen=True)
class HeldOut:
    """Held-out records; they stay where the clients' data are."""

    kind: str  # validation or tuning
    x: Tensor
    y: Tensor
    holder: Ints  # [records]: the client that adds the noise for a record; all 0 if one party holds all
    unit: Ints  # [records]: the unit whose value a record contributes to, from 0

    @property
    def facts(self) -> Held:
        """The public facts about these records."""
        return Held(self.kind, *counts(self))

    def part(self) -> ClientPart:
        """Return the records grouped by the party that adds the noise to their sum; those of a unit are adjacent."""
        order = np.lexsort((self.unit, self.holder))
        holder = self.holder[order]
        parties = np.unique(holder)
        parts = [order[holder == party] for party in parties]
        return ClientPart(ArrayClients.split(self.x, self.y, parts, users=self.unit), parties)


def split(spec: Spec, method: Method, clients: Any, wanted: Evaluation) -> tuple[Any, HeldOut | None, Ints]:
    """Hold out records for validation and tuning.

    A client whose users are all held out is removed; that depends only on the users that are trained on.

    Returns:
        The clients without the records that are held out, the held-out records to evaluate on (None: no evaluation on
        held-out records), and the numbers of the clients that remain.
    """
    everyone = np.arange(clients.count)
    shares = {"tuning": spec.tuning, "validation": wanted.validation}
    if not any(shares.values()):
        return clients, None, everyone
    if not isinstance(clients, ArrayClients):
        raise SpecError("validation and tuning need clients whose records are in memory.")
    unit, rng = spec.unit or method.units[0], Stream.research(spec.seed or 0).at("held out")
    if spec.tuning and unit != "record" and method.private:
        raise SpecError(f"tuning holds out single records; with unit = {unit} use validation.")
    held_out = None
    for kind, share in shares.items():
        if not share:
            continue
        parts = [np.arange(a, b) for a, b in pairwise(clients.starts)]
        if unit == "user" and clients.users is not None:
            training, out = splits.whole_users(parts, clients.users, share, rng.at(kind))
        else:
            training, out = splits.validation(parts, share, rng.at(kind))
        many = sum(map(len, out))
        if not many or not sum(map(len, training)):
            if wanted.on == kind and not wanted.chosen and spec.validation is None:
                return clients, None, everyone  # too few records to hold any out by default
            which, other = ("every", "smaller") if many else ("no", "larger")
            raise SpecError(f"{kind} = {share} holds out {which} record. Use a {other} share.")
        if wanted.on == kind:
            held_out = _held(kind, clients, out, unit, method)
        left = np.flatnonzero([len(part) for part in training])
        everyone = everyone[left]
        training = [training[i] for i in left]
        clients = ArrayClients.split(clients.x, clients.y, training, users=clients.users, tags=clients.tags)
    return clients, held_out, everyone


def tuning_part(spec: Spec, clients: ArrayClients) -> ArrayClients:
    """Return clients with exactly the records that `split` holds out for `tuning`; those without any are left out."""
    parts = [np.arange(a, b) for a, b in pairwise(clients.starts)]
    rng = Stream.research(spec.seed or 0).at("held out")
    out = [part for part in splits.validation(parts, spec.tuning, rng.at("tuning"))[1] if len(part)]
    if not out:
        raise SpecError(f"{spec.tuning} of the records is not a single one. Use a larger share.")
    return ArrayClients.split(clients.x, clients.y, out, users=clients.users, tags=clients.tags)


def _held(kind: str, clients: ArrayClients, out: list[Ints], unit: str, method: Method) -> HeldOut:
    index = np.concatenate(out)
    owner = np.repeat(np.arange(len(out)), [len(o) for o in out])
    central = method.viewer == "public"  # the noise is added to the sum over all clients
    if unit == "client":
        of = owner
    elif unit == "user" and clients.users is not None:
        pairs = np.stack([owner, clients.users[index]])  # a user at two clients counts as two
        of = np.unique(pairs, axis=1, return_inverse=True)[1].reshape(-1)
    else:
        of = np.arange(len(index))
    holder = np.zeros_like(owner) if kind == "tuning" or central else owner
    return HeldOut(kind, clients.x[index], clients.y[index], holder, np.unique(of, return_inverse=True)[1])


def public(spec: Spec, clients: Any) -> tuple[Any, Batch | None]:
    """Take the server's records (`server_data`), which count as public, out of the clients' data.

    Returns:
        The clients without these records, and the records (None: the server holds none).
    """
    if not spec.server_data:
        return clients, None
    if not isinstance(clients, ArrayClients):
        raise SpecError("server_data needs clients whose records are in memory.")
    parts = [np.arange(a, b) for a, b in pairwise(clients.starts)]
    training, out = splits.validation(parts, spec.server_data, Stream.research(spec.seed or 0).at("server data"))
    index = np.concatenate(out)
    if not len(index):
        raise SpecError(f"server_data = {spec.server_data} gives the server no record at all. Use a larger share.")
    left = ArrayClients.split(clients.x, clients.y, training, users=clients.users, tags=clients.tags)
    return left, Batch(clients.x[index], clients.y[index], (len(index),))


def releases(
    spec: Spec,
    method: Method,
    plan: Plan,
    wanted: Evaluation,
    held: HeldOut | None,
    features: int,
    rows: RowNoise | None = None,
) -> tuple[Evaluation, tuple[Event, ...], tuple[Event, ...]]:
    """Return the evaluation with its noise, and the events released outside the rounds.

    The events are for the unit of the method, against the viewer of the budget.

    Returns:
        The evaluation; the events on the data of the rounds; the events on data that no round touches.
    """
    if not method.private:
        if wanted.held_out and held is None:
            return settings.refused(wanted, "there are too few records to hold any out"), (), ()
        exact = NonPrivate("statistics and evaluations on clients' records are released without noise")
        events = (exact,) if wanted.held_out or spec.standardise or rows is not None else ()
        if not wanted.held_out:
            return wanted, events, ()
        return replace(wanted, text="evaluation on held-out records, without noise"), events, ()
    cost = price.cost_to(spec.viewer or method.viewer, pricing.planned(method, replace(plan, noise_multiplier=1.0)))

    def event(beside: Method) -> Event:
        return derive.once(beside.releases(plan), cost.relation, cost.copies, cost.draw == "changed")

    once: tuple[Event, ...] = ()
    if spec.standardise:
        once = (event(planned(spec, method, features)),)
    if rows is not None:
        once = tuple(event(release) for release in rows.every(features))
    evaluation = settings.settled(wanted, spec, method, cost, counts(held), gdp_mu_squared(Composed(once)) or 0.0)
    if not evaluation.held_out or evaluation.noise is None or held is None:
        return evaluation, once, ()
    central = method.viewer == "public"
    figures = Repeated(event(Figure(cost.unit, evaluation.noise, evaluation.measure, central)), evaluation.times)
    return (evaluation, once, (figures,)) if evaluation.apart else (evaluation, (*once, figures), ())


def counts(held: HeldOut | None) -> tuple[int, int]:
    """Return the number of units that are held out and the number of parties that add noise."""
    return (0, 0) if held is None else (int(held.unit.max()) + 1, len(np.unique(held.holder)))


def deviation(held: Held, z: float) -> float:
    """Return the standard deviation of the noise in a figure with noise multiplier `z`."""
    return z * math.sqrt(held.holders) / held.units
