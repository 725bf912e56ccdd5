"""Settings of the evaluation: on which records, how often and with how much noise, where the spec leaves it open.

Public test records cost nothing and are used after every round. Without them, a run on the user's own data is evaluated
once, after the last round, on records (with unit = user: on users) that are held out of training.

- If every unit is either held out as a whole or trained on, each pays for the evaluation alone or for the training
  alone. The cost of both together is then the larger of the two, and the evaluation may use the whole budget.
- If a unit can be on both sides, it pays for both: the evaluation then takes the fraction BUDGET of the budget,
  measured in mu^2, where mu is the Gaussian differential privacy level of the run's (epsilon, delta).
- A figure whose noise would have a standard deviation above WORST says nothing: then no record is held out and no
  figure is shown."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

from sordino.contract.method import Method
from sordino.core.errors import SpecError
from sordino.data.clients import ArrayClients
from sordino.measures.measure import Measure
from sordino.privacy.accountants import gdp
from sordino.privacy.events import Cost
from sordino.spec.spec import Spec

SHARE = 0.1  # default fraction of the records or users that is held out
BUDGET = 0.02  # fraction of mu^2 for the evaluation if it is composed with the training
WORST = 0.05  # largest standard deviation of a figure that is still shown
STATISTICS = 20.0  # default noise multiplier of private statistics
HELD = ("validation", "tuning")


@dataclass(frozen=True)
class Evaluation:
    """The evaluation of a run; if `on` is None there is none. `settled` fills in the noise."""

    on: str | None = None  # test, validation or tuning
    every: int = 1  # rounds between two evaluations
    times: int = 0  # number of evaluations in the run
    validation: float = 0.0  # fraction of the records or users that is held out
    noise: float | None = None  # noise multiplier of every figure on held-out records; None: exact
    apart: bool = False  # whether every unit is either held out or trained on, never both
    chosen: bool = False  # whether the spec asks for it; then it takes place however noisy it is
    deviation: float = 0.0  # standard deviation of the noise in one figure
    measure: Measure = field(default_factory=Measure)  # what is measured on held-out records
    text: str = ""  # for the user: the records and the cost of the evaluation, or why there is none

    @property
    def held_out(self) -> bool:
        """Whether the evaluation uses held-out records of the clients."""
        return self.on in HELD


def asked(spec: Spec, method: Method, clients: Any, has_test: bool, own_file: bool) -> Evaluation:
    """Return the evaluation that the spec asks for, or the default for such data; its noise is still open.

    Args:
        spec: the spec of the run.
        method: its method.
        clients: its clients.
        has_test: whether there are public test records.
        own_file: whether the records come from the user's own file; then some are held out by default. A caller from
            Python has split the records already, or sets `validation`.
    """
    on, share = spec.evaluate_on, spec.validation or 0.0
    if on == "test" and not has_test:
        raise SpecError("evaluate_on = test, but there are no public test records: name them with test.")
    if on is None and has_test:
        on = "test"
    if on is None and (share or (own_file and spec.validation is None)):
        on = "validation"
    if on == "validation" and spec.validation is None:
        share = SHARE
    chosen = spec.evaluate_on is not None or spec.release_noise is not None
    every = spec.evaluate_every or (spec.rounds if on in HELD else 1)
    evaluation = Evaluation(on, every, math.ceil(spec.rounds / every), share, chosen=chosen)
    if on not in HELD or chosen or spec.validation is not None:
        return evaluation
    reason = _impossible(spec, method, clients)
    return evaluation if reason is None else refused(evaluation, reason)


def _impossible(spec: Spec, method: Method, clients: Any) -> str | None:
    """Return why records are not held out by default, or None if they can be."""
    if not isinstance(clients, ArrayClients):
        return "the clients' records are not in memory"
    if spec.budgets is not None:
        return "clients have budgets of their own, which an evaluation of all of them would exceed"
    if spec.stragglers().joining[0]:
        return "clients join during the run, but an evaluation needs all of them"
    if type(method).claim is not Method.claim and not method.private:
        return f"{spec.method} is as printed, and an exact figure on private records would void its epsilon"
    return None


def refused(evaluation: Evaluation, reason: str, more: str = "") -> Evaluation:
    """Return the settings for a run without evaluation, which trains on all records.

    Args:
        evaluation: the evaluation that was considered.
        reason: why it does not take place.
        more: a further way to get an evaluation, added to the text.
    """
    way = "name public test records (test = PATH), or declare some of the records public (public_share)"
    text = f"no evaluation: {reason}. To have one, {way}{more}"
    return replace(evaluation, on=None, times=0, validation=0.0, noise=None, text=text)


def settled(
    evaluation: Evaluation, spec: Spec, method: Method, cost: Cost, held: tuple[int, int], spent: float
) -> Evaluation:
    """Return the evaluation with its noise and the text about its cost, or the refusal if it would be too noisy.

    Args:
        evaluation: the evaluation whose noise is open.
        spec: the spec of the run.
        method: its method.
        cost: the cost of the method's rounds against the viewer of the budget.
        held: the number of units that are held out, and the number of parties that add noise.
        spent: the mu^2 that private statistics take.
    """
    if not evaluation.held_out:
        return evaluation
    units, holders = held
    what = {"client": "client", "user": "user"}.get(spec.unit or method.units[0], "record")
    times = "one evaluation, after the last round," if evaluation.times == 1 else f"{evaluation.times} evaluations"
    apart = cost.unit in ("record", "label") or (cost.unit == "user" and cost.relation == "add/remove")
    mu_squared = gdp.mu_for(spec.epsilon, spec.delta) ** 2
    level = max(mu_squared - spent, 1e-12 * mu_squared) if apart else BUDGET * mu_squared
    central = method.viewer == "public"  # one party's noise covers all copies of a unit at once; else each pays
    moves = cost.copies**2 * evaluation.times if central else cost.copies * evaluation.times
    in_place = cost.relation == "replace" or cost.draw == "changed"  # a unit's row is replaced by another
    moves *= evaluation.measure.swing**2 if in_place else 1
    z = spec.release_noise or (1 + 1e-6) * math.sqrt(moves / level)
    deviation = evaluation.measure.spread * z * math.sqrt(holders) / units if units else math.inf
    if deviation > WORST and not evaluation.chosen:
        z *= evaluation.measure.spread
        need = math.ceil(z * math.sqrt(max(1, holders)) / WORST / (1 if what == "client" else evaluation.validation))
        said = f"on {units} held-out {what}s" if units and what != "client" else f"over {units} clients"
        noise = (
            f"its noise would have a deviation of {deviation:.2g}, above {WORST:g}" if units else "none are held out"
        )
        return refused(evaluation, f"{said} {noise}", f", or provide about {need:,} {what}s in total")
    price = "which take part in no round, so training keeps the whole budget"
    if not apart:
        price = f"for {100 * BUDGET:g} % of the budget" if spec.release_noise is None else "as a part of the budget"
    records = f"{units:,} held-out {what}s" if what != "client" else f"held-out records of {units:,} clients"
    text = f"{times} on {records}, {price}; noise of deviation {deviation:.2g}, charged"
    return replace(evaluation, noise=z, apart=apart, deviation=deviation, text=text)
