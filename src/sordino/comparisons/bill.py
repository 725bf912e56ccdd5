"""The total privacy cost of a comparison on the user's own data, shown before its first run.

Every cell is a separate run, and every run is charged to the same records: a table with four methods, three epsilons
and five seeds costs the sum of sixty runs, not the epsilon in its heading.
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
from sordino.run_folder.folder import RunFolder


@dataclass(frozen=True)
class Total:
    """Plain sums over the runs whose guarantees have the same unit, relation and viewer."""

    unit: str
    relation: str
    viewer: str
    runs: int
    epsilon: float  # upper bound: noise is calibrated to stay within the requested epsilon
    delta: float

    def words(self) -> str:
        """Return the total as part of a sentence."""
        whose = f"{UNITS.get(self.unit, self.unit)} ({RELATIONS.get(self.relation, self.relation)})"
        return (
            f"{self.runs} with at most epsilon = {up(self.epsilon)}, delta = {self.delta:g} in total (plain sums) for "
            f"{whose} against the {self.viewer}"
        )


@dataclass(frozen=True)
class Bill:
    """The charge of all runs of a comparison, and the ledger it goes to."""

    ledger: str
    runs: int
    begun: int  # runs of an interrupted comparison that the ledger already holds
    totals: tuple[Total, ...]
    without: tuple[str, ...]  # method of each run whose epsilon is infinite

    def sentence(self, where: bool = True) -> str:
        """Return the bill in words; without `where`, the ledger is not named, as only the data owner may know it."""
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
        """Return the bill for programs."""
        return {
            "ledger": self.ledger,
            "runs": self.runs,
            "begun": self.begun,
            "totals": [asdict(t) for t in self.totals],
            "without_guarantee": {"runs": len(self.without), "methods": list(dict.fromkeys(self.without))},
            "sentence": self.sentence(),
        }


def bill(folder: RunFolder, found: Sequence[Cell], sketched: Mapping[str, Case]) -> Bill | None:
    """Return the joint charge of the cells; None if all data are public, as in a shipped benchmark.

    Args:
        folder: the folder of the comparison.
        found: the cells.
        sketched: the case that was examined for each method (`compare.sketch`).
    """
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
    """Return what a cell will be charged at most: the requested epsilon if noise is calibrated to it, else the
    accounted one; None if the cell cannot start and so is charged nothing."""
    if one.job is None:
        return None
    promise = one.job.promise
    if one.method.private:
        return replace(promise, epsilon=cell.spec.epsilon)
    if math.isfinite(promise.epsilon):  # a printed method with its own noise: every cell has its own cost
        job = case.of_spec(cell.spec).job
        return None if job is None else job.promise
    return promise
