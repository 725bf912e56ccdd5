"""What is released once, beside the rounds: private statistics, and evaluations on held-out records.

Both are small methods of their own: they declare a release, compute inside the clients and let the value out through an
outlet, so that they are priced, noised and counted as everything else is."""

from __future__ import annotations

from dataclasses import replace

from sordino.algorithms.fedavg import FedAvg
from sordino.channels.direct import Direct
from sordino.contract.method import Method
from sordino.contract.outlets import received
from sordino.contract.plan import Plan
from sordino.contract.pricing import declared
from sordino.core.message import Message
from sordino.core.rng import Stream
from sordino.core.types import Model, State
from sordino.federations.base import Federation, Work


def released(
    federation: Federation, method: Method, model: Model, plan: Plan, state: State, rng: Stream, part: str = ""
) -> Message:
    """Return the sum over all clients of what such a method lets out, with its noise."""
    plain = replace(plan, algorithm=FedAvg(), channel=Direct(), multipliers=())
    sent = federation.once(Work(method, model, plain), state, part, rng)
    return received(sent, declared(method, plain, state.round, state), state.round, rng, rng).total()
