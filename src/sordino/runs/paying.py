"""Access of a job to its ledger: whether the budgets can pay for it, and the account that it is charged to."""

from __future__ import annotations

import os
from pathlib import Path

from sordino.core.errors import BudgetError, RunError
from sordino.ledger import home, labels
from sordino.ledger.account import Account
from sordino.ledger.ledger import Charge, Ledger
from sordino.ledger.units import UnitStore
from sordino.run_folder.folder import RunFolder
from sordino.runs import identity
from sordino.runs.identity import Whose
from sordino.runs.job import Job


def ledger_path(job: Job) -> Path:
    """Return the path of the ledger that a new job is charged to."""
    return home.registry() if job.spec.ledger is None else Path(job.spec.ledger).absolute()


def named_ledger(folder: RunFolder) -> tuple[Path, int, str]:
    """Return the ledger that a run folder names; if it names no path, this is the user's registry.

    Returns:
        The path, the number of entries that the run saw last, and the hash of the last of them.
    """
    data = folder.read_json("ledger.json")
    try:
        path = home.registry() if data["path"] is None else folder.path / data["path"]
        return Path(os.path.normpath(path.absolute())), int(data["entries"]), str(data["head"])
    except (KeyError, TypeError, ValueError) as error:
        raise RunError(f"{folder.path / 'ledger.json'} is damaged.") from error


def opened(folder: RunFolder) -> Ledger:
    """Open the ledger that a run folder names; it must contain the entry that the run saw last."""
    path, entries, head = named_ledger(folder)
    if entries and not path.is_file():
        raise RunError(f"the ledger {path} of this run is gone; it had {entries} entries. Put it back.")
    book = Ledger(path)
    try:
        book.chain.expect(entries, head)
    except RunError:
        book.close()
        raise
    return book


def plan_charge(job: Job) -> Charge:
    """Return the charge for the whole plan of a job, against the viewer of its budget."""
    return Charge(job.plan_cost(), job.promise.epsilon, job.spec.delta)


def whose_data(job: Job, exact: str, at: Path | None) -> Whose:
    """Return whose data a job uses, for the ledger that it is or was charged to.

    Args:
        job: the job.
        exact: the digest of its data that does not depend on their order (`fingerprints`).
        at: the run folder of a job that was charged before; None: a new job.
    """
    path = ledger_path(job) if at is None else named_ledger(RunFolder(at))[0]
    require_both(path)
    return identity.of_job(job, home.units_beside(path), exact)


def require_both(path: Path) -> None:
    """Raise RunError if only one exists of a ledger and the file that says whose data it charged.

    With half of a registry, everyone's budget would silently start again in full.
    """
    units = home.units_beside(path)
    there = path.is_file() and path.stat().st_size > 0
    way = "Put it back (`sordino ledger restore`), or move the other away too, to start from nothing."
    if there and not units.is_file():
        book = Ledger(path, "read")
        try:
            plans = [e for e in book.chain.select("kind = 'plan'") if not e.data.startswith(labels.BENCHMARK)]
        finally:
            book.close()
        if known := sum("fingerprint" not in e.details() for e in plans):  # imported entries have no units
            raise RunError(f"{units} is gone, which says whose data {known} runs in {path} were charged to. {way}")
    if not there and units.is_file():
        store = UnitStore(units, "read")
        try:
            jobs = len(store.members())
        finally:
            store.close()
        if jobs:
            raise RunError(f"the ledger {path} is gone or empty, but {units} knows the data of {jobs} runs. {way}")


def afford(job: Job, whose: Whose) -> None:
    """Raise BudgetError if the budgets of the data cannot pay for a job; called before there is a run folder."""
    path = ledger_path(job)
    if not path.is_file():
        return
    book = Ledger(path)
    try:
        book.check(whose.name, plan_charge(job), units=whose.units)
        if job.spec.baseline and job.method.private and book.budgets(whose.name, whose.units):
            raise BudgetError(
                f"{path}: these data have a budget, which allows no baseline without privacy. Drop baseline."
            )
    finally:
        book.close()


def account(book: Ledger, folder: RunFolder, job: Job, whose: Whose) -> Account:
    """Return the account of a run in the ledger; the first call charges the whole plan."""
    plan, mode = job.plan, job.spec.mode
    pages = book.open_job(
        str(folder.read_json("ledger.json")["job"]),
        whose.name,
        plan_charge(job),
        plan.rounds,
        plan.participations,
        repeatable=mode == "research",
        caps=job.caps,
        units=whose.units,
        purpose=job.spec.method,
        run=folder.path.name,
        mode=mode,
    )
    folder.note_ledger(pages.head())
    return pages
