"""Which ledger a job or a run folder names."""

from __future__ import annotations

import os
from pathlib import Path

from sordino.core.errors import RunError
from sordino.runs import home
from sordino.runs.folder import RunFolder
from sordino.runs.job import Job
from sordino.runs.ledger import Ledger


def ledger_path(job: Job) -> Path:
    """The ledger that a new job is charged to."""
    return home.registry() if job.spec.ledger is None else Path(job.spec.ledger).absolute()


def named_ledger(folder: RunFolder) -> tuple[Path, int, str]:
    """The ledger that a run folder names, and the entry that the run saw last; no path means the user's registry."""
    kept = folder.read_json("ledger.json")
    try:
        path = home.registry() if kept["path"] is None else folder.path / kept["path"]
        return Path(os.path.normpath(path.absolute())), int(kept["entries"]), str(kept["head"])
    except (KeyError, TypeError, ValueError) as error:
        raise RunError(f"{folder.path / 'ledger.json'} is damaged.") from error


def opened(folder: RunFolder) -> Ledger:
    """The ledger that a run folder names; with the entry that the run saw last."""
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
