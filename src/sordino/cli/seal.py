"""Checking and signing a run: `sordino report RUN --verify` and `sordino report RUN --sign KEY`.

Everybody can ask whether the public files are those that were sealed, whether a signature fits and whose it is, whether
the report beside them shows these records, and whether this installation is the code that ran. The owner can also open
the two commitments and ask whether the ledger still holds what the run saw.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from sordino.cli.signature import make_signature
from sordino.cli.verification import REPORT, LedgerReport, Verification, checked, examine, found_run
from sordino.core.errors import RunError
from sordino.core.parts import PRIVATE
from sordino.report.reading import harmless
from sordino.report.run.words import joined, number_of
from sordino.run_folder.seal import SIGNATURE, SealReport, sealed_part

SHOWN = 8  # names of files in one line


def verify(run: Path, *, owner: bool = False, signers: Path | None = None, as_json: bool = False) -> bool:
    """Check a run against its seal, print what was found and return whether all is well.

    Args:
        run: the folder of a run, a copy of its public part, or one of its two parts.
        owner: whether to open the commitments to the private files and to the ledger with the key of the run.
        signers: a file that says whose keys are whose, as `ssh-keygen -Y verify` reads it.
        as_json: whether to print JSON.

    Raises:
        RunError: if there is no run, no seal, a damaged one, or what is asked for cannot be read at all.
    """
    found = examine(run, owner, signers)
    if as_json:
        click.echo(json.dumps(_plain(found), indent=2))
    else:
        for line in lines(found):
            click.echo(line)
    return found.well


def sign(run: Path, key: Path) -> None:
    """Sign the seal of a run with a key of OpenSSH; it must fit the files.

    Raises:
        RunError: if the files are not those that were sealed, or the key cannot be used.
    """
    run = found_run(run)
    public = sealed_part(run)
    report = checked(run, owner=public != run and (run / PRIVATE).is_dir())
    if not report.well:
        raise RunError(
            f"{harmless(str(run))} is not as it was sealed, so it was not signed. "
            f"`sordino report {harmless(str(run))} --verify` says what differs."
        )
    made = make_signature(public, key)
    click.echo(
        f"{public / SIGNATURE}: the seal is signed by the {made.kind} key {made.fingerprint}. Whoever has the "
        "public key checks it by `sordino report RUN --verify --signers FILE`."
    )


# --- in words


def lines(found: Verification) -> Iterator[str]:
    """Yield what a check has found, one sentence or two for each question."""
    seal = found.seal
    yield f"Public files: {_of_public(seal)}"
    yield f"Code: {_of_code(seal)}"
    yield f"Signature: {_of_signature(found)}"
    if found.report is not None:
        yield f"Report: {_of_report(found)}"
    if seal.private is not None:
        yield f"Private files: {_of_private(seal)}"
        yield f"Ledger: {_of_ledger(found)}"
    if found.well:
        yield "All is well." + ("" if found.signature.verdict == "vouched" else f" {UNSIGNED[found.signature.verdict]}")
    else:
        yield "Not all is well. Do not rely on this folder before what stands above is explained."


UNSIGNED = {
    "none": "The files fit the seal; who made the seal, nothing here proves.",
    "good": "The files fit the seal and the seal was signed; whose key it is, you have to know from elsewhere.",
}


def _of_public(seal: SealReport) -> str:
    said = []
    for names, what in ((seal.changed, "changed"), (seal.missing, "missing"), (seal.added, "added since")):
        if names:
            said.append(f"{_named(names)} {'was' if len(names) == 1 else 'were'} {what}")
    good = f"{number_of(len(seal.intact), 'file')} {'is' if len(seal.intact) == 1 else 'are'} as sealed"
    text = (
        f"{good}." if not said else f"{good}, but {joined([s.replace('were missing', 'are missing') for s in said])}."
    )
    return text.replace("was missing", "is missing")


def _of_code(seal: SealReport) -> str:
    text = f"sealed by Sordino {seal.version}, "
    text += (
        "with the same sources as this installation."
        if seal.same_code
        else ("whose sources are not those of this installation. That is no fault: the hash in the seal names them.")
    )
    if seal.plugins:
        text += f" The run used plug-ins outside the package ({_named(seal.plugins)}); the seal has their hashes."
    return text


def _of_signature(found: Verification) -> str:
    report = found.signature
    key = f"the {report.kind} key {report.fingerprint}"
    match report.verdict:
        case "none":
            text = "there is none. Hashes show that nothing changed since the seal was written, and not who wrote it."
            return f"{text} One was asked for." if found.signers else text
        case "unchecked":
            return f"there is one, which could not be checked: {report.said}."
        case "bad":
            return f"there is one, and it does not fit this seal: {report.said}."
        case "vouched":
            return f"good, by {report.signer}, as the file of signers says ({key})."
        case "stranger":
            return f"it fits the seal, but the file of signers does not name {key} for sordino-report at this time."
        case _:
            return f"good under {key}. Nobody vouches here for whose key that is: name a file by --signers."


def _of_report(found: Verification) -> str:
    match found.report:
        case "same":
            return f"{REPORT} shows these records."
        case "renamed":
            return f"{REPORT} shows these records; the run was then called {found.called}."
        case "unreadable":
            return f"{REPORT} cannot be read, or is not a plain file."
        case _:
            files = found.seal.changed or found.seal.missing
            why = "the records or the page were changed" if files else "it was changed, or written by another version"
            again = "" if files else f" `sordino report {found.run}` writes it again."
            return f"{REPORT} is not what this installation writes for these records: {why}.{again}"


def _of_private(seal: SealReport) -> str:
    said = []
    if not seal.private:
        said.append("the commitment does not open with the key of the run: the seal or the key is not the run's own")
    if seal.latest is False:
        said.append("the public seal is not the one that was written last: it was changed, or an earlier one put back")
    if seal.private_changed:
        said.append(f"{_named(seal.private_changed)} changed or went missing")
    return f"{joined(said)}." if said else "as sealed, and the commitment opens with the key of the run."


def _of_ledger(found: Verification) -> str:
    ledger = found.ledger
    if ledger is None:
        return "its commitment does not open with the key of the run, so nothing was compared."
    seen = f"entry {ledger.seen:,}, the last that the run saw"
    match ledger.state:
        case "kept":
            since = ledger.now - ledger.seen
            moved = f"; it has moved on by {since:,} {'entry' if since == 1 else 'entries'} since"
            end = moved if since else ", and nothing was added since"
            return f"{ledger.path} is intact and still holds {seen}{end}."
        case "missing":
            why = f" ({ledger.problems[0]})" if ledger.problems else ""
            where = ledger.path or "the ledger of the run"
            return f"{where} is not here{why}, so nothing was compared. SORDINO_HOME says where the registry is."
        case "cut":
            ends = f"{ledger.path} ends at entry {ledger.now:,}, before {seen}"
            return f"{ends}: its end was cut off, or an old copy put back."
        case "gone":
            return f"{ledger.path} lacks {seen}: it was pruned. A ledger is never pruned by Sordino."
        case "other":
            known = (
                "though it knows this run: it was rewritten." if ledger.knows
                else "and does not know this run: it is another ledger, or was rewritten."
            )  # fmt: skip
            return f"{ledger.path} holds other contents at {seen}, {known}"
        case _:
            return f"{ledger.path} is damaged: {'; '.join(ledger.problems[:3])}."


def _named(names: tuple[str, ...]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    shown = [harmless(name)[:80] for name in names[:SHOWN]]
    return ", ".join(shown) + more if more else joined(shown)


def _plain(found: Verification) -> dict[str, Any]:
    """Return what a check has found as JSON values; what was not asked for is null."""
    seal, signature = found.seal, found.signature
    private = {"opens": seal.private, "changed": [*map(harmless, seal.private_changed)], "latest": seal.latest}
    return {
        "kind": "sordino verification",
        "well": found.well,
        "run": found.run,
        "sealed_by": seal.version,
        "same_code": seal.same_code,
        "plugins": list(seal.plugins),
        "public": {n: [*map(harmless, getattr(seal, n))] for n in ("intact", "changed", "missing", "added")},
        "signature": asdict(signature),
        "report": found.report,
        "private": None if seal.private is None else private,
        "ledger": None if seal.ledger is None else {"opens": seal.ledger} | _facts(found.ledger),
    }


def _facts(ledger: LedgerReport | None) -> dict[str, Any]:
    return {} if ledger is None else asdict(ledger) | {"problems": list(ledger.problems)}
