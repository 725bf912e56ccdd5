"""What the seal of a run says on the first page: hashes, commitments, the total over all runs, and the signature.

A report does not check a seal: it says what is written there. `sordino report RUN --verify` checks it.
"""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any

from sordino.report.document import Block, DataTable, FactSheet, Paragraph, Section
from sordino.report.run.fields import Fields, RunSources
from sordino.report.run.words import capital

HEX = re.compile(r"[0-9a-f]{64}\Z")
FILES, MOST = 12, 200  # public files that are listed on the first page, and at all
SHORT = 16  # digits of a hash on the first page
FIRST = {"code": "Code", "spec.toml": "Spec"}  # whose hashes are in full there
WHAT = {"ledger": "the head of the ledger", "private": "the private files and the public seal"}
COMMITS = (
    "a commitment that tells nobody anything, not even who was drawn. The owner opens it, and the one to the private "
    "files, by `sordino report RUN --verify --for owner`."
)
ABOUT = (
    "The run wrote these hashes when it ended. `sordino report RUN --verify` compares them with the files; a "
    "commitment is opened with a key that the owner alone has, and says nothing to anybody else."
)
PROVES = (
    "There is none. Hashes alone prove no author: whoever changes a file can write a new seal. `sordino report RUN "
    "--sign KEY` signs."
)
SIGNED = (
    "A signature lies beside the seal (public/seal.json.sig). This page does not check it: `sordino report RUN "
    "--verify --signers FILE` says whose it is."
)


def hashes(run: RunSources) -> dict[str, str]:
    """Return the hashes in the seal by name: the code, plug-ins, and every public file; {} without a seal."""
    seal = run.seal
    plugins = seal.part("plugins")
    out = {"code": _hex(seal, "code")}
    out |= {f"plug-in {name}": _hex(plugins, name) for name in tuple(plugins.names())}
    names = sorted(seal.part("files").names(), key=lambda name: (name != "spec.toml", name))
    out |= {name: _hex(seal.part("files"), name) for name in names}
    return {name: hash for name, hash in out.items() if hash}


def commitments(run: RunSources) -> dict[str, str]:
    """Return the commitments in the seal: to the head of the ledger, and to the private files."""
    found = {name: _hex(run.seal, name) for name in ("ledger", "private")}
    return {name: text for name, text in found.items() if text}


def hash_of_seal(run: RunSources) -> str:
    """Return the SHA-256 of seal.json as Sordino writes it, which stands for all hashes; "" without a seal."""
    data: Any = run.seal.data
    if not hashes(run):
        return ""
    try:
        return hashlib.sha256((json.dumps(data, indent=2, allow_nan=False) + "\n").encode()).hexdigest()
    except (TypeError, ValueError, RecursionError):
        return ""


def _hex(fields: Fields, key: str) -> str:
    text = fields.text(key)
    if text and not HEX.match(text):
        fields.report(key, "a SHA-256")
        return ""
    return text


def together(run: RunSources) -> str:
    """Return the total over all runs on these data, or why it does not stand here."""
    if told := run.result.text("together"):
        return f"{capital(told.rstrip('.'))}."
    if run.plan.flag("public_data"):
        return "The records are a public benchmark, of which no total is kept."
    if not run.finished:
        return "It is stated when the run has ended."
    return (
        "It is not public, since these data have no name in the ledger: whose data overlap is private. The owner sees "
        "it by `sordino ledger show`."
    )


def without_seal(run: RunSources) -> str:
    """Return why there is no seal."""
    if not run.finished:
        return "There is no seal yet: a run is sealed when it ends."
    return "There is no seal, so nothing shows whether these files were changed since the run wrote them."


def blocks(run: RunSources) -> list[Block]:
    """Return the seal in short, and what is known of other runs on the same data."""
    rows = [("All runs on these data", together(run))]
    owners = run.owner("ledger")
    if owners and (entries := owners.count("entries")) is not None:
        rows.append(("The owner's ledger", f"This run saw its first {entries:,} entries (private/ledger.json)."))
    listed, committed = hashes(run), commitments(run)
    if not listed:
        return [FactSheet((*rows, ("Seal", without_seal(run))), "public/result.json: together")]
    if whole := hash_of_seal(run):
        rows.append(("SHA-256 of the seal", f"{whole}, which stands for all hashes in it"))
    rows += [(f"{title} (SHA-256)", listed[name]) for name, title in FIRST.items() if name in listed]
    others = [f"{name} {hash[:SHORT]}" for name, hash in listed.items() if name not in FIRST]
    if others:
        more = f" and {len(others) - FILES} more" if len(others) > FILES else ""
        rows.append(("Other public files", f"{', '.join(others[:FILES])}{more} (the first digits)"))
    if "ledger" in committed:
        rows.append(("Ledger head", f"{committed['ledger']}: {COMMITS}"))
    rows.append(("Signature", SIGNED if run.records.signed else PROVES))
    return [FactSheet(tuple(rows), "public/result.json: together; public/seal.json")]


def section(run: RunSources) -> Section | None:
    """Return the section with all hashes and commitments in full, for an auditor; None without a seal."""
    listed, committed = hashes(run), commitments(run)
    if not listed:
        return None
    shown = dict(list(listed.items())[:MOST])
    rows = [(f"{name}, Sordino {run.seal.text('sordino')}" if name == "code" else name, h) for name, h in shown.items()]
    table = DataTable(
        "SHA-256 of the code and of the public files", ("What", "Hash"), tuple(rows),
        note=f"{len(listed) - MOST:,} more stand in seal.json." if len(listed) > MOST else "",
        source="public/seal.json: code, plugins, files",
    )  # fmt: skip
    blocks: list[Block] = [Paragraph(ABOUT), table]
    if committed:
        bound = tuple((WHAT[name], text) for name, text in committed.items())
        title = "Commitments of the owner"
        blocks.append(DataTable(title, ("To what", "HMAC-SHA256"), bound, source="public/seal.json: ledger, private"))
    return Section("seal", "The seal", tuple(blocks), folded=True)
