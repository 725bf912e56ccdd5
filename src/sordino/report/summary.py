"""Cells -> one line a method and epsilon; lines -> blocks, in which alone they may be ranked.

An epsilon means something only with its unit, its relation, its viewer and what the channel hides from that viewer.
Lines that differ in one of them are never in one ranking; neither are paper forms, whose claim does not hold, nor lines
without any guarantee.
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
    """Over seeds: mean, standard deviation (of a sample; nan for one seed) and how many."""

    mean: float
    deviation: float
    n: int

    @staticmethod
    def of(values: Iterable[float]) -> Spread:
        kept = np.array([v for v in values if not math.isnan(v)], dtype=np.float64)
        if not len(kept):
            return Spread(math.nan, math.nan, 0)
        return Spread(float(kept.mean()), float(kept.std(ddof=1)) if len(kept) > 1 else math.nan, len(kept))


class Whom(NamedTuple):
    """Whose data are protected, in which sense, from whom, and through what."""

    unit: str
    relation: str
    viewer: str
    channel: str

    def words(self) -> str:
        hidden = "" if self.channel == "direct" else f" behind a {self.channel.replace('-', ' ')}"
        return f"unit {self.unit} ({self.relation}), against the {self.viewer}{hidden}"


@dataclass(frozen=True)
class Line:
    """One method at one epsilon, over seeds."""

    method: str
    asked: float | None
    cells: tuple[CellResult, ...]  # that finished
    errors: tuple[str, ...]  # of those that did not

    @property
    def n(self) -> int:
        return len(self.cells)

    @property
    def accuracy(self) -> Spread:
        return self.of("accuracy")

    @property
    def loss(self) -> Spread:
        return self.of("loss")

    def of(self, measure: str) -> Spread:
        return Spread.of(getattr(c, measure) for c in self.cells)

    @property
    def score(self) -> float:
        """Higher is better: accuracy, or where there is none (a regression) less error; last if it diverged."""
        measure = compared_by([self])
        value = self.of(measure).mean * (1 if measure == "accuracy" else -1)
        return -math.inf if math.isnan(value) else value

    @property
    def accounted(self) -> float:
        """The largest over the seeds."""
        return max((c.accounted for c in self.cells), default=math.nan)

    @property
    def reason(self) -> str:
        return next((c.reason for c in self.cells if c.reason), "")

    @property
    def claim(self) -> ClaimLine | None:
        return next((c.claim for c in self.cells if c.claim is not None), None)

    @property
    def rounds(self) -> float:
        return Spread.of(c.rounds for c in self.cells).mean

    @property
    def seconds(self) -> float:
        return Spread.of(c.seconds for c in self.cells).mean

    @property
    def bytes_up(self) -> float:
        return Spread.of(c.bytes_up for c in self.cells).mean

    @property
    def whom(self) -> Whom:
        first = self.cells[0] if self.cells else CellResult("", "", None, 0)
        return Whom(first.unit, first.relation, first.viewer, first.channel)

    @property
    def kind(self) -> str:
        """failed, reference (no privacy asked for), printed (a claim that does not hold), open or sound.

        The claim decides, not the name: a paper's form whose claim holds has none (udp-fl-paper with mechanism =
        gaussian, which is DP-SGD), its accounted epsilon is a guarantee, and it is ranked."""
        if not self.cells:
            return "failed"
        if self.claim is not None:
            return "printed"
        if self.asked is None:
            return "reference"
        return "sound" if math.isfinite(self.accounted) else "open"


def compared_by(found: Sequence[Line]) -> str:
    """accuracy; of a regression the root mean squared or mean absolute error; or, where nothing else is known, loss."""
    return next((m for m in ("accuracy", "rmse", "mae") if any(line.of(m).n for line in found)), "loss")


def lines(cells: Iterable[CellResult]) -> list[Line]:
    """By method, then by epsilon, in the order in which they were asked for."""
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
    """Lines that protect the same from the same: for each epsilon that was asked for, the best first."""

    whom: Whom
    ranked: tuple[tuple[int, Line], ...]


def blocks(found: Sequence[Line]) -> list[RankedGroup]:
    """The rankings: sound lines only."""
    out = []
    sound = [line for line in found if line.kind == "sound"]
    for whom in dict.fromkeys(line.whom for line in sound):
        ranked: list[tuple[int, Line]] = []
        inside = [line for line in sound if line.whom == whom]
        for asked in sorted({line.asked for line in inside if line.asked is not None}):
            at = sorted((line for line in inside if line.asked == asked), key=lambda line: -line.score)
            ranked += [(1 + sum(other.score > line.score for other in at), line) for line in at]
        out.append(RankedGroup(whom, tuple(ranked)))
    return out
