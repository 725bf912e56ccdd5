"""One more round of a finished run, in which the server sends a model of its choice and the clients answer honestly.

The clients clip, add noise and send through the channel as in every round of the run. Nobody but the owner, who asks,
sees the answer, so nothing is charged; a server that did this in a run would be within the guarantee against it, which
covers any broadcast.
"""

from __future__ import annotations

from dataclasses import replace

from sordino.core.errors import SpecError
from sordino.core.view import View
from sordino.federations.base import Work
from sordino.federations.simulator import Simulator
from sordino.red_team.active_server import ImprintServer
from sordino.red_team.case import AttackCase, on_device
from sordino.runs import loop, returned


def with_active_server(case: AttackCase) -> AttackCase:
    """Return the case of a server that saw the answers to its chosen model, and nothing else."""
    job, known = case.job, case.knowledge.auxiliary
    if case.viewer != "server":
        raise SpecError(f"--active is for the view of the server, which chooses what it sends; not the {case.viewer}.")
    if known is None:
        raise SpecError("an active server needs auxiliary records to choose a model: ask for fewer --records.")
    method, rng = returned.checked(job), job.rng.at("active server")
    if not isinstance(job.federation, Simulator) or len(method.phases) > 1:
        raise SpecError(f"an active server needs rounds of one phase; {job.spec.method} has more.")
    state = ImprintServer(known.x).chosen(loop.begin(job), job.model)
    usual, job.federation.rng = job.federation.rng, rng  # noise of its own, not that of the first round again
    try:
        job.federation.open(Work(method, job.model, job.plan))
        sent = job.federation.ask(method.phases[0], state, case.clients)
    finally:
        job.federation.rng = usual
    seen = job.plan.channel.carry(sent, rng.at("channel"))
    view = View("server", 1, method.phases[0], state, case.clients, seen)
    return replace(case, views=(on_device(view, job.device),))
