"""The privacy cost of a method under a plan, derived from the releases that the method declares."""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from sordino.contract.exact_noise import swapped
from sordino.contract.method import Method
from sordino.contract.plan import Plan
from sordino.contract.site import units
from sordino.core.errors import RunError, SpecError
from sordino.core.message import Message
from sordino.core.types import Batch, State
from sordino.privacy import derive
from sordino.privacy.events import Cost
from sordino.privacy.geometry import dense_l1
from sordino.privacy.release import Release


def declared(method: Method, plan: Plan, round: int = 0, state: State | None = None) -> tuple[Release, ...]:
    """Return the releases of a round as they are applied: with phases, and with exact noise if the plan asks for it."""
    first, split, releases = method.phases[0], setting(method, plan).split, method.releases(plan, round, state)
    if plan.thresholds and any(r.where == "server" and not r.onto for r in releases):
        raise SpecError(
            "the noise of a trusted server is priced for a secret draw, and a lost round tells how many were drawn: "
            "drop min_cohort and allowed_dropouts."
        )
    # a robust merge looks at single rows, so they are not sent as integers that only add up
    sums = plan.robust.plain
    phased = (replace(r, phase=r.phase or first, additive=r.additive and sums) for r in releases)
    return tuple(swapped(r, plan, split if r.where == "client" else 1) for r in phased)


def setting(method: Method, plan: Plan) -> derive.Setting:
    """Return the public circumstances under which a method's releases are accounted."""
    crowd = plan.crowd if method.by_records else replace(plan.crowd, heaviest=1.0, lightest=1.0)
    # a user with records in several clients moves several rows of a sum; a server that sees rows sees no sum
    one_row = (plan.unit or method.units[0]) != "user" or plan.clients_per_user == 1
    summed = plan.robust.plain and (method.reads == "sums" or not plan.channel.shows_rows)
    linear = one_row and method.linear(plan) and summed
    return derive.Setting(plan.channel, crowd, plan.sampler, plan.clients_per_user, linear)


def check_weights(method: Method, plan: Plan, message: Message, data: Batch) -> None:
    """Raise an error if the weights differ from those for which noise that adds up in a sum was accounted."""
    if message.weight is None or not len(message) or not method.linear(plan):
        return
    priced = torch.tensor(units(data, plan)) / plan.mean_client if method.by_records else torch.ones(1)
    if bool(((message.weight.double().cpu() - priced).abs() > 1e-5 * priced.max()).any()):
        how = "by records, relative to the mean client" if method.by_records else "once each: set by_records otherwise"
        raise RunError(f"the noise in a sum of these rows is priced for rows that count {how}.")


def costs(method: Method, plan: Plan, round: int = 0, state: State | None = None) -> tuple[Cost, ...]:
    """Return the privacy cost of one participation in a round, by viewer.

    If `state` is None, the costs follow from the public plan alone.
    """
    return derive.costs(declared(method, plan, round, state), setting(method, plan))


def run_costs(method: Method, plan: Plan) -> tuple[Cost, ...] | None:
    """Return the cost of the whole run if noise is chosen adaptively or correlated over the rounds, else None.

    The calibrated noise multiplier is then that of the whole run, and the outlets hold every client to it.
    """
    return derive.run_costs(declared(method, plan), setting(method, plan))


def planned(method: Method, plan: Plan, round: int = 0) -> tuple[Cost, ...]:
    """Return the cost accounted in advance: that of the whole run if it has a single cost, else that of the round."""
    return run_costs(method, plan) or costs(method, plan, round)


def correlated(method: Method, plan: Plan) -> bool:
    """Return whether the noise of later rounds depends on that of earlier rounds."""
    return any(getattr(r.mechanism, "correlated", False) for r in method.releases(plan))


def step_noise(method: Method, plan: Plan) -> float:
    """Return the per-coordinate noise deviation of one release over the L2 length of one clipped contribution.

    If the noise multiplier is that of the whole run, all uses are assumed to have equal shares of it.
    """
    release = method.releases(plan)[0]
    if release.bound is None:
        return 0.0
    length = release.bound / (dense_l1(plan.dim) if release.norm == 1 else 1.0)
    mechanism = release.mechanism
    if release.total is not None and release.where == "client":
        even = plan.z * math.sqrt(release.times * plan.participations)
        mechanism = replace(mechanism, noise_multiplier=even)  # type: ignore[type-var]
    std = getattr(mechanism, "std", None)
    return float(std(release.bound)) / length if std is not None else plan.z
