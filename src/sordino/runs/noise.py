"""Calibration of the noise to the budget of a run, and personal budgets of clients."""

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
from sordino.spec.spec import Spec


def calibrated(
    method: Method, plan: Plan, viewer: str, spec: Spec, once: tuple[Event, ...], apart: tuple[Event, ...] = ()
) -> float:
    """Return the smallest noise multiplier with which the whole plan stays within the budget, against the viewer.

    Args:
        method: the method.
        plan: the plan; its own noise multiplier is ignored.
        viewer: the viewer of the budget.
        spec: the spec, with the budget.
        once: events on the data of the rounds, released outside the rounds.
        apart: events on data that no round touches.

    Raises:
        BudgetError: if no noise is enough, or `once` and `apart` alone exceed the budget.
    """

    @cache  # the search asks for some values twice
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
        multipliers = [
            noise_multiplier(lambda z, i=i: alternatives(z)[i], spec.epsilon, plan.spendable(spec.delta))  # type: ignore[misc]
            for i in range(len(alternatives(1.0)))
        ]
    except BudgetError as error:
        if viewer == "server" and method.viewer != "server":
            hint = f"{spec.method} trusts the server: use viewer = {method.viewer}, or --method dp-sgd."
            raise BudgetError(f"{error} {hint}") from error
        raise
    return min(multipliers)


def personal_budgets(
    spec: Spec, method: Method, plan: Plan, viewer: str, charged: bool
) -> tuple[Plan, personal.Budgets | None, Ints | None, tuple[str, ...]]:
    """Return what the clients' personal budgets pay for: their own noise, or fewer rounds with the noise of the run.

    Args:
        spec: the spec of the run.
        method: its method.
        plan: its plan, with the noise of the run.
        viewer: the viewer of the budget.
        charged: whether anything is released outside the rounds, which personal budgets do not support.

    Returns:
        The plan, with each client's noise multiplier if the method supports that; the budgets; otherwise the rounds in
        which each client may take part [clients]; and notes for the user. Without personal budgets: the plan as it is,
        None, None and no notes.
    """
    if spec.budgets is None:
        return plan, None, None, ()
    if not method.private and not method.own_noise:
        raise SpecError(f"budgets of clients work with methods whose epsilon is accounted, not with {spec.method}.")
    dealer = Stream.research(spec.seed or 0).at("budgets")  # a public stream, even in secure mode
    budgets = personal.read(spec.budgets, plan.population, spec.delta, dealer)
    if spec.unit == "user" or charged:
        raise SpecError("budgets of clients work with unit = record or client, and with evaluation on test data only.")
    above = any(e > spec.epsilon for e, _ in budgets.kinds)
    cut = (f"budgets above the run's epsilon = {spec.epsilon:g} count as equal to it",) * above

    def noise(e: float, d: float) -> float:
        e, d = min(e, spec.epsilon), min(d, spec.delta)
        if not method.private:  # as printed in the paper: the noise for which (e, d) is claimed
            return method.claimed_noise(replace(plan, epsilon=e, delta=d))
        # a search may end slightly above its target; never use less noise than the run declares
        return max(plan.z, calibrated(method, plan, viewer, replace(spec, epsilon=e, delta=d), ()))

    if method.own_noise:
        each = [noise(e, d) for e, d in budgets.kinds]
        kinds = zip(budgets.kinds, each, np.bincount(budgets.of, minlength=len(each)).tolist(), strict=True)
        notes = tuple(f"{n} clients have a budget of epsilon {e:g}: noise multiplier {z:.4g}" for (e, _), z, n in kinds)
        multipliers = tuple(each[i] for i in budgets.of.tolist())
        return replace(plan, multipliers=multipliers), budgets, None, cut + notes
    first = pricing.costs(method, plan)
    if any(pricing.costs(method, plan, t) != first for t in range(1, plan.rounds)):
        raise SpecError(f"budgets of clients need rounds that all cost the same; those of {spec.method} do not.")
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
    return plan, budgets, caps, (f"{len(out)} clients never take part, as their budgets pay for no round: {names}",)
