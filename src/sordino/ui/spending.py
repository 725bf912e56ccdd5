"""The ledger as the page shows it: what was spent by data and run, the totals, and whether its chain is intact.

It is for the owner alone: totals count people who are in the data of several names, and whose data overlap is private.
A ledger belongs to the runs that are charged to it. SQLite writes beside a file even if it only reads it, so the server
copies the ledger into a folder of its own, reads the copy, and removes it at once.
"""

from __future__ import annotations

import math
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sordino.core.errors import RunError
from sordino.core.rounding import up
from sordino.ledger import home
from sordino.ledger.account import ids
from sordino.ledger.chain import Entry
from sordino.ledger.ledger import Ledger
from sordino.report.document import Block, DataTable, Document, FactSheet, Paragraph, Section
from sordino.report.reading import harmless
from sordino.ui import shelf
from sordino.ui.overview import short

CLOSED = (
    "the ledger is for the owner of the data: its totals tell whose data overlap, and its entries tell when runs took "
    "place. Start the view with `sordino ui --for owner`. What may be public of it stands in the report of each run."
)
PAGE = 50  # charges of one data set on a page
TRIES = 20  # copies until one was not written to meanwhile


def places(folders: tuple[Path, ...]) -> list[Path]:
    """Return the ledgers that may be shown: the registry of this user, and those of comparisons in the folders."""
    found = [home.registry(), *(folder / "ledger.sqlite" for folder in folders)]
    return [path for path in dict.fromkeys(found) if path.is_file()]


def mark(path: Path) -> tuple[Any, ...]:
    """Return what differs once a ledger has changed."""
    return tuple(shelf.mark(file) for file in _files(path))


def _files(path: Path) -> list[Path]:
    units = home.units_beside(path)
    return [file for name in (path, units) for file in (name, Path(f"{name}-wal"))]


@contextmanager
def copied(path: Path) -> Iterator[Ledger]:
    """Open a copy of a ledger as it stands.

    Raises:
        RunError: if there is none, it cannot be read, or it is no ledger.
    """
    with tempfile.TemporaryDirectory(prefix="sordino-") as folder:
        target = Path(folder) / "ledger.sqlite"
        _copy(path, target)
        try:
            book = Ledger(target, "read")
        except RunError as error:
            raise RunError(str(error).replace(str(target), harmless(str(path)))) from error
        try:
            yield book
        finally:
            book.close()


def _copy(path: Path, target: Path) -> None:
    """Copy the file and its log of changes, such that together they are the ledger at one moment.

    Writers append to the log, which a reader of the copy takes up to its last whole transaction. Only when the log is
    merged into the file, which changes the time of the file, can a copy be inconsistent: then it is made anew.
    """
    pairs = [(path, target), (home.units_beside(path), home.units_beside(target))]
    for _ in range(TRIES):
        before = [(shelf.mark(a), shelf.mark(Path(f"{a}-wal"))[:1]) for a, _ in pairs]
        for a, b in pairs:
            for suffix in ("", "-wal"):
                try:
                    shutil.copyfile(f"{a}{suffix}", f"{b}{suffix}")
                except FileNotFoundError as error:
                    Path(f"{b}{suffix}").unlink(missing_ok=True)
                    if (a, suffix) == (path, ""):
                        raise RunError(f"there is no ledger {harmless(str(path))}.") from error
                except OSError as error:
                    raise RunError(f"the ledger {harmless(str(path))} cannot be read ({error.strerror}).") from error
        if before == [(shelf.mark(a), shelf.mark(Path(f"{a}-wal"))[:1]) for a, _ in pairs]:
            return
    raise RunError(f"the ledger {harmless(str(path))} is being written to all the time. Try again in a moment.")


def document(path: Path, page: int) -> Document:
    """Return what a ledger holds, for the owner.

    Args:
        path: the ledger.
        page: which charges of every data set, from 1.
    """
    with copied(path) as book:
        entries, head = book.chain.head()
        names = book.data()
        facts = FactSheet((
            ("Ledger", harmless(str(path))), ("Entries", f"{entries:,}"), ("Head of the chain", head),
            ("Data sets", f"{len(names):,}"),
        ))  # fmt: skip
        sections = [Section("ledger", "The ledger", (facts,))]
        for k, name in enumerate(names):
            sections.append(
                Section(f"data-{k + 1}", short(name), tuple(_of_data(book, name, page)), len(names) > 6 and k > 0)
            )
    if not names:
        sections.append(Section("nothing", "Charges", (Paragraph("Nothing has been charged to this ledger yet."),)))
    return Document("Ledger", harmless(str(path)), "owner", tuple(sections))


def _of_data(book: Ledger, data: str, page: int) -> Iterator[Block]:
    yield _totals(book, data)
    if (budget := book.budget(data)) is not None:
        left = ", ".join(f"{k} {v:.4g}" for k, v in (book.left(data) or {}).items()) or "nothing"
        yield Paragraph(
            f"Budget: epsilon <= {budget.epsilon:g} at delta = {budget.delta:g} ({budget.theory}). Left: {left}."
        )
    charges = book.charges(data)[::-1]
    pages = max(1, -(-len(charges) // PAGE))
    page = min(max(page, 1), pages)
    shown = charges[(page - 1) * PAGE : page * PAGE]
    heads = (
        "run",
        "purpose",
        "kind",
        "epsilon",
        "delta",
        "unit",
        "relation",
        "viewer",
        "rounds",
        "time (UTC)",
        "clients",
    )
    rows = [_row(book, entry) for entry in shown]
    note = f"Page {page:,} of {pages:,}; the newest of {len(charges):,} charges first." if pages > 1 else ""
    yield DataTable("Charges", heads, tuple(r for r, _ in rows), tuple(k for _, k in rows), note)


def _totals(book: Ledger, data: str) -> DataTable:
    rows, keys = [], []
    for total in book.totals(data):
        view, epsilon = total["view"], total["epsilon"]
        words = (f"a {short(view.unit)}", short(view.relation), short(view.viewer))
        without = len(total["without"])
        rows.append(
            (*words, "no guarantee" if math.isinf(epsilon) else up(epsilon), f"{total['delta']:g}", f"{without:,}")
        )
        keys.append((*words, min(epsilon, 1e300), total["delta"], without))
    header = ("protects", "relation", "from", "epsilon", "delta", "charges without a guarantee there")
    note = "The sum over all charges to whoever was charged most, for every view in which any sum is finite."
    return DataTable("Together", header, tuple(rows), tuple(keys), note)


def _row(book: Ledger, entry: Entry) -> tuple[tuple[str, ...], tuple[float | str, ...]]:
    what = entry.details()
    run = short(str(what.get("run") or entry.job))
    epsilon = math.inf if entry.epsilon is None else entry.epsilon
    delta = entry.delta or 0.0
    rounds, done = "", 0
    if entry.kind == "plan" and "origin" not in what:  # rounds of imported jobs stay in their ledgers
        done = book.chain.count("job = ? AND kind = 'round'", [entry.job])
        rounds = f"{done:,} of {what.get('rounds')}"
    left = (run, short(str(what.get("purpose", ""))), entry.kind)
    middle = (short(entry.unit), short(entry.relation), short(entry.viewer))
    clients = None if entry.owners is None else len(ids(entry.owners))
    time, who = short(entry.time[:16].replace("T", " ")), "all" if clients is None else f"{clients:,}"
    row = (*left, up(epsilon), f"{delta:g}", *middle, rounds, time, who)
    key = (*left, min(epsilon, 1e300), delta, *middle, done, entry.time, "" if clients is None else clients)
    return row, key


def checked(path: Path) -> dict[str, Any]:
    """Return whether the chain of a ledger is intact, in a sentence."""
    with copied(path) as book:
        problems = [text.replace(str(book.path), harmless(str(path))) for text in book.chain.verify()]
        entries, _ = book.chain.head()
    if problems:
        said = "; ".join(harmless(p) for p in problems[:5])
        return {"intact": False, "sentence": f"The chain is broken: {said}."}
    return {
        "intact": True,
        "sentence": f"The chain of {entries:,} {'entry' if entries == 1 else 'entries'} is intact.",
    }
