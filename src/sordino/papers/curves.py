"""The numbers behind an experiment's picture if it shows more than the scores of runs, one line per point."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from sordino.papers.base import Experiment, Outcome
from sordino.report.tables import to_csv

DIGITS = 6  # significant digits


def csv(experiment: Experiment, outcomes: Sequence[Outcome]) -> str:
    """Return the plotted numbers as CSV; empty if the picture shows only scores."""
    makers = {"by-round": _by_round, "points": _points, "boxes": _boxes, "path": _paths}
    if experiment.kind not in makers:
        return ""
    lines = list(makers[experiment.kind](experiment, outcomes))
    return to_csv([line | {"value": _short(line["value"])} for line in lines]) if lines else ""


def _short(value: float | None) -> float | None:
    """Return the value rounded to DIGITS significant digits; None stands for a value that is not finite."""
    return None if value is None else float(f"{value:.{DIGITS}g}")


def _whose(outcome: Outcome) -> dict[str, Any]:
    trial = outcome.trial
    return {"row": trial.row, "at": trial.x, "form": trial.form, "seed": trial.seed}


def _by_round(experiment: Experiment, outcomes: Sequence[Outcome]) -> Iterator[dict[str, Any]]:
    for o in outcomes:
        beside = experiment.beside if o.trial.form == "printed" else ()
        for name in (experiment.curve, *beside):
            for n, value in zip(*o.curve(name), strict=True):
                yield _whose(o) | {"round": n, "what": name, "value": value}
        for name, values in (experiment.bounds(o) if experiment.bounds else {}).items():
            for n, value in enumerate(values, 1):
                yield _whose(o) | {"round": n, "what": name, "value": value}


def _points(experiment: Experiment, outcomes: Sequence[Outcome]) -> Iterator[dict[str, Any]]:
    for name, points in (experiment.points(outcomes) if experiment.points is not None else {}).items():
        for x, y in points:
            yield {"what": name, experiment.x.replace(" ", "_"): x, "value": y}


def _boxes(experiment: Experiment, outcomes: Sequence[Outcome]) -> Iterator[dict[str, Any]]:
    for o in outcomes:
        for record in (r for r in o.records if r.get("decided")):
            for name in ("weights_quantiles", "truncated_quantiles"):
                for place, value in enumerate(record["decided"].get(name) or (), 1):
                    yield _whose(o) | {"round": record["round"], "what": f"{name} {place}", "value": value}


def _paths(experiment: Experiment, outcomes: Sequence[Outcome]) -> Iterator[dict[str, Any]]:
    for o in (o for o in outcomes if o.trial.seed == 0):
        for record in (r for r in o.records if (r.get("decided") or {}).get("path_loss")):
            for name in ("path_loss", "straight_loss"):
                values = record["decided"].get(name) or ()
                for place, value in enumerate(values):
                    along = round(place / max(1, len(values) - 1), 4)
                    yield _whose(o) | {"round": record["round"], "what": name, "along": along, "value": value}
