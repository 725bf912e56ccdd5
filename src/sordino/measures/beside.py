"""Releases outside the training rounds: private statistics, and evaluations on held-out records.

Both are small methods in their own right: they declare a release, compute inside the clients and send the value through
an outlet, so they are priced, noised and counted like any other release."""

from __future__ import annotations

from dataclasses import replace

from sordino.algorithms.fedavg import FedAvg
from sordino.channels.direct import Direct
from sordino.channels.secure_sum import SecureSum
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
    """Return the noisy sum over all clients of what the method releases.

    Args:
        federation: runs the clients.
        method: the small method, such as `Figure` or `FeatureMoments`.
        model: the model that the clients use.
        plan: the plan of the run; its algorithm and personal noise multipliers are not used. Its channel is used if the
            clients share the noise, of which another client then knows its own share: there is noise for one more.
        state: the state that the clients start from.
        rng: the stream that the clients' noise and the server's noise are drawn from.
        part: the part of the clients' data to use ("" for the training data).
    """
    asked = work(method, model, plan)
    plain = asked.plan
    sent = federation.once(asked, state, part, rng)
    sent = plain.channel.carry(plain.channel.seal(sent, range(plan.population)), rng.at("channel"))
    return received(sent, declared(method, plain, state.round, state), state.round, rng, rng).total()


def work(method: Method, model: Model, plan: Plan) -> Work:
    """Return what the clients are asked to do for a release outside the rounds: see `released`."""
    plain = replace(plan, algorithm=FedAvg(), multipliers=(), colluders=plan.colluders + 1)
    if not method.linear(plain):
        plain = replace(plain, channel=Direct())
    elif isinstance(plan.channel, SecureSum):  # whose modulus may be that of the rounds
        plain = replace(plain, channel=SecureSum())
    return Work(method, model, plain)
