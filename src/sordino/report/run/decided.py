"""The decisions of a method, read from the owner's records without trusting any field of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sordino.report.chart import Point
from sordino.report.run.fields import WHOLE, Fields, RunSources
from sordino.report.run.lines import real

FILE = "private/records.jsonl"


@dataclass(frozen=True)
class Decision:
    """What the method decided in a round."""

    round: int
    fields: dict[str, Any]

    def read(self) -> Fields:
        """Return the fields for reading them one by one; damage in them is not gathered."""
        return Fields(f"{FILE} (round {self.round:,})", self.fields, [], "decided")


def decisions(run: RunSources) -> list[Decision]:
    """Return the decisions of all rounds that have one; [] in a report for the public."""
    owner = run.records.owner
    if owner is None or not run.owners:
        return []
    return [Decision(r.round, r.decided) for r in owner.rounds if r.decided and r.round <= WHOLE]


def column(found: Sequence[Decision], *keys: str) -> tuple[Point, ...]:
    """Return a number by round that stands under these keys, one inside the other; rounds without it are left out."""
    out = []
    for decision in found:
        value: Any = decision.fields
        for key in keys:
            value = value.get(key) if isinstance(value, dict) else None
        if value is not None:
            out.append((float(decision.round), real(value)))
    return tuple(out)


def places(found: Sequence[Decision], key: str) -> list[tuple[Point, ...]]:
    """Return the numbers of a list by round, one curve for each place; lists of another length are left out."""
    lists = [(d.round, v) for d in found if isinstance(v := d.fields.get(key), list) and v]
    if not lists:
        return []
    length = len(lists[-1][1])
    fitting = [(r, v) for r, v in lists if len(v) == length]
    return [tuple((float(r), real(v[k])) for r, v in fitting) for k in range(min(length, 64))]


def clients(decision: Decision) -> dict[int, dict[str, Any]]:
    """Return the fields of every client of a round."""
    each = decision.fields.get("clients")
    if not isinstance(each, dict):
        return {}
    named = {str(c): entry for c, entry in each.items() if isinstance(entry, dict)}
    return dict(sorted((int(c), e) for c, e in named.items() if c.isdecimal() and len(c) < 10))


def known(points: Sequence[Point]) -> bool:
    """Return whether any value is known."""
    return any(math.isfinite(y) for _, y in points)
