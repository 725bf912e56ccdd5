"""The state of a federation of `sordino deploy`, from the files in its folder; nothing is started or asked."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from sordino.deploy import processes, status
from sordino.deploy.folder import Folder, opened
from sordino.report.document import Block, DataTable, Document, FactSheet, Paragraph, Section
from sordino.report.reading import Audience, harmless

OWNERS = ("answered", "silent", "failed", "epsilon", "trouble")  # they tell who was drawn
LEFT_OUT = (
    "How often each site answered, and what it spent, tells who was drawn: it is for the operator alone, who starts "
    "the view with `sordino ui --for owner`."
)


def document(path: Path, audience: Audience) -> Document:
    """Return what is known about a federation.

    Raises:
        RunError: if its roster cannot be read.
    """
    folder = opened(path)
    seen = status.look(folder, ask=False)
    sections = [
        Section("server", "The server", tuple(_server(seen))),
        Section("job", "The newest job", tuple(_job(seen, audience))),
    ]
    heads = tuple(h for h in status.HEADS if h != "node" and (audience == "owner" or h not in OWNERS))
    rows = tuple(tuple(harmless(v) for h, v in zip(status.HEADS, row, strict=True) if h in heads) for row in seen.rows)
    table: list[Block] = [
        DataTable("Sites", heads, rows, rows, _note(folder), "federation.toml, private/federation.json")
    ]
    table += [] if audience == "owner" else [Paragraph(LEFT_OUT, "quiet")]
    sections.append(Section("sites", "The sites", tuple(table)))
    roster = folder.roster()
    where = f"{len(roster.sites)} sites, server at {roster.host}:{roster.port}"
    return Document(harmless(roster.name), harmless(where), audience, tuple(sections))


def _server(seen: status.FederationState) -> Iterator[Block]:
    yield FactSheet(tuple((name, state) for name, state in seen.server.items()), "server/state/processes.json")


def _job(seen: status.FederationState, audience: Audience) -> Iterator[Block]:
    job = seen.job
    if job is None:
        yield Paragraph("No job has started yet: `sordino deploy run` starts one.")
        return
    place = "no round yet" if job.done is None else f"round {job.done} of {job.rounds}"
    if audience == "owner":
        place = job.sentence()
    yield FactSheet(
        (("Run", harmless(job.folder.name)), ("Progress", harmless(place)), ("Last written", harmless(job.updated)))
    )
    lines = status.result_lines(job.folder)
    for line in lines if audience == "owner" else lines[:-1]:  # the last one names folders of this machine
        yield Paragraph(harmless(line))


def _note(folder: Folder) -> str:
    started = len(processes.read(folder.state))
    text = "A site that runs on another machine is shown as elsewhere."
    return text if started else f"{text} Nothing was started here: `sordino deploy up` starts the server."
