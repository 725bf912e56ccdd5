"""How much noise a plan needs for its budget, and what clients with budgets of their own pay for."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from sordino.contract import pricing
from sordino.contract.method import Method, Plan
from sordino.core.errors import BudgetError, SpecError
from sordino.core.rng import Ints, Stream
from sordino.privacy import personal, price
from sordino.privacy.calibrate import noise_multiplier
from sordino.privacy.events import Composed, Event
from sordino.privacy.tightest import epsilon
from sordino.runs.job import totals
from sordino.runs.spec import Spec


def calibrated(
    method: Method, plan: Plan, viewer: str, spec: Spec, once: tuple[Event, ...], apart: tuple[Event, ...] = ()
) -> float:
    """The least noise with which the whole plan stays within the budget, against the viewer."""

    @cache  # a search asks for some twice
    def alternatives(z: float) -> tuple[Any, ...]:
        tried = replace(plan, noise_multiplier=z)
        return totals(method, tried, viewer, plan.rounds, plan.participations, once, apart)[1]

    alone = epsilon(Composed((*once, *apart)), spec.delta) if once or apart else 0.0
    if alone >= spec.epsilon:
        raise BudgetError(
            f"evaluations and statistics alone cost epsilon = {alone:.3g} of {spec.epsilon:g}. Raise release_noise or "
            "evaluate_every, or drop standardise."
        )
    try:
        found = [
            noise_multiplier(lambda z, i=i: alternatives(z)[i], spec.epsilon, plan.spendable(spec.delta))  # type: ignore[misc]
            for i in range(len(alternatives(1.0)))
        ]
    except BudgetError as error:
        if viewer == "server" and method.viewer != "server":
            hint = f"{spec.method} trusts the server: use viewer = {method.viewer}, or --method dp-sgd."
            raise BudgetError(f"{error} {hint}") from error
        raise
    return min(found)


def personal_budgets(
    spec: Spec, method: Method, plan: Plan, viewer: str, charged: bool
) -> tuple[Plan, personal.Budgets | None, Ints | None, tuple[str, ...]]:
    """The clients' own budgets and what they pay for: noise of their own, or fewer rounds with the noise of the run."""
    if spec.budgets is None:
        return plan, None, None, ()
    if not method.private and not method.own_noise:
        raise SpecError(f"budgets of clients go with methods whose epsilon is accounted, not with {spec.method}.")
    dealer = Stream.research(spec.seed or 0).at("budgets")  # public, also in secure mode
    budgets = personal.read(spec.budgets, plan.population, spec.delta, dealer)
    if spec.unit == "user" or charged:
        raise SpecError("budgets of clients go with unit = record or client, and with evaluation on test data only.")
    above = any(e > spec.epsilon for e, _ in budgets.kinds)
    cut = (f"budgets above the run's epsilon = {spec.epsilon:g} count as that",) * above

    def noise(e: float, d: float) -> float:
        e, d = min(e, spec.epsilon), min(d, spec.delta)
        if not method.private:  # as printed: the noise with which (e, d) is claimed
            return method.claimed_noise(replace(plan, epsilon=e, delta=d))
        # a search may end a little above its target: never less noise than that of the run, which is what is declared
        return max(plan.z, calibrated(method, plan, viewer, replace(spec, epsilon=e, delta=d), ()))

    if method.own_noise:
        each = [noise(e, d) for e, d in budgets.kinds]
        kinds = zip(budgets.kinds, each, np.bincount(budgets.of, minlength=len(each)).tolist(), strict=True)
        told = tuple(f"{n} clients have a budget of epsilon {e:g}: noise multiplier {z:.4g}" for (e, _), z, n in kinds)
        own = tuple(each[i] for i in budgets.of.tolist())
        return replace(plan, multipliers=own), budgets, None, cut + told
    first = pricing.costs(method, plan)
    if any(pricing.costs(method, plan, t) != first for t in range(1, plan.rounds)):
        raise SpecError(f"budgets of clients go with rounds that cost the same; those of {spec.method} do not.")
    event = price.cost_to(viewer, pricing.costs(method, plan)).event
    rich = np.array([e >= spec.epsilon and d >= spec.delta for e, d in budgets.kinds])[budgets.of]
    caps = np.where(rich, plan.participations, personal.participations(event, budgets, plan.participations))
    out = np.flatnonzero(caps == 0)
    if len(out) == plan.population:
        raise BudgetError(
            f"no client's own budget pays for one participation at noise multiplier {plan.z:.4g}. "
            "Lower the run's epsilon (more noise), or raise the budgets."
        )
    if not len(out):
        return plan, budgets, caps, cut
    names = ", ".join(map(str, out[:10])) + (", ..." if len(out) > 10 else "")
    return plan, budgets, caps, (f"{len(out)} clients never take part, their budgets pay for no round: {names}",)
