"""For the owner: the sites of a federation, and which of them did not answer."""

from __future__ import annotations

import math

from sordino.core.rounding import up
from sordino.report.document import Block, DataTable, Listing, Paragraph, Section
from sordino.report.run.fields import RunSources
from sordino.report.run.words import number_of

FILE = "private/federation.json"
MOST = 500


def section(run: RunSources) -> Section | None:
    """Return a table of the sites of a run that took place on real sites."""
    held = run.owner("federation")
    sites = held.parts("sites")
    if not sites:
        return None
    rows: list[tuple[str, ...]] = []
    keys: list[tuple[float | str, ...]] = []
    troubles = []
    silent = 0
    for site in sites[:MOST]:
        counts = [site.count(name) for name in ("participations", "answered", "silent", "failed")]
        epsilon = site.number("epsilon", 0.0)
        name = site.text("name")[:80]
        rows.append((name, *("-" if c is None else f"{c:,}" for c in counts), "-" if epsilon is None else up(epsilon)))
        keys.append(
            (name, *(math.nan if c is None else float(c) for c in counts), math.nan if epsilon is None else epsilon)
        )
        silent += (counts[2] or 0) + (counts[3] or 0)
        if why := site.text("trouble"):
            troubles.append(f"{name}: {why}")
    text = f"This run took place on {number_of(len(sites), 'site')} of a federation."
    text += f" {silent:,} answers were missing." if silent else " Every site answered every request."
    head = (
        "site",
        "rounds answered",
        "answers",
        "no answer in time",
        "failed or refused",
        "epsilon by the site's count",
    )
    note = "A site counts its own rounds, without amplification: its epsilon may be larger than that of the run."
    table = DataTable("Sites", head, tuple(rows), tuple(keys), note=note, source=f"{FILE}: sites")
    blocks: list[Block] = [Paragraph(text), table]
    if troubles:
        blocks += [Paragraph("The last reason why an answer of a site was missing:"), Listing(tuple(troubles[:50]))]
    return Section("sites", "What did the sites do?", tuple(blocks))
