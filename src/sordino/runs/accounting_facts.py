"""The contents of accounting.json: what a run releases against every viewer, as planned, so that anybody can price it.

The epsilons in result.json are the work of one program. An auditor who has this file needs no other: it holds the
privacy event of the whole run for every viewer, and those of its first rounds on a geometric grid, as
privacy/written.py writes them. Like every published epsilon they are those of the plan: none depends on who was drawn.
"""

from __future__ import annotations

import json
from typing import Any

from sordino.core.rounding import up
from sordino.privacy import tightest
from sordino.privacy.accountants import pld
from sordino.privacy.events import Cost, Event
from sordino.privacy.guarantee import Guarantee
from sordino.privacy.written import to_json
from sordino.runs.job import Job

ACCOUNTING = "accounting.json"  # in the public part of a run folder
POINTS = 12  # largest number of rounds on the grid
LARGEST = 950_000  # bytes of all events together


def accounting_facts(job: Job, rounds: int, guarantees: dict[str, Guarantee]) -> dict[str, Any]:
    """Return what a finished run releases against every viewer, as JSON values.

    Args:
        job: the job.
        rounds: the number of rounds of the guarantee, as in result.json.
        guarantees: the guarantees of the run by viewer, as planned.
    """
    room = LARGEST // len(job.viewers)
    return {
        "delta": job.spec.delta,
        "spendable": job.plan.spendable(job.spec.delta),  # the part of delta that the events may use
        "rounds": max((g.rounds for g in guarantees.values()), default=rounds),
        "viewers": {viewer: _of_viewer(job, viewer, rounds, guarantees[viewer], room) for viewer in job.viewers},
    }


def grid(rounds: int, points: int) -> list[int]:
    """Return at most `points` numbers of rounds, geometrically spaced from 1 to `rounds`; the last is always there."""
    if rounds <= 1 or points <= 1:
        return [rounds]
    return sorted({round(rounds ** (i / (points - 1))) for i in range(points)} | {rounds})


def _of_viewer(job: Job, viewer: str, rounds: int, guarantee: Guarantee, room: int) -> dict[str, Any]:
    cost, total = _planned(job, viewer, rounds, last=True)
    facts = {"unit": cost.unit, "relation": cost.relation, "reason": guarantee.reason, "left_out": None}
    last = {"round": guarantee.rounds, "event": to_json(total)}
    size = len(json.dumps(last))
    if size > room:
        why = f"the event of the whole run takes {up(size / 1e6)} MB, since its rounds differ; spec.toml has the plan"
        return facts | {"left_out": why, "spent": []}
    if job.charged_as_a_whole or not rounds:  # from the first round on
        first = [last | {"round": 1}] if guarantee.rounds > 1 and 2 * size <= room else []
        return facts | {"spent": [*first, last]}
    before = [{"round": t, "event": to_json(_planned(job, viewer, t)[1])} for t in _fitting(rounds, size, room)[:-1]]
    return facts | {"spent": [*before, last]}


def _fitting(rounds: int, size: int, room: int) -> list[int]:
    """Return the finest grid of rounds whose events fit; the events of rounds that all differ grow with their number.

    Args:
        rounds: the number of rounds.
        size: the size of the event of all of them, in bytes.
        room: the bytes available.
    """
    each = size / rounds  # the size of a prefix: its part of the whole, and a little for what stands around it
    finest = (grid(rounds, points) for points in range(POINTS, 1, -1))
    fitting = (g for g in finest if sum(min(size, each * t + 500) for t in g[:-1]) + size <= room)
    return next(fitting, [rounds])


def _planned(job: Job, viewer: str, rounds: int, last: bool = False) -> tuple[Cost, Event]:
    """Return the cost of a number of rounds and its event; of several that each bound it, the one that costs least."""
    evaluated = last or job.evaluation.times != 1 or job.may_end  # as in the records of the rounds
    cost, events, _ = job.total(viewer, rounds, job.planned(rounds), evaluated)
    if len(events) == 1:
        return cost, events[0]
    delta, cells = job.plan.spendable(job.spec.delta), pld.FINE if last else pld.ROUGH  # known since the round itself
    return cost, min(events, key=lambda event: tightest.epsilon(event, delta, cells))
