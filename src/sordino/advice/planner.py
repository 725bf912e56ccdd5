"""The planner: noise, rounds and an accuracy band for every trust model, before anything is trained.

It is given epsilon, the number of clients and records, and the size of the model.

Noise-to-signal ratio (NSR) of a round: the expected L2 norm of all noise in the averaged update, divided by the clip
bound, which is the norm of that update if all clipped contributions point the same way. With noise multiplier z, D
parameters, m clients in a round and batches of b records it is

    z sqrt(D) / m            noise on the sum of the clients' updates (dp-fedavg, secure sum)
    z sqrt(D) / sqrt(m)      noise on every client's update
    z sqrt(D) / (b sqrt(m))  noise on the sum of the records' gradients in every client (dp-sgd)

NSR of a run: over the steps, noise grows with the square root of their number and signal with their number, so it is
the NSR of a step over sqrt(steps). It indexes a table of accuracies measured on MNIST (benchmarks/plan_bands.py,
docs/plan.md), from which the accuracy bands are taken.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib import resources

from sordino.contract import pricing
from sordino.contract.method import Local, Plan
from sordino.core import check, plugin
from sordino.core.errors import BudgetError, SpecError
from sordino.privacy import price
from sordino.privacy.accountants import pld
from sordino.privacy.calibrate import noise_multiplier
from sordino.privacy.events import Cost, Event, GaussianEvent
from sordino.privacy.guarantee import Guarantee
from sordino.privacy.samplers import Poisson
from sordino.privacy.tightest import epsilon

ROUNDS = (50, 100, 200, 400)  # candidates; fewer than 50 rarely train a model even without noise
CLOSE = 1.05  # choose the fewest rounds whose NSR is at most this factor above the smallest
# Fractions of the non-private accuracy: a run "works" if the worst measured run at a neighbouring noise level reaches
# WORKS, and is "hopeless" if even the best one stays below HOPELESS.
WORKS, HOPELESS = 0.8, 0.5
MOST_CLIENTS, MOST_EPSILON, SMALLEST_MODEL = 1e9, 1e3, 100  # limits of what is suggested


# --- the question and the trust models


@dataclass(frozen=True)
class PlanQuestion:
    """The planned run: its size, its model and its privacy budget."""

    clients: int
    records: int  # per client
    parameters: int  # trainable parameters of the model
    epsilon: float  # total over all rounds
    delta: float  # total over all rounds
    rounds: int | None = None  # None: the best of ROUNDS
    client_rate: float = 1.0  # fraction of the clients in a round, sampled in secret
    batch_rate: float = 1.0  # fraction of a client's records in a step

    def __post_init__(self) -> None:
        check.count(clients=self.clients, records=self.records, parameters=self.parameters)
        check.positive(epsilon=self.epsilon)
        check.below_one(delta=self.delta)
        check.probability(client_rate=self.client_rate, batch_rate=self.batch_rate)
        if self.rounds is not None:
            check.count(rounds=self.rounds)

    def plan(self, rounds: int, z: float) -> Plan:
        """Return the plan of such a run with `rounds` rounds and noise multiplier z."""
        return Plan(
            rounds=rounds,
            population=self.clients,
            sampler=Poisson(self.client_rate),
            local=Local(steps=1, batch_rate=self.batch_rate),
            noise_multiplier=z,
            sizes=(self.records,),
            mean_client=float(self.records),
        )


@dataclass(frozen=True)
class TrustSetting:
    """A trust model: the unit of privacy, the viewer, and where the noise is added."""

    unit: str
    viewer: str
    noise: str  # who adds the noise
    where: str  # what the noise is added to: "records", "updates" or "sum"
    methods: tuple[str, ...]  # methods with this trust model; if empty, it can only be priced

    def cost(self, plan: Plan) -> Cost:
        """Return the privacy cost of one participation, as the method states it if there is one."""
        if self.methods:
            return price.cost_to(self.viewer, pricing.costs(plugin.load("methods", self.methods[0])(), plan))
        # The server knows who sends, so neighbours replace a client's data: its clipped update moves by up to 2C.
        return Cost(self.unit, "replace", self.viewer, GaussianEvent(plan.z / 2))

    def total(self, question: PlanQuestion, rounds: int, z: float) -> Event:
        """Return the privacy event of the whole run for a client that may take part in every round."""
        plan = question.plan(rounds, z)
        return price.total(self.cost(plan), self.viewer, plan.sampler, plan.population, rounds, rounds)[0]

    def guarantee(self, question: PlanQuestion, rounds: int, z: float) -> Guarantee:
        """Return the guarantee of the whole run with `rounds` rounds and noise multiplier z."""
        plan, delta = question.plan(rounds, z), question.delta
        result = price.guarantee(
            (self.cost(plan),), self.viewer, plan.sampler, plan.population, rounds, rounds, delta, "secure"
        )
        hidden = "a curious server that sees who takes part and the sum of a round, but no single message"
        return replace(result, viewer=hidden) if self.where == "sum" and self.viewer == "server" else result


SETTINGS = (
    TrustSetting("record", "server", "every client", "records", ("dp-sgd",)),
    TrustSetting("record", "public", "every client", "records", ("dp-sgd",)),
    TrustSetting("client", "public", "a trusted server", "sum", ("dp-fedavg",)),
    TrustSetting("client", "server", "every client, shares under a secure sum", "sum", ()),
    TrustSetting("client", "server", "every client, alone", "updates", ()),
)


def step_nsr(where: str, z: float, parameters: int, cohort: float, batch: float) -> float:
    """Return the noise-to-signal ratio of one step, as defined in the docstring of this module."""
    divisor = {"sum": cohort, "updates": math.sqrt(cohort), "records": batch * math.sqrt(cohort)}[where]
    return z * math.sqrt(parameters) / divisor


def nsr_of(setting: TrustSetting, question: PlanQuestion, z: float) -> float:
    """Return the noise-to-signal ratio of one round with noise multiplier z."""
    cohort = max(1.0, question.client_rate * question.clients)
    batch = max(1.0, question.batch_rate * question.records)
    return step_nsr(setting.where, z, question.parameters, cohort, batch)


# --- measured accuracies


@dataclass(frozen=True)
class MeasuredRun:
    """One measured run and the fraction of the non-private accuracy that it reached."""

    model: str
    parameters: int
    unit: str
    rounds: int
    level: float  # NSR of the run
    kept: float  # fraction of the non-private accuracy


@lru_cache
def measured() -> tuple[MeasuredRun, ...]:
    """Return all measured runs, read from advice/files/bands.json."""
    text = (resources.files("sordino.advice") / "files" / "bands.json").read_text(encoding="utf-8")
    table = json.loads(text)
    rows = [dict(zip(table["columns"], row, strict=True)) for row in table["rows"]]
    return tuple(MeasuredRun(**{k: r[k] for k in MeasuredRun.__dataclass_fields__}) for r in rows)


def levels(unit: str) -> list[float]:
    """Return the measured noise levels (NSR of a run) for this unit of privacy, in ascending order."""
    return sorted({m.level for m in measured() if m.unit == unit})


def band(unit: str, run_nsr: float) -> tuple[float, float] | None:
    """Return the accuracy band at this noise level, or None outside the measured range.

    The band is the smallest and the largest fraction of the non-private accuracy, at most 1, that was measured at the
    nearest noise levels below and above.
    """
    known = levels(unit)
    if not known[0] <= run_nsr <= known[-1]:
        return None
    below, above = max(v for v in known if v <= run_nsr), min(v for v in known if v >= run_nsr)
    fractions = [min(1.0, m.kept) for m in measured() if m.unit == unit and m.level in (below, above)]
    return min(fractions), max(fractions)


def verdict(unit: str, run_nsr: float) -> str:
    """Return "works", "uncertain" or "hopeless".

    Since accuracy falls with noise, less noise than the measured range works and more is hopeless.
    """
    accuracy_band = band(unit, run_nsr)
    if accuracy_band is None:
        return "works" if run_nsr < levels(unit)[0] else "hopeless"
    return "works" if accuracy_band[0] >= WORKS else "hopeless" if accuracy_band[1] < HOPELESS else "uncertain"


@lru_cache
def useful(unit: str) -> float:
    """Return the largest measured noise level up to which every measured run works."""
    largest = 0.0
    for level in levels(unit):
        if min(m.kept for m in measured() if m.unit == unit and m.level == level) < WORKS:
            break
        largest = level
    return largest


# --- the answer


@dataclass(frozen=True)
class Recommendation:
    """The answer of the planner for one trust model."""

    setting: TrustSetting
    reason: str | None = None  # why the budget cannot be met, if it cannot
    guarantee: Guarantee | None = None
    noise_multiplier: float | None = None
    rounds: int | None = None
    nsr: float | None = None  # NSR of a round
    run_nsr: float | None = None  # NSR of the whole run
    band: tuple[float, float] | None = None  # fractions of the non-private accuracy; None outside the measured range
    verdict: str = "hopeless"  # "works", "uncertain" or "hopeless"
    needed: tuple[tuple[str, float], ...] = ()  # (name, value) of each single change that would make it work

    @property
    def feasible(self) -> bool:
        """Whether any noise meets the budget."""
        return self.reason is None


def answer(setting: TrustSetting, question: PlanQuestion) -> Recommendation:
    """Return the recommendation for one trust model.

    If the question leaves the number of rounds open, choose the fewest rounds whose NSR is within the factor CLOSE of
    the smallest.
    """
    multipliers: dict[int, float] = {}  # rounds -> noise multiplier
    reason = None
    for rounds in (question.rounds,) if question.rounds else ROUNDS:
        try:
            multipliers[rounds] = _calibrated(setting, question, rounds)
        except BudgetError as error:
            reason = str(error)
    if not multipliers:
        return Recommendation(setting, reason, needed=_needed(setting, question, None))
    run = {t: nsr_of(setting, question, z) / math.sqrt(t) for t, z in multipliers.items()}
    rounds = min(t for t in run if run[t] <= CLOSE * min(run.values()))
    z, run_nsr = multipliers[rounds], run[rounds]
    says = verdict(setting.unit, run_nsr)
    return Recommendation(
        setting=setting,
        guarantee=setting.guarantee(question, rounds, z),
        noise_multiplier=z,
        rounds=rounds,
        nsr=nsr_of(setting, question, z),
        run_nsr=run_nsr,
        band=band(setting.unit, run_nsr),
        verdict=says,
        needed=() if says == "works" else _needed(setting, question, run_nsr),
    )


def _calibrated(setting: TrustSetting, question: PlanQuestion, rounds: int) -> float:
    """Return the smallest noise multiplier with which the whole run stays within the budget."""
    return noise_multiplier(lambda z: setting.total(question, rounds, z), question.epsilon, question.delta)


def _needed(setting: TrustSetting, question: PlanQuestion, run_nsr: float | None) -> tuple[tuple[str, float], ...]:
    """Return the smallest single changes that make the run work, each with everything else as asked.

    They are the changes of clients, records, parameters or epsilon that bring the NSR of the run down to the largest
    useful level.
    """
    out: list[tuple[str, float]] = []
    if run_nsr is not None:
        excess = run_nsr / useful(setting.unit)
        power = 1 if setting.where == "sum" else 2
        clients = math.ceil(max(question.clients, 1 / question.client_rate) * excess**power)
        if clients <= MOST_CLIENTS:
            out.append(("clients", clients))
        if setting.where == "records":
            out.append(("records", math.ceil(max(question.records, 1 / question.batch_rate) * excess)))
        if (smaller := math.floor(question.parameters / excess**2)) >= SMALLEST_MODEL:
            out.append(("parameters", smaller))
    most = []
    for rounds in (question.rounds,) if question.rounds else ROUNDS:
        z = useful(setting.unit) / CLOSE * math.sqrt(rounds) / nsr_of(setting, question, 1.0)
        if z >= 0.02:  # a smaller z costs more than MOST_EPSILON in a single round
            most.append(epsilon(setting.total(question, rounds, z), question.delta, pld.ROUGH))
    if most and min(most) <= MOST_EPSILON:
        out.append(("epsilon", _two_digits_up(min(most))))
    return tuple(out)


def _two_digits_up(value: float) -> float:
    scale = 10.0 ** (math.floor(math.log10(value)) - 1)
    return float(f"{math.ceil(value / scale - 1e-9) * scale:.6g}")


def answers(question: PlanQuestion, method: str | None = None) -> list[Recommendation]:
    """Return one recommendation for each trust model, or for those of one method."""
    return [answer(s, question) for s in chosen(method)]


def chosen(method: str | None) -> tuple[TrustSetting, ...]:
    """Return the trust models that a method offers, or all of them without a method."""
    if method is None:
        return SETTINGS
    plugin.load("methods", method)  # raises an error for an unknown name
    settings = tuple(s for s in SETTINGS if method in s.methods)
    if not settings:
        known = sorted({m for s in SETTINGS for m in s.methods})
        raise SpecError(f"the planner does not cover {method}. Try one of: {', '.join(known)}.")
    return settings
