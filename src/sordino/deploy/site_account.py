"""The account of a job in a site's own ledger: the whole job is charged before the first round, each round before work.

The ledger is the site's, and so is the price. Rounds come in order and each is answered once; a round that was paid for
and not answered, because the site failed in between, is not paid for again, since nothing left.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sordino.core.errors import BudgetError, RunError
from sordino.deploy.agreement import Agreement
from sordino.deploy.answers import Answers
from sordino.deploy.policy import Policy
from sordino.deploy.refusal import Refusal
from sordino.deploy.site_data import SiteData
from sordino.deploy.site_price import charge, own, participations
from sordino.ledger import home, keys
from sordino.ledger.account import Account
from sordino.ledger.charges import Charge
from sordino.ledger.labels import BENCHMARK
from sordino.ledger.ledger import Budget, Ledger
from sordino.privacy.events import Cost
from sordino.runs import identity
from sordino.runs.identity import Whose
from sordino.runs.job import Job

LEDGER = "ledger.sqlite"
NAME = "site"  # name of a site's own data in its ledger
TOTAL = "the total budget of this site does not cover the job"


@dataclass(frozen=True)
class JobPlan:
    """What a job asks of a site, as its ledger needs to know it."""

    id: str
    whole: Charge  # the price of all rounds in which the site may take part
    rounds: int  # their number
    purpose: str
    mode: str  # where the noise comes from: research or secure


def planned(id: str, job: Job, policy: Policy, clients: Sequence[int]) -> JobPlan:
    """Return the plan of a job of Sordino for these clients; raise Refusal if the policy does not pay for it."""
    mine = own(job, clients)
    rounds = participations(mine, policy, clients)
    return JobPlan(id, charge(mine, rounds), rounds, job.spec.method, job.mode)


def people(job: Job, data: SiteData, site: Path, agreement: Agreement) -> Whose:
    """Return who is in the data of this site, by which its ledger adds up jobs."""
    if data.benchmark:
        return anyone(data)
    units = home.units_beside(site / LEDGER)
    _, read = data.records(agreement.asked, agreement.schema)
    unit = job.plan_cost().unit
    return Whose(NAME, identity.of_raw(read.data.private_rows(), unit, NAME, keys.require_key(units)))


def anyone(data: SiteData) -> Whose:
    """Return the data of this site as a whole, under the one name that all its jobs have."""
    return Whose(BENCHMARK + data.source if data.benchmark else NAME, None)


class SiteAccount:
    """The charges and the answers of one job at one site.

    Args:
        plan: what the job asks for.
        policy: what the site allows in total.
        whose: who is in the data.
        site: the private folder of the site, with its ledger.
        folder: the folder of the job.
    """

    def __init__(self, plan: JobPlan, policy: Policy, whose: Whose, site: Path, folder: Path) -> None:
        self._ledger = Ledger(site / LEDGER)
        try:
            self._account = self._charged(plan, policy, whose)
            self.answers = Answers(folder / "answers.sqlite")
        except BaseException:
            self._ledger.close()
            raise

    def _charged(self, plan: JobPlan, policy: Policy, whose: Whose) -> Account:
        try:
            self._set_budget(policy, whose.name)
            return self._ledger.open_job(
                plan.id[:32],
                whose.name,
                plan.whole,
                plan.rounds,
                plan.rounds,
                repeatable=False,
                units=whose.units,
                purpose=plan.purpose,
                mode=plan.mode,
            )
        except BudgetError as error:
            error.public = f"{TOTAL}."
            raise

    def _set_budget(self, policy: Policy, name: str) -> None:
        """Set the total budget of the policy; a policy without a limit needs a ledger without one."""
        before = self._ledger.budget(name)
        if policy.epsilon_total == math.inf:
            if before is not None:
                raise Refusal("the policy of this site has no total any more, but its ledger has: use a new ledger.")
            return
        wanted = Budget(policy.epsilon_total, policy.delta_total, "plans", None)
        if before != wanted:
            self._ledger.set_budget(wanted, name)

    def in_order(self, round: int, phase: str, phases: tuple[str, ...]) -> None:
        """Raise Refusal unless a phase comes after all that was answered, and after the phases before it."""
        last = self.answers.last
        if round < last:
            raise Refusal(f"round {round + 1} was asked for after round {last + 1} was answered.")
        for earlier in phases[: phases.index(phase)]:
            if not self.answers.has(f"round {round + 1}, {earlier}"):
                raise Refusal(f"the phase {phase} was asked for before the phase {earlier} of the same round.")

    def pay(self, round: int, clients: list[int], cost: Cost) -> None:
        """Charge a round, durably, unless it was paid for and not answered."""
        if not self._account.has_paid(round):
            self._account.spend(round, np.asarray(clients, dtype=np.int64), cost)

    @property
    def rounds(self) -> int:
        """The number of rounds that were charged."""
        return self._account.charged

    @property
    def most(self) -> int:
        """The number of rounds in which the policy lets the site take part."""
        return self._account.rounds

    def close(self) -> None:
        """Close the files."""
        if hasattr(self, "answers"):
            self.answers.close()
        self._ledger.close()


def read_ledger(site: Path) -> Ledger:
    """Return the ledger of a site, to read; raise RunError if it has none."""
    if not (site / LEDGER).is_file():
        raise RunError(f"{site} has no ledger: no job was opened there.")
    return Ledger(site / LEDGER, "read")
