"""The total privacy cost of a comparison on the user's own data, which is shown before its first run.

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
        protected = f"{UNITS.get(self.unit, self.unit)} ({RELATIONS.get(self.relation, self.relation)})"
        return (
            f"{self.runs} with at most epsilon = {up(self.epsilon)}, delta = {self.delta:g} in total (plain sums) for "
            f"{protected} against the {self.viewer}"
        )


@dataclass(frozen=True)
class Bill:
    """The total charge of all runs of a comparison, and the ledger that records it."""

    ledger: str
    runs: int
    begun: int  # runs of an interrupted comparison that the ledger already holds
    totals: tuple[Total, ...]
    without: tuple[str, ...]  # the method of each run whose epsilon is infinite

    def sentence(self, where: bool = True) -> str:
        """Return the bill in words; `where` says whether to name the ledger, which only the data owner may know."""
        parts = [t.words() for t in self.totals]
        if self.without:
            parts.append(f"{len(self.without)} without any guarantee ({', '.join(dict.fromkeys(self.without))})")
        before = f" ({self.begun} begun before)" if self.begun and where else ""
        runs = "1 run is" if self.runs == 1 else f"{self.runs} runs are"
        return (
            f"The data are your own, so {runs} charged to {self.ledger if where else 'them'}{before}: "
            f"{'; '.join(parts)}. The noise is drawn from seeds: these are experiments, and their "
            "guarantees are void against anyone who knows the seeds."
        )

    def to_json(self) -> dict[str, Any]:
        """Return the bill as a JSON object."""
        return {
            "ledger": self.ledger,
            "runs": self.runs,
            "begun": self.begun,
            "totals": [asdict(t) for t in self.totals],
            "without_guarantee": {"runs": len(self.without), "methods": list(dict.fromkeys(self.without))},
            "sentence": self.sentence(),
        }


def bill(folder: RunFolder, cells: Sequence[Cell], sketched: Mapping[str, Case]) -> Bill | None:
    """Return the total charge of the cells; None if all data are public, as in a shipped benchmark.

    Args:
        folder: the folder of the comparison.
        cells: the cells of the comparison.
        sketched: the case that was examined for each method (`compare.sketch`).
    """
    if all(examined.public_data for examined in sketched.values()):
        return None
    charges: dict[tuple[str, str, str], list[tuple[float, float]]] = {}
    without = []
    for cell in cells:
        promise = _promise(cell, sketched[cell.method])
        if promise is not None and math.isinf(promise.epsilon):
            without.append(cell.method)
        elif promise is not None:
            view = promise.unit, promise.relation, promise.viewer
            charges.setdefault(view, []).append((promise.epsilon, promise.delta))
    totals = tuple(
        Total(*view, len(costs), math.fsum(e for e, _ in costs), math.fsum(d for _, d in costs))
        for view, costs in charges.items()
    )
    begun = sum(locate(folder.path / "cells" / cell.name, PUBLIC, "plan.json").is_file() for cell in cells)
    ledger = cells[0].spec.ledger or str(home.registry())
    return Bill(ledger, len(cells), begun, totals, tuple(without))


def _promise(cell: Cell, examined: Case) -> Guarantee | None:
    """Return the most that a cell will be charged; None if the cell cannot start, and so is charged nothing.

    This is the requested epsilon if the noise is calibrated to it, and the accounted one otherwise.
    """
    if examined.job is None:
        return None
    promise = examined.job.promise
    if examined.method.private:
        return replace(promise, epsilon=cell.spec.epsilon)
    if math.isfinite(promise.epsilon):  # a printed method that sets its own noise: the cost differs between cells
        job = case.of_spec(cell.spec).job
        return None if job is None else job.promise
    return promise
