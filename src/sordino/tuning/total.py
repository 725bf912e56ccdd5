"""The total privacy cost of a search, and the budget of one trial that follows from it.

- Random stopping: only the best of a secret number of trials is released. The total is that of `RandomStopping` around
  one trial (training and score). It holds against whoever sees the winner alone. A curious server takes part in the
  trials and sees all of them, so it is not covered.
- Disjoint: trials are made on a share of the records that the final run never touches. Within this share all trials
  compose; a record pays for the trials or for the final run, so the total is the larger of the two.

In both, the user's epsilon is the total. One trial gets the largest epsilon with which the total stays within it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sordino.core.errors import BudgetError, SpecError, UnsupportedEvent
from sordino.core.rounding import up
from sordino.measures import held_out
from sordino.privacy import selection
from sordino.privacy.accountants import rdp
from sordino.privacy.events import Cost, Event, Parallel, RandomStopping, Repeated
from sordino.privacy.guarantee import Guarantee
from sordino.privacy.tightest import epsilon
from sordino.runs import build
from sordino.runs.job import Job
from sordino.runs.prepare import Kept, prepare
from sordino.spec import spec
from sordino.spec.spec import Spec
from sordino.tuning.space import Space

LEAST = 1e-3  # smallest part of the total epsilon that one trial is given
STEPS, CLOSE = 20, 2e-3  # most steps of the search for the epsilon of a trial, and how close it comes to the total
SERVER = "a server that takes part in the trials sees all of them, and random stopping protects the winner alone"
KEPT: Kept = {}  # data and features shared by the trials of a process


@dataclass(frozen=True)
class Search:
    """What is asked for: the run, the space, and how the number of trials comes about."""

    spec: Spec
    space: Space
    trials: int  # the expected number; with `disjoint`, the number itself
    law: str = selection.BINOMIAL
    eta: float = 1.0
    disjoint: float | None = None  # the share of the records on which trials are made

    def to_json(self) -> dict[str, Any]:
        """Return what a search that goes on must share with the one that was begun."""
        return {
            "spec": self.spec.to_dict(),
            "space": {key: domain.to_json() for key, domain in self.space.items()},
            "trials": self.trials,
            "law": [self.law, self.eta],
            "disjoint": self.disjoint,
        }

    @property
    def alone(self) -> float:
        """The delta of one trial, small enough that what all trials reserve of it adds up to the reserve of one run."""
        return self.spec.delta / self.trials

    def trial(self, budget: float, settings: dict[str, Any], seed: int | None = None) -> Job:
        """Return the job of one trial.

        Args:
            budget: the epsilon of the trial.
            settings: the searched keys and their values.
            seed: in research mode, the seed of its noise; the clients are dealt by the seed of the spec.
        """
        keys = self.spec.to_dict() | settings | {"epsilon": budget, "delta": self.alone}
        keys |= {"evaluate_every": self.spec.rounds, "baseline": False, "audit": False, "record_views": False}
        prepared = prepare(spec.from_dict(keys), keep=KEPT)
        if self.disjoint is not None:
            held = held_out.tuning_part(replace(prepared.spec, tuning=self.disjoint), prepared.clients)
            smaller = replace(prepared.spec, clients=held.count)
            prepared = replace(prepared, clients=held, spec=smaller, test_clients=None)
        if seed is not None:
            prepared = replace(prepared, spec=replace(prepared.spec, seed=seed))
        return build.from_prepared(prepared)

    def final(self, settings: dict[str, Any]) -> Job:
        """Return the job of the final run of a disjoint search, on all records but those of the trials."""
        keys = self.spec.to_dict() | settings | {"tuning": self.disjoint, "baseline": False}
        return build.from_prepared(prepare(spec.from_dict(keys), keep=KEPT))

    def of_trials(self, trial: Job) -> Event:
        """Return the cost of all trials as one event; with random stopping, of the one that is released."""
        base = trial.plan_cost().event
        if self.disjoint is not None:
            return Repeated(base, self.trials)
        return RandomStopping(base, float(self.trials), self.law, self.eta)


@dataclass(frozen=True)
class PricedSearch:
    """A search with its price, before anything is charged."""

    search: Search
    budget: float  # epsilon of one trial, at the delta of one trial
    job: Job  # a trial with the settings of the file
    cost: Cost  # of the whole search
    epsilon: float  # total
    trial_epsilon: float  # what one trial alone costs, at the delta of the total

    @property
    def guarantee(self) -> Guarantee:
        """The promise of the whole search."""
        return replace(self.job.promise, epsilon=self.epsilon, delta=self.search.spec.delta)

    def sentences(self) -> list[str]:
        """Return what is shown before anything is charged."""
        search, delta = self.search, self.search.spec.delta
        keys = ", ".join(search.space)
        total = f"epsilon = {up(self.epsilon)}, delta = {delta:g}"
        out = [f"Search over {keys}. Total, charged once, before the first trial: {total}."]
        if search.disjoint is None:
            law = selection.in_words(search.trials, search.law, search.eta)
            out += [
                f"Random stopping: the number of trials is drawn from {law} and stays secret; only the best trial is "
                f"released. One trial, with its score, costs epsilon = {up(self.trial_epsilon)} at this delta; a "
                f"single run without a search would get {search.spec.epsilon:g}.",
                "The total holds against anyone who sees the winner and nothing of the other trials: neither them nor "
                "how many there were nor how long they took. A server that takes part in the trials is not covered; "
                "against it, use --disjoint.",
            ]
        else:
            out.append(
                f"Disjoint: {search.trials} trials on {100 * search.disjoint:g} % of the records, each with epsilon = "
                f"{up(self.trial_epsilon)} at this delta; then a final run with epsilon = {search.spec.epsilon:g} on "
                "the other records. No record is in both, so the total is the larger of the two, not their sum."
            )
        text = self.job.evaluation.text or "trials are scored on the public test records, exactly and for free"
        return [*out, f"Score of a trial: {text}."]


def priced(search: Search) -> PricedSearch:
    """Return the search with the largest budget of a trial whose total stays within the epsilon of the spec.

    Raises:
        SpecError: if the search has no finite price, no score, or settings that change the price of a trial.
        BudgetError: if no budget of a trial is small enough.
    """
    wanted = search.spec
    _check(search)
    final = None if search.disjoint is None else search.final({})

    def trials(budget: float) -> float:
        job = search.trial(budget, {})
        return epsilon(search.of_trials(job), job.plan.spendable(wanted.delta))

    try:
        budget = _largest(trials, wanted.epsilon)
    except UnsupportedEvent as error:
        raise SpecError(f"no theorem prices a search with {wanted.method}: {error} Use --disjoint.") from error
    job = search.trial(budget, {})
    if job.evaluation.on is None:
        raise SpecError(f"there is nothing to score trials by, at epsilon {budget:.3g} each: {job.evaluation.text}.")
    same_price(search, job)
    event, total = search.of_trials(job), trials(budget)
    if final is not None:
        event, total = Parallel((event, final.plan_cost().event), by_place=True), max(total, final.promise.epsilon)
    cost = replace(job.plan_cost(), event=event)
    return PricedSearch(search, budget, job, cost, total, epsilon(job.plan_cost().event, wanted.delta))


def _check(search: Search) -> None:
    wanted = search.spec
    job = search.trial(wanted.epsilon, {})
    if not job.method.private or math.isinf(job.promise.epsilon):
        raise SpecError(
            f"{wanted.method} promises no finite epsilon, so there is nothing that a search could stay within. "
            "Use a private method: `sordino methods`."
        )
    if wanted.budgets is not None:
        raise SpecError("tune has one budget for all clients: drop budgets.")
    if wanted.baseline:
        raise SpecError("tune makes private trials only: drop baseline.")
    if search.disjoint is None:
        if job.viewer != "public":
            raise SpecError(
                f"viewer = {job.viewer}: {SERVER}. Drop viewer (the total is then meant for those who see the winner), "
                "or use --disjoint SHARE, which holds against a server too."
            )
    elif job.plan_cost().unit != "record" or wanted.server_data or wanted.tuning:
        raise SpecError(
            "--disjoint divides single records between trials and final run: it needs unit = record, without "
            "server_data and tuning. Use random stopping (drop --disjoint)."
        )


def _largest(total: Callable[[float], float], target: float) -> float:
    """Return the largest epsilon of a trial, to the fraction CLOSE, for which the total is within the target.

    The total is roughly proportional to the epsilon of a trial, so few jobs have to be built."""
    low, high, guess, within = LEAST * target, target, target / 3, 0.0
    for _ in range(STEPS):
        value = total(guess)
        if value <= target:
            low = within = guess
            if value >= (1 - CLOSE) * target:
                break
        else:
            high = guess
        guess *= (1 - CLOSE / 2) * target / value if value else 2.0
        if not low < guess < high:
            guess = math.sqrt(low * high)
    if not within:
        raise BudgetError(
            f"no trial is cheap enough: even with epsilon = {high:.2g} each, the total exceeds {target:g}. Use fewer "
            "trials, or a larger epsilon."
        )
    return within


def same_price(search: Search, base: Job) -> None:
    """Raise SpecError if a setting of the space makes a trial more expensive than the one that was priced."""
    for key, domain in search.space.items():
        for value in domain.ends():
            job = search.trial(base.spec.epsilon, {key: value})
            if not cheaper(job, base) or job.evaluation.on != base.evaluation.on:
                raise SpecError(
                    f"tune cannot search {key}: with {key} = {value} a trial costs more than with the value of the "
                    "file, and all trials must cost the same. Set it in the file."
                )


def cheaper(job: Job, base: Job) -> bool:
    """Return whether a trial costs at most as much as another at every Renyi order."""
    mine, other = job.plan_cost().event, base.plan_cost().event
    return mine == other or bool(np.all(rdp.rdp(mine) <= rdp.rdp(other) * (1 + 1e-9)))
