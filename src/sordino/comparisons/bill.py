"""What a comparison on one's own data will be charged: shown before its first run.

Every cell is a run of its own, and every run is charged to the same records: what a table with four methods, three
epsilons and five seeds costs is the sum of sixty runs, not the epsilon in its heading.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from sordino.advice import case
from sordino.advice.case import Case
from sordino.comparisons.compare import Cell
from sordino.core.parts import PUBLIC, locate
from sordino.core.rounding import up
from sordino.ledger import home
from sordino.privacy.guarantee import RELATIONS, UNITS, Guarantee
from sordino.runs.folder import RunFolder


@dataclass(frozen=True)
class Total:
    """Plain sums over the runs whose guarantee is about the same unit, relation and viewer."""

    unit: str
    relation: str
    viewer: str
    runs: int
    epsilon: float  # at most: noise is calibrated to stay within what was asked
    delta: float

    def words(self) -> str:
        whose = f"{UNITS.get(self.unit, self.unit)} ({RELATIONS.get(self.relation, self.relation)})"
        return (
            f"{self.runs} with at most epsilon = {up(self.epsilon)}, delta = {self.delta:g} in total (plain sums) for "
            f"{whose} against the {self.viewer}"
        )


@dataclass(frozen=True)
class Bill:
    """What all runs of a comparison are charged, and where."""

    ledger: str
    runs: int
    begun: int  # runs of an interrupted comparison that the ledger holds already
    totals: tuple[Total, ...]
    without: tuple[str, ...]  # a method a run, of those whose epsilon is infinite

    def sentence(self, where: bool = True) -> str:
        """Say it in words; without `where`, which ledger it is stays with the owner of the data."""
        parts = [t.words() for t in self.totals]
        if self.without:
            parts.append(f"{len(self.without)} without any guarantee ({', '.join(dict.fromkeys(self.without))})")
        before = f" ({self.begun} begun before)" if self.begun and where else ""
        runs = "1 run is" if self.runs == 1 else f"{self.runs} runs are"
        return (
            f"These are your own data: {runs} charged to {self.ledger if where else 'them'}{before}: "
            f"{'; '.join(parts)}. The noise comes from seeds: experiments, void against anyone who knows the seeds."
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "ledger": self.ledger,
            "runs": self.runs,
            "begun": self.begun,
            "totals": [asdict(t) for t in self.totals],
            "without_guarantee": {"runs": len(self.without), "methods": list(dict.fromkeys(self.without))},
            "sentence": self.sentence(),
        }


def bill(folder: RunFolder, found: Sequence[Cell], sketched: Mapping[str, Case]) -> Bill | None:
    """What the cells are charged together; None on a shipped benchmark, whose records are public."""
    if all(one.public_data for one in sketched.values()):
        return None
    sums: dict[tuple[str, str, str], list[tuple[float, float]]] = {}
    without = []
    for cell in found:
        promise = _promise(cell, sketched[cell.method])
        if promise is not None and math.isinf(promise.epsilon):
            without.append(cell.method)
        elif promise is not None:
            view = promise.unit, promise.relation, promise.viewer
            sums.setdefault(view, []).append((promise.epsilon, promise.delta))
    totals = tuple(
        Total(*view, len(each), math.fsum(e for e, _ in each), math.fsum(d for _, d in each))
        for view, each in sums.items()
    )
    begun = sum(locate(folder.path / "cells" / cell.name, PUBLIC, "plan.json").is_file() for cell in found)
    ledger = found[0].spec.ledger or str(home.registry())
    return Bill(ledger, len(found), begun, totals, tuple(without))


def _promise(cell: Cell, one: Case) -> Guarantee | None:
    """What a cell will be charged, or a little less: what was asked for where noise is calibrated to that, else what is
    accounted; None where it cannot start and is charged nothing."""
    if one.job is None:
        return None
    promise = one.job.promise
    if one.method.private:
        return replace(promise, epsilon=cell.spec.epsilon)
    if math.isfinite(promise.epsilon):  # noise as a paper prints it: every cell has a price of its own
        job = case.of_spec(cell.spec).job
        return None if job is None else job.promise
    return promise
