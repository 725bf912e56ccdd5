"""A finished run as HTML for a notebook: its guarantee, its figures and its learning curve.

Only what the public part of a run folder holds is shown, since a notebook is passed on with its outputs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from sordino.contract.claim import Claim
from sordino.core import html, svg
from sordino.core.record import RoundRecord
from sordino.core.rounding import up
from sordino.privacy.guarantee import Guarantee, facts, heading

SHOWN = 16  # metrics in a table; the others are named by a line
DRAWN = ("accuracy", "rmse", "perplexity", "mae", "loss")  # what the curve shows: the first that was measured


class PublicRun(Protocol):
    """What a result and a run that was read back have in common."""

    @property
    def guarantee(self) -> Guarantee: ...
    @property
    def guarantees(self) -> Mapping[str, Guarantee]: ...
    @property
    def history(self) -> Sequence[RoundRecord]: ...
    @property
    def metrics(self) -> Mapping[str, float | None]: ...
    @property
    def accuracy(self) -> float | None: ...
    @property
    def claim(self) -> Claim | None: ...


def of_run(run: PublicRun, notes: Sequence[str] = (), together: str | None = None) -> str:
    """Return a run as a card, with its public notes and what all runs on the same data promise together."""
    parts = [html.paragraph(run.guarantee.sentence())]
    if run.claim is not None:
        parts.append(html.paragraph(run.claim.sentence()))
    parts.append(html.beside(_promises(run), learning_curve(run) + _metrics(run)))
    if together is not None:
        parts.append(html.paragraph(f"{together[0].upper()}{together[1:]}."))
    parts += [html.paragraph(f"Note: {note}", quiet=True) for note in notes]
    return html.card(heading(run.guarantee), *parts)


def _promises(run: PublicRun) -> str:
    """Return the guarantee as a table, with a column for what a paper claims, and a row for every other viewer."""
    rows: list[tuple[str, ...]] = [*facts(run.guarantee)]
    for viewer, other in run.guarantees.items():
        if viewer != run.guarantee.viewer:
            rows.append((f"epsilon against the {viewer}", up(other.epsilon)))
    if run.claim is None:
        return html.table((), rows)
    once = " for one round" if run.claim.scope == "round" else ""
    claimed = {
        "epsilon": f"{run.claim.epsilon:g}{once}",
        "delta": f"{run.claim.delta:g}",
        "unit": run.claim.unit,
        "viewer": run.claim.viewer,
    }
    return html.table(("", "claimed", "accounted"), [(row[0], claimed.get(row[0], ""), row[1]) for row in rows])


def _metrics(run: PublicRun) -> str:
    """Return the figures after the last round as a table."""
    rows = [] if run.accuracy is None else [("accuracy", f"{100 * run.accuracy:.2f} %")]
    rows += [(name.replace("_", " "), _number(value)) for name, value in run.metrics.items()]
    if run.history and (loss := run.history[-1].loss) is not None:
        rows.append(("loss", _number(loss)))
    if not rows:
        return html.paragraph("Nothing was evaluated.", quiet=True)
    more = [f"{len(rows) - SHOWN} more are in `metrics`."] if len(rows) > SHOWN else []
    where = run.history[-1].evaluated_on if run.history else None
    below = [f"On {where}." if where == "public test data" else f"{where}."] if where else []
    return html.table((), rows[:SHOWN]) + "".join(html.paragraph(text, quiet=True) for text in more + below)


def _number(value: float | None) -> str:
    return "not finite" if value is None or not math.isfinite(value) else f"{value:.4g}"


def learning_curve(run: PublicRun) -> str:
    """Return a small figure of the measure and the epsilon spent by round; "" for a run without rounds."""
    if not run.history:
        return ""
    last, viewer = run.history[-1].round, run.guarantee.viewer
    spent = [(r.round, r.epsilon.get(viewer, math.inf)) for r in run.history]
    second = None
    if math.isfinite(spent[-1][1]):
        second = replace(svg.scaled("epsilon spent", spent, zero=True), ends=("0", up(spent[-1][1])))
    first = _measured(run.history)
    return svg.curves(first, second, last, "round") if first is not None or second is not None else ""


def _measured(history: Sequence[RoundRecord]) -> svg.Series | None:
    for name in DRAWN:
        known = [(r.round, v) for r in history if (v := _value(r, name)) is not None and math.isfinite(v)]
        if known and name == "accuracy":
            return svg.scaled("accuracy, %", [(t, 100 * v) for t, v in known], ".1f")
        if known:
            return svg.scaled(name, known)
    return None


def _value(record: RoundRecord, name: str) -> float | None:
    if name in ("accuracy", "loss"):
        value: float | None = getattr(record, name)
        return value
    return (record.metrics or {}).get(name)
