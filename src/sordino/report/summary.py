"""Summary of cells as one line per method and epsilon, and of lines as blocks, within which they may be ranked.

An epsilon has a meaning only together with its unit, its neighbouring relation, its viewer and what the channel hides
from that viewer. Lines that differ in one of them are never ranked together; nor are printed forms, whose claim does
not hold, or lines without any guarantee.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from sordino.report.cells import CellResult, ClaimLine


@dataclass(frozen=True)
class Spread:
    """Mean, sample standard deviation (nan for one seed) and number of values over seeds."""

    mean: float
    deviation: float
    n: int

    @staticmethod
    def of(values: Iterable[float]) -> Spread:
        """Return the spread of the values that are not nan."""
        known = np.array([v for v in values if not math.isnan(v)], dtype=np.float64)
        if not len(known):
            return Spread(math.nan, math.nan, 0)
        return Spread(float(known.mean()), float(known.std(ddof=1)) if len(known) > 1 else math.nan, len(known))


class Whom(NamedTuple):
    """What a guarantee protects and against whom: unit, neighbouring relation, viewer and channel."""

    unit: str
    relation: str
    viewer: str
    channel: str

    def words(self) -> str:
        """Return the description used in headings."""
        hidden = "" if self.channel == "direct" else f" behind a {self.channel.replace('-', ' ')}"
        return f"unit {self.unit} ({self.relation}), against the {self.viewer}{hidden}"


@dataclass(frozen=True)
class Line:
    """One method at one epsilon, over seeds."""

    method: str
    asked: float | None
    cells: tuple[CellResult, ...]  # finished cells
    errors: tuple[str, ...]  # reasons of the other cells

    @property
    def n(self) -> int:
        """The number of finished cells."""
        return len(self.cells)

    @property
    def accuracy(self) -> Spread:
        """The accuracy over seeds."""
        return self.of("accuracy")

    @property
    def loss(self) -> Spread:
        """The loss over seeds."""
        return self.of("loss")

    def of(self, measure: str) -> Spread:
        """Return a measure, a field of CellResult, over seeds."""
        return Spread.of(getattr(c, measure) for c in self.cells)

    @property
    def score(self) -> float:
        """The value to rank by, higher is better: the accuracy, else the negative error; -inf if the run diverged."""
        measure = compared_by([self])
        value = self.of(measure).mean * (1 if measure == "accuracy" else -1)
        return -math.inf if math.isnan(value) else value

    @property
    def accounted(self) -> float:
        """The largest accounted epsilon over the seeds."""
        return max((c.accounted for c in self.cells), default=math.nan)

    @property
    def reason(self) -> str:
        """The reason why there is no guarantee, if any."""
        return next((c.reason for c in self.cells if c.reason), "")

    @property
    def claim(self) -> ClaimLine | None:
        """The claim that does not hold, if any."""
        return next((c.claim for c in self.cells if c.claim is not None), None)

    @property
    def rounds(self) -> float:
        """The mean number of rounds."""
        return Spread.of(c.rounds for c in self.cells).mean

    @property
    def seconds(self) -> float:
        """The mean run time in seconds; nan for private data."""
        return Spread.of(c.seconds for c in self.cells).mean

    @property
    def bytes_up(self) -> float:
        """The mean number of bytes that clients sent; nan for private data."""
        return Spread.of(c.bytes_up for c in self.cells).mean

    @property
    def whom(self) -> Whom:
        """What the guarantee protects and against whom."""
        first = self.cells[0] if self.cells else CellResult("", "", None, 0)
        return Whom(first.unit, first.relation, first.viewer, first.channel)

    @property
    def kind(self) -> str:
        """The kind of line: "failed", "reference" (no privacy requested), "printed" (a claim that does not hold),
        "open" (no guarantee) or "sound".

        The claim decides, not the name: a printed form whose claim holds has no claim here (udp-fl-paper with
        mechanism = gaussian, which is DP-SGD); its accounted epsilon is a guarantee, and it is ranked."""
        if not self.cells:
            return "failed"
        if self.claim is not None:
            return "printed"
        if self.asked is None:
            return "reference"
        return "sound" if math.isfinite(self.accounted) else "open"


def compared_by(results: Sequence[Line]) -> str:
    """Return the measure to compare lines by: the first of accuracy, rmse and mae that is known, else loss."""
    return next((m for m in ("accuracy", "rmse", "mae") if any(line.of(m).n for line in results)), "loss")


def lines(cells: Iterable[CellResult]) -> list[Line]:
    """Return one line per method and epsilon, in the order in which they were requested."""
    groups: dict[str, dict[float | None, list[CellResult]]] = {}
    for cell in cells:
        groups.setdefault(cell.method, {}).setdefault(cell.asked, []).append(cell)
    return [
        Line(method, asked, tuple(c for c in g if not c.error), tuple(c.error for c in g if c.error))
        for method, parts in groups.items()
        for asked, g in parts.items()
    ]


@dataclass(frozen=True)
class RankedGroup:
    """Sound lines with the same kind of guarantee, ranked for each requested epsilon, best first."""

    whom: Whom
    ranked: tuple[tuple[int, Line], ...]  # rank and line


def blocks(results: Sequence[Line]) -> list[RankedGroup]:
    """Rank the sound lines, one group for each kind of guarantee."""
    out = []
    sound = [line for line in results if line.kind == "sound"]
    for whom in dict.fromkeys(line.whom for line in sound):
        ranked: list[tuple[int, Line]] = []
        inside = [line for line in sound if line.whom == whom]
        for asked in sorted({line.asked for line in inside if line.asked is not None}):
            at = [(line.score, line) for line in inside if line.asked == asked]
            scores = [score for score, _ in at]
            at.sort(key=lambda pair: -pair[0])
            ranked += [(1 + sum(other > score for other in scores), line) for score, line in at]
        out.append(RankedGroup(whom, tuple(ranked)))
    return out
