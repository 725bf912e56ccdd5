"""Rehearsal of a job before its run, with a small plan, the model on the CPU and synthetic records of the right shape.

Only public facts about the clients' records are used: the shape and dtype of one. There are as many labels as the model
has outputs, and as many tags as the method has groups. The plays and their laws are in federations/rehearsal.py."""

from __future__ import annotations

import contextlib
import copy
from dataclasses import replace

import torch

from sordino.contract import pricing
from sordino.contract.method import Method, Plan, Public, Release
from sordino.contract.presence import Stragglers
from sordino.core import plugin
from sordino.core.errors import SpecError
from sordino.core.types import Batch, Model
from sordino.federations.base import Work
from sordino.federations.rehearsal import Cast, Rehearsal
from sordino.gradients.engine import CohortGradients
from sordino.privacy import derive
from sordino.privacy.events import NonPrivate
from sordino.runs import returned
from sordino.runs.job import Job
from sordino.runs.made_up import MadeUp

CLIENTS, RECORDS, USERS = 4, 3, (1, 2)  # synthetic clients; records per client; records of each user of a client
STEPS, RATE = 2, 0.75  # most local steps, enough to show a second use; sampling rate of records if batches are drawn
LARGE = 100.0  # factor by which the unit that is replaced is larger


def rehearse(job: Job) -> None:
    """Raise an error if values leave a method other than through an outlet; called before any folder or charge exists.

    A method without a finite guarantee has nothing to violate. If it, or its channel, is third-party code, two rounds
    are played nevertheless, to check the shapes of what it returns.
    """
    releases = returned.checked(job).releases(job.plan)
    promises = promising(releases)
    if promises or not (plugin.ours("methods", job.spec.method) and plugin.ours("channels", job.spec.channel)):
        prepared(job).run(laws=promises)


def prepared(job: Job, records: int = RECORDS, scale: float = LARGE, full: bool = False) -> Rehearsal:
    """Return the rehearsal of a job: its method with synthetic clients.

    Args:
        job: the job.
        records: the number of records of a client, where these are counted.
        scale: factor by which the unit that is replaced is larger.
        full: let every batch hold all records, even if the plan samples them.
    """
    method, plan = returned.checked(job), job.plan
    model = job.model if job.device.type == "cpu" else on_cpu(job.model)
    made_up = MadeUp.like(job.federation.facts, model, getattr(method, "groups", None))
    by_user = plan.unit == "user" and method.viewer == "server"  # sizes then count users
    plan = small(plan, len(USERS) if by_user else min(records, plan.sizes[-1]))
    if full:
        plan = replace(plan, local=replace(plan.local, batch_rate=1.0))
    if plan.public is not None:
        plan = replace(plan, public=Public(model, made_up.draw((RECORDS,), None, 4)))
    return Rehearsal(job.spec.method, Work(method, model, plan), cast_of(made_up, method, plan, scale))


def promising(releases: tuple[Release, ...]) -> bool:
    """Return whether all releases have a finite cost."""
    return not any(isinstance(r.mechanism.event(), NonPrivate) for r in releases)


def on_cpu(model: Model) -> Model:
    """Return a copy of a model whose gradients are computed on the CPU."""
    module = copy.deepcopy(model.module).cpu()
    return Model(module, model.layout, model.loss, CohortGradients.of(module, model.loss, model.layout))


def small(plan: Plan, size: int) -> Plan:
    """Return the plan of a rehearsal: few records, few steps, at least two rounds, and all clients answer in time.

    If the plan samples records, the rehearsal samples too, at the rate RATE; personal noise multipliers are kept.

    Args:
        plan: the plan of the run.
        size: the size of a client: its number of records, or of users if these are what the plan counts.
    """
    local, least = plan.local, max(CLIENTS, plan.population)
    full = all(local.rate(n) >= 1 for n in plan.sizes)
    steps = _few(plan, max(local.count(n) for n in plan.sizes))
    multipliers = plan.multipliers
    return replace(
        plan,
        rounds=max(2, plan.rounds),
        max_participations=None if plan.max_participations is None else max(2, plan.max_participations),
        population=least,
        multipliers=tuple(multipliers[k % len(multipliers)] for k in range(least)) if multipliers else (),
        local=replace(local, steps=steps, epochs=None, batch_size=None, batch_rate=1.0 if full else RATE),
        sizes=(size - 1, size) if uneven(plan, size) else (size,),
        mean_client=size - 1 / CLIENTS if uneven(plan, size) else float(size),
        mean_steps=float(steps),
        stragglers=Stragglers(),
    )


def uneven(plan: Plan, size: int) -> bool:
    """Return whether one synthetic client has one record less: if sizes differ in the plan and count records."""
    return len(plan.sizes) > 1 and size > 1 and plan.unit != "user"


def _few(plan: Plan, most: int) -> int:
    """Return the smallest number of local steps, from two on, that the algorithm accepts; at most `most`."""
    for steps in range(min(STEPS, most), most):
        with contextlib.suppress(SpecError):
            plan.algorithm.check_steps(steps)
            return steps
    return most


def cast_of(made_up: MadeUp, method: Method, plan: Plan, scale: float = LARGE) -> Cast:
    """Return the synthetic clients of all three plays.

    In the third, one unit is replaced (for users, up to two copies at different clients), and one is removed if the
    neighbouring relation of the cost is add/remove.
    """
    ids = (*range(CLIENTS - 1), plan.population - 1)
    releases = method.releases(plan)
    unit, at_clients = releases[0].unit, all(r.where == "client" for r in releases)
    copies = min(2, plan.clients_per_user) if unit == "user" else 1
    removes = derive.relation(releases, pricing.setting(method, plan)) == "add/remove"
    removed = ids[copies : copies + 1] if removes and at_clients and unit != "client" else ()
    groups = USERS if plan.unit == "user" or made_up.users else None
    size = sum(USERS) if groups else plan.sizes[-1]
    sizes = (size,) * (CLIENTS - 1) + (size - 1 if len(plan.sizes) > 1 and not groups else size,)
    last = {"client": size, "user": USERS[-1]}.get(unit, 1)  # records of the unit: the last ones of a client
    first = made_up.draw(sizes, groups, 1)
    other = made_up.opposite(first, 2)
    strange = made_up.draw(sizes, groups, 3, scale)
    x, y = first.x.clone(), first.y.clone()
    for k in range(copies):
        rows = slice((k + 1) * size - last, (k + 1) * size)
        x[rows], y[rows] = strange.x[rows], strange.y[rows]
    changed = replace(first, x=x, y=y)
    if removed:
        changed = without(changed, copies, last)
    return Cast(ids, first, other, changed, frozenset(ids[:copies]), frozenset(removed))


def without(batch: Batch, client: int, last: int) -> Batch:
    """Return the batch without the last `last` records of a client, which belong to one unit."""
    end = sum(batch.sizes[: client + 1])
    keep = torch.tensor([not end - last <= k < end for k in range(len(batch.y))])
    groups = batch.groups
    if groups is not None:
        groups = (*groups[:client], groups[client][:-1], *groups[client + 1 :])
    return replace(batch.where(keep), groups=groups)
