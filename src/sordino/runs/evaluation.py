"""What a run is evaluated on, how often, and with how much noise: decided here where the spec leaves it open.

Public test records cost nothing and are looked at after every round. Without any, one's own data are evaluated once,
after the last round, on records (with unit = user: on users) that are held out of training.

- A unit that is held out as a whole pays for the evaluation alone, all others for the training alone, so the price of
  both together is the larger of the two, and the evaluation may use the whole budget.
- A unit that lies on both sides pays for both: the evaluation then takes BUDGET of the budget, measured in mu^2, where
  mu is the Gaussian differential privacy level of the run's (epsilon, delta).
- A figure whose noise would have a deviation above WORST says nothing: then no record is held out and none is shown."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from sordino.contract.method import Method
from sordino.core.errors import SpecError
from sordino.data.clients import ArrayClients
from sordino.privacy.accountants import gdp
from sordino.privacy.events import Cost
from sordino.runs.spec import Spec

SHARE = 0.1  # of the records or users that is held out unless the spec says how many
BUDGET = 0.02  # of mu^2, where the evaluation is composed with the training
WORST = 0.05  # largest deviation of a figure that is still shown
STATISTICS = 20.0  # noise multiplier of private statistics unless the spec says another
HELD = ("validation", "tuning")


@dataclass(frozen=True)
class Evaluation:
    """A settled one has its noise; `on` None means that there is no evaluation."""

    on: str | None = None  # test, validation or tuning
    every: int = 1  # rounds between two evaluations
    times: int = 0  # how many there are in the run
    validation: float = 0.0  # share of the records or users held out
    noise: float | None = None  # multiplier of every figure on held-out records; None: exact
    apart: bool = False  # whether a unit is either held out or trained on
    chosen: bool = False  # whether the spec asks for it: then it is made however noisy it is
    deviation: float = 0.0  # of the noise in one figure
    text: str = ""  # for whoever runs it: what is evaluated on and what that costs, or why there is no evaluation

    @property
    def held_out(self) -> bool:
        return self.on in HELD


def asked(spec: Spec, method: Method, clients: Any, has_test: bool, own_file: bool) -> Evaluation:
    """What the spec asks for, or what is usual for such data; the noise is still open.

    `own_file` says that the records come from a file of one's own: then some are held out unasked. Whoever calls from
    Python has split them already, or says `validation`."""
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
    found = Evaluation(on, every, math.ceil(spec.rounds / every), share, chosen=chosen)
    if on not in HELD or chosen or spec.validation is not None:
        return found
    reason = _impossible(spec, method, clients)
    return found if reason is None else refused(found, reason)


def _impossible(spec: Spec, method: Method, clients: Any) -> str | None:
    """Why records are not held out unasked."""
    if not isinstance(clients, ArrayClients):
        return "the clients' records are not in memory"
    if spec.budgets is not None:
        return "clients have budgets of their own, which an evaluation of all of them would exceed"
    if spec.stragglers().joining[0]:
        return "clients join on the way, and an evaluation asks them all"
    if type(method).claim is not Method.claim and not method.private:
        return f"{spec.method} is as printed, and an exact figure on private records would void its epsilon"
    return None


def refused(found: Evaluation, reason: str, more: str = "") -> Evaluation:
    """No evaluation: all records are trained on."""
    way = "name public test records (test = PATH), or declare some of the records public (public_share)"
    text = f"no evaluation: {reason}. To have one, {way}{more}"
    return replace(found, on=None, times=0, validation=0.0, noise=None, text=text)


def settled(
    found: Evaluation, spec: Spec, method: Method, cost: Cost, held: tuple[int, int], spent: float
) -> Evaluation:
    """The evaluation with noise and price; `held` is how many units are held out and how many parties add noise.

    `cost` is that of the method's rounds against the viewer of the budget, `spent` the mu^2 of private statistics."""
    if not found.held_out:
        return found
    units, holders = held
    what = {"client": "client", "user": "user"}.get(spec.unit or method.units[0], "record")
    times = "one evaluation, after the last round," if found.times == 1 else f"{found.times} evaluations"
    apart = cost.unit in ("record", "label") or (cost.unit == "user" and cost.relation == "add/remove")
    whole = gdp.mu_for(spec.epsilon, spec.delta) ** 2
    level = max(whole - spent, 1e-12 * whole) if apart else BUDGET * whole
    central = method.viewer == "public"  # one party's noise covers all copies of a unit at once, else each pays
    moves = cost.copies**2 * found.times if central else cost.copies * found.times
    z = spec.release_noise or (1 + 1e-6) * math.sqrt(moves / level)
    deviation = z * math.sqrt(holders) / units if units else math.inf
    if deviation > WORST and not found.chosen:
        need = math.ceil(z * math.sqrt(max(1, holders)) / WORST / (1 if what == "client" else found.validation))
        said = f"on {units} held-out {what}s" if units and what != "client" else f"over {units} clients"
        noise = (
            f"its noise would have a deviation of {deviation:.2g}, above {WORST:g}" if units else "none are held out"
        )
        return refused(found, f"{said} {noise}", f", or bring about {need:,} {what}s in all")
    price = "which take part in no round, so training keeps the whole budget"
    if not apart:
        price = f"for {100 * BUDGET:g} % of the budget" if spec.release_noise is None else "as a part of the budget"
    records = f"{units:,} held-out {what}s" if what != "client" else f"held-out records of {units:,} clients"
    text = f"{times} on {records}, {price}; noise of deviation {deviation:.2g}, charged"
    return replace(found, noise=z, apart=apart, deviation=deviation, text=text)
