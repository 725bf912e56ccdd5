"""What a check of a run against its seal, its signature and its ledger finds; `cli/seal.py` says it in words."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from html import unescape
from pathlib import Path
from typing import Literal

from sordino.cli.ledger import home_of, reference_of
from sordino.cli.signature import SignatureReport, check_signature, plain_bytes
from sordino.core.errors import RunError, SordinoError
from sordino.ledger.chain import Chain
from sordino.report.reading import find, harmless, read_run
from sordino.run_folder.seal import SealReport, check_seal, sealed_part

REPORT = "report.html"
WAIT = 5.0  # seconds to wait for a ledger that is in use
LONGEST = 16_000_000  # bytes of a report that is read
HEADING = re.compile(r"<h1>([^<]{1,5000})</h1>")  # of a report: the name of the run

# kept: the ledger holds the entry that the run saw. cut: it ends before it. gone: the entry was taken out of it.
# other: it has another entry there. missing: there is no such ledger here. damaged: it cannot be read or is not intact.
LedgerState = Literal["kept", "cut", "gone", "other", "missing", "damaged"]
PageState = Literal["same", "renamed", "other", "unreadable"]  # renamed: as written when the run had another name


@dataclass(frozen=True)
class LedgerReport:
    """Whether a ledger still holds what a run saw."""

    state: LedgerState
    path: str = ""
    seen: int = 0  # entries, when the run was sealed
    now: int = 0
    knows: bool = False  # whether it holds the job of the run
    problems: tuple[str, ...] = ()


@dataclass(frozen=True)
class Verification:
    """All that `sordino report --verify` has found."""

    run: str
    seal: SealReport
    signature: SignatureReport
    signers: bool  # whether a file of signers was given
    report: PageState | None  # None: there is no report.html
    called: str  # the name of the run in report.html
    ledger: LedgerReport | None  # None: not asked for, or its commitment does not open

    @property
    def well(self) -> bool:
        """Whether nothing that was asked for differs, and nothing could not be checked."""
        signed = self.signature.verdict in (("vouched",) if self.signers else ("none", "good"))
        kept = self.ledger is None or self.ledger.state == "kept"
        return self.seal.well and signed and kept and self.report in (None, "same", "renamed")


def examine(run: Path, owner: bool = False, signers: Path | None = None) -> Verification:
    """Return what a check of a run finds; see `verify`."""
    run = found_run(run)
    public = sealed_part(run)
    report = checked(run, owner)
    return Verification(
        harmless(str(run)),
        report,
        check_signature(public, signers),
        signers is not None,
        *_page(run, public),
        _ledger(run, report.head) if report.head is not None else None,
    )


def found_run(run: Path) -> Path:
    """Return the folder of a run that a path names; also if its plan is gone, as long as there is a seal."""
    try:
        return find(run)
    except RunError:
        try:
            sealed_part(run)
        except (RunError, OSError, ValueError):
            pass
        else:
            return run
        raise


def checked(run: Path, owner: bool) -> SealReport:
    try:
        return check_seal(run, owner)
    except OSError as error:
        raise RunError(f"{harmless(str(run))} cannot be read: {error.strerror or error}.") from error


# --- the ledger


def _ledger(run: Path, head: tuple[str, int, str]) -> LedgerReport:
    """Return whether the ledger of a run still holds what the run saw; nothing in it is changed."""
    job, seen, hash = head
    try:
        path = home_of(run, reference_of(run))
    except (SordinoError, OSError, TypeError, ValueError) as error:
        return LedgerReport("missing", seen=seen, problems=(harmless(str(error)).rstrip("."),))
    shown = harmless(str(path))
    if not path.is_file():
        return LedgerReport("missing", shown, seen)
    try:
        chain = Chain(path, "read", WAIT)
    except SordinoError as error:
        return LedgerReport("damaged", shown, seen, problems=(harmless(str(error)).rstrip("."),))
    try:
        now, _ = chain.head()
        entry = next(chain.select("id = ?", [seen]), None)
        knows = chain.count("job = ?", [job]) > 0
        problems = tuple(harmless(text) for text in chain.verify())
    except SordinoError as error:
        return LedgerReport("damaged", shown, seen, problems=(harmless(str(error)).rstrip("."),))
    finally:
        chain.close()
    state: LedgerState = "damaged" if problems else "kept"
    if seen and (entry is None or entry.hash != hash):
        state = "other" if entry is not None else "cut" if now < seen else "gone"
    return LedgerReport(state, shown, seen, now, knows, problems)


# --- the report beside the records


def _page(run: Path, public: Path) -> tuple[PageState | None, str]:
    """Return whether report.html is what this installation writes for these records, and the name in it.

    The page names the run, which may have had another name when it was written, and may have had no signature yet.
    """
    path = public / REPORT
    if not os.path.lexists(path):
        return None, ""
    try:
        there = plain_bytes(path, LONGEST)
    except OSError:
        return "unreadable", ""
    from sordino.report.page import page
    from sordino.report.run.report import document

    heading = HEADING.search(there.decode("utf-8", "replace"))
    try:
        records = read_run(run)
    except RunError:  # without its plan
        return "other", ""
    name = unescape(heading[1]) if heading else records.name
    for signed in dict.fromkeys([records.signed, False]):
        if page(document(replace(records, name=name, signed=signed))).encode() == there:
            return ("same" if name == records.name else "renamed"), harmless(name)
    return "other", ""
