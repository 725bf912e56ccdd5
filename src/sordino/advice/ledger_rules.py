"""Rules of `sordino check` about the ledger; advice/checks.py explains how to write a rule."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

from sordino.advice.case import Case
from sordino.advice.finding import Finding
from sordino.core.errors import BudgetError, SordinoError
from sordino.ledger import home
from sordino.ledger.labels import look_alikes
from sordino.ledger.ledger import Ledger
from sordino.runs import identity
from sordino.runs.paying import plan_charge


def ledger(case: Case) -> Iterator[Finding]:
    """where charges are recorded, and whether a budget over all runs is set"""
    path = case.ledger.absolute()
    if case.method.private and any(path.is_relative_to(t) for t in _temporary()):
        yield Finding(
            "weak",
            f"the ledger {path} is in a temporary folder",
            "once it is deleted, nobody knows what was spent on these data",
            "name a permanent file with ledger = ..., or a permanent folder with SORDINO_HOME",
        )
    if case.method.private and not _has_budget(case.ledger):
        yield Finding(
            "note",
            f"no budget is set in {case.ledger}",
            "every run has its own epsilon; several runs on the same data add up, and nothing stops them",
            "sordino ledger budget --epsilon ... --delta ..."
            + ("" if case.ledger == home.registry() else f" --ledger {case.ledger}"),
        )


def unnamed_data(case: Case) -> Iterator[Finding]:
    """whether your own data have a name in the ledger"""
    if case.method.private and not case.public_data and case.spec.data_name is None:
        yield Finding(
            "note",
            "these data have no name in the ledger",
            "earlier runs on them are found by their rows or ids; data that were changed beyond that, or whose rows "
            "are too alike to tell people apart, count as new",
            "give data_name, and keep it when the data grow",
        )


def spent_already(case: Case) -> Iterator[Finding]:
    """whether earlier runs were charged to the same people, and whether the budget covers this run"""
    if case.job is None or case.flat or not case.method.private or case.public_data or not case.ledger.is_file():
        return
    try:
        if home.read_key() is None:  # a check must not create one
            return
        whose = identity.of_job(case.job, home.units_beside(case.ledger), "")
        book = Ledger(case.ledger, "read")
    except SordinoError as error:
        yield Finding("broken", f"the ledger cannot be used: {error}", "the run would stop", "do what the message says")
        return
    try:
        earlier = book.check(whose.name, plan_charge(case.job), units=whose.units)
        for text in look_alikes(earlier, whose.units):
            known, _, way = text.partition("; that counts here as well. ")
            yield Finding("weak", known, "one person's charges add up, whatever the data are called", way)
    except BudgetError as error:
        yield Finding("broken", str(error), "the run would be refused", "ask for less, or raise the budget")
    finally:
        book.close()


def _temporary() -> list[Path]:
    return [Path(p).resolve() for p in (tempfile.gettempdir(), "/tmp", "/var/tmp", "/dev/shm")]


def _has_budget(path: Path) -> bool:
    if not path.is_file():
        return False
    try:
        book = Ledger(path, "read")
        try:
            return any(book.budget(data) is not None for data in ("", *book.data()))
        finally:
            book.close()
    except SordinoError:
        return False
