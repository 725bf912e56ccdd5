"""Pricing of the published privacy events of a run once more, so that a report does not merely repeat an epsilon.

Only events whose accountants load in a moment are priced: Gaussian and (epsilon, delta) releases, sampled or not. For
all others, and for runs whose rounds all differ, the report uses the (epsilon, delta) of the result, and says so.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from sordino.core.errors import SordinoError
from sordino.core.rounding import up
from sordino.privacy import tightest
from sordino.privacy.accountants import gdp, pld, rdp
from sordino.privacy.algebra import alternatives, distance, gdp_mu_squared, parts
from sordino.privacy.events import Event
from sordino.privacy.guarantee import Guarantee
from sordino.privacy.written import from_json
from sordino.report.run.fields import Fields, RunSources, is_number

FEW = 24  # different releases up to which an event is priced while somebody waits
NODES = 20_000  # values in an event up to which it is read
NEAR = 2e-3  # relative difference up to which two accountants' totals are the same
EPSILONS = 24  # values of epsilon at which the trade-off curve is computed
FAULTS = (SordinoError, ArithmeticError, LookupError, TypeError, ValueError, AttributeError, MemoryError)
# events whose classes are there without the modules of the mechanisms, which take seconds to load
SIMPLE = {
    "Gaussian", "Pure", "Approximate", "Sampled", "SampledGroup", "FixedSize", "Visible", "Parallel", "Repeated",
    "Composed",
}  # fmt: skip
GAUSSIAN = "the exact formula for Gaussian noise (Gaussian differential privacy)"
COMPOSED = "the numerical composition of privacy loss distributions (PLD)"
SMALLEST = "the smallest of Sordino's accountants, each of which gives an upper bound"


@dataclass(frozen=True)
class Priced:
    """The privacy event of a whole run, priced again."""

    event: Event
    delta: float  # that the event may use
    reserve: float  # the rest of the guarantee's delta
    epsilon: float
    accountant: str
    source: str


@dataclass(frozen=True)
class SpentEvent:
    """The privacy event of the first rounds of a run."""

    round: int
    event: Event


def priced(run: RunSources, guarantee: Guarantee) -> Priced | None:
    """Return the event of the run's total for the viewer of a guarantee, if it can be priced and agrees with it."""
    if math.isinf(guarantee.epsilon) or not run.finished:
        return None
    file = run.accounting
    delta, spendable = file.number("delta", 0.0, 1.0), file.number("spendable", 0.0, 1.0)
    events = spent(run, guarantee.viewer)
    if not events or not delta or not spendable or spendable > delta or not math.isclose(delta, guarantee.delta):
        return None
    last = events[-1]
    try:
        epsilon = tightest.epsilon(last.event, spendable, pld.ROUGH)
        accountant = _accountant(last.event, spendable, epsilon)
    except FAULTS:
        return None
    if not math.isclose(epsilon, guarantee.epsilon, rel_tol=NEAR, abs_tol=1e-4):
        sentence = (
            f"public/accounting.json: its events cost epsilon = {epsilon:.4g}, but the guarantee says "
            f"{guarantee.epsilon:.4g}. One of them is not as the run wrote it; the guarantee is shown as it stands."
        )
        if sentence not in run.damage:
            run.damage.append(sentence)
        return None
    source = f"public/accounting.json: viewers.{guarantee.viewer}.spent (round {last.round}), spendable"
    return Priced(last.event, spendable, delta - spendable, epsilon, accountant, source)


def spent(run: RunSources, viewer: str) -> list[SpentEvent]:
    """Return the events of the first rounds of a run, on the grid of accounting.json; [] if they are not simple."""
    out: list[SpentEvent] = []
    for entry in run.accounting.part("viewers").part(viewer).parts("spent"):
        number, event = entry.count("round", 1), _event(entry)
        if number is None or event is None:
            return []
        out.append(SpentEvent(number, event))
    return sorted(out, key=lambda e: e.round)


def _event(entry: Fields) -> Event | None:
    data = entry.part("event").data
    values = list(_values(data))
    if len(values) > NODES or not all(_believable(key, value) for key, value in values):
        return None
    try:
        event = from_json(data)
        return event if len(parts(event)) <= FEW and len(alternatives(event)) <= 4 else None
    except (*FAULTS, RecursionError):
        return None


def _believable(key: str, value: Any) -> bool:
    if key == "kind":
        return value in SIMPLE
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return True
    return is_number(value) and 0 <= value <= 1e12


def _values(data: Any, key: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    if depth > 20:
        yield "kind", ""  # which is not known, so that nothing is priced
    elif isinstance(data, dict):
        for name, value in data.items():
            yield from _values(value, str(name), depth + 1)
    elif isinstance(data, list):
        for value in data:
            yield from _values(value, key, depth + 1)
    else:
        yield key, data


def _accountant(event: Event, delta: float, epsilon: float) -> str:
    if gdp_mu_squared(event) is not None:
        return GAUSSIAN
    composed = max(pld.epsilon(e, delta, pld.ROUGH) for e in alternatives(event))
    return COMPOSED if composed <= epsilon * (1 + 1e-9) else SMALLEST


def by_accountant(event: Event, delta: float) -> dict[str, float]:
    """Return the epsilon of an event by the accountants that a report compares; those without a theory are left out."""
    out = {}
    for name, module in (("PLD", pld), ("RDP", rdp)):
        try:
            each = alternatives(event)
            rough = (pld.ROUGH,) if module is pld else ()
            out[name] = max(module.epsilon(e, delta, *rough) for e in each)
        except FAULTS:
            continue
    return {name: value for name, value in out.items() if math.isfinite(value)}


def deltas_by_accountant(event: Event, epsilon: float) -> dict[str, float]:
    """Return the delta of an event at an epsilon, by the accountants that a report compares and the exact formula."""
    out = {}
    for name, module in (("exact", gdp), ("PLD", pld), ("RDP", rdp)):
        try:
            each = alternatives(event)
            if module is gdp and gdp_mu_squared(event) is None:
                continue
            rough = (pld.ROUGH,) if module is pld else ()
            out[name] = max(module.delta(e, epsilon, *rough) for e in each)
        except FAULTS:
            continue
    return {name: value for name, value in out.items() if math.isfinite(value)}


@dataclass(frozen=True)
class AttackBound:
    """What any test of whether a unit is in the data must get wrong: lines (epsilon, delta) whose envelope is taken.

    Dong, Roth and Su (2022), Proposition 2.12; for one line Kairouz, Oh and Viswanath (2015), Theorem 2.1.
    """

    lines: tuple[tuple[float, float], ...]
    formula: str
    source: str

    def missed(self, false_alarms: float) -> float:
        """Return the smallest possible share of present units that a test with so many false alarms misses."""
        most = 0.0
        for epsilon, delta in self.lines:
            factor = math.exp(min(epsilon, 700.0))
            most = max(most, 1 - delta - factor * false_alarms, (1 - delta - false_alarms) / factor)
        return most

    def found(self, false_alarms: float) -> float:
        """Return the largest share of present units that a test with so many false alarms finds."""
        return 1 - self.missed(false_alarms)

    def right(self) -> float:
        """Return the largest share of right verdicts if both answers are equally likely beforehand."""
        low, high = 0.0, 0.5
        for _ in range(60):  # where both kinds of error are equal, their sum is smallest
            middle = (low + high) / 2
            low, high = (middle, high) if self.missed(middle) > middle else (low, middle)
        return 1 - low

    def sure_after_alarm(self, false_alarms: float) -> float:
        """Return how likely a unit is in the data after an alarm of the best such test, from 50 % before."""
        found = self.found(false_alarms)
        return found / (found + false_alarms)


def attack_bound(guarantee: Guarantee, price: Priced | None, source: str) -> AttackBound:
    """Return what a guarantee allows an attacker, by the trade-off curve of the run's events where there is one."""
    total = (guarantee.epsilon, guarantee.delta)
    formula = f"the bound that (epsilon, delta) = ({up(guarantee.epsilon)}, {guarantee.delta:g}) alone implies"
    if math.isinf(guarantee.epsilon):
        return AttackBound(((math.inf, 1.0),), "no bound", source)
    if price is None or not guarantee.epsilon:
        return AttackBound((total,), formula, source)
    largest = min(max(guarantee.epsilon, 1e-3), 700.0)
    steps = [0.0, *(largest * (i / (EPSILONS - 1)) ** 2 for i in range(1, EPSILONS))]
    try:
        lines = [(e, min(1.0, _delta(price.event, e) + price.reserve)) for e in steps]
    except FAULTS:
        return AttackBound((total,), formula, source)
    return AttackBound((*lines, total), "the trade-off curve of all releases of the run", price.source)


def _delta(event: Event, epsilon: float) -> float:
    most = 0.0
    for each in alternatives(event):
        gaussian = gdp_mu_squared(each) is not None
        value = gdp.delta(each, epsilon) if gaussian else pld.delta(each, epsilon, pld.ROUGH)
        most = max(most, value + distance(each) * (1 + math.exp(min(epsilon, 700.0))))
    return most
