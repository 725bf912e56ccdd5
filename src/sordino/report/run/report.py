"""The report of one run: the first page, then one section for every question that its records answer.

A section is a module of this folder with `section(run) -> Section | None`; None: its records say nothing about it.
What the sections find damaged gathers in `run.damage` and is shown at the top.
"""

from __future__ import annotations

from sordino.report.document import Document
from sordino.report.reading import RunRecords
from sordino.report.run import (
    accuracy,
    attackers,
    attacks,
    audit,
    budget,
    choices,
    convergence,
    environment,
    first_page,
    gaps,
    noise,
    participation,
    sealed,
    sites,
    traffic,
)
from sordino.report.run.fields import RunSources

SECTIONS = (  # in the order of the report
    first_page, attackers, accuracy, convergence, budget, noise, participation, sites, gaps, traffic, choices, attacks,
    audit, environment, sealed,
)  # fmt: skip


def document(records: RunRecords) -> Document:
    """Return the report of a run for whoever its records were read for."""
    run = RunSources(records, list(records.damage))
    found = [module.section(run) for module in SECTIONS]
    sections = tuple(section for section in found if section is not None)
    facts = first_page.facts(run)
    return Document(records.name, _subtitle(run), records.audience, sections, tuple(dict.fromkeys(run.damage)), facts)


def _subtitle(run: RunSources) -> str:
    """Return what was trained on what: "dp-sgd on breast-cancer, 12 rounds, 8 clients"."""
    method, data = run.plan.text("method") or run.spec.text("method"), run.spec.text("dataset")
    what = method + (f" on {data}" if data else "")
    counts = []
    for noun in ("rounds", "clients"):
        if number := run.spec.count(noun, 1):
            counts.append(f"{number:,} {noun if number != 1 else noun[:-1]}")
    return ", ".join(filter(None, (what, *counts)))
