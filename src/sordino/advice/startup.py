"""What a run says before it starts: what `sordino check` would call broken or weak, by the rules that cost nothing.

A run is not refused for it: a large delta or a hopeless epsilon may be what an experiment is about. It is said before
anything is charged, with the fix, so that nobody learns it from a useless model. The rules read public facts only: the
spec, the plan and the numbers of records and clients. The number of users may be private, so no rule gets it."""

from __future__ import annotations

from sordino.advice import checks
from sordino.advice.case import Case
from sordino.advice.finding import Finding
from sordino.runs.job import Job

RULES = (checks.unprotected_viewer, checks.delta_too_large, checks.epsilon_large, checks.usefulness)


def findings(job: Job) -> list[Finding]:
    """Return what is broken or weak about a job that is ready to start, the worst first."""
    facts = job.federation.facts
    case = Case(job.spec, job, clients=facts.population, records=facts.units("record"))
    found = [f for rule in RULES for f in rule(case) if f.severity != "note"]
    return sorted(found, key=lambda f: f.severity)  # "broken" comes before "weak"


def lines(job: Job) -> list[str]:
    """Return the findings and the notes of a job in words, one line each."""
    warned = findings(job)
    said = [f"Warning ({f.severity}): {f.found}: {f.why}. To fix it, {f.fix}." for f in warned]
    large_delta = any(f.found.startswith("delta") for f in warned)  # the job has a note about it too
    return said + [f"Note: {note}" for note in job.notes if not (large_delta and note.startswith("delta = "))]
