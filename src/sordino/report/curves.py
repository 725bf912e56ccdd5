"""Measurements by round of the cells of a line, over seeds."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sordino.report.summary import Line

Floats = NDArray[np.float64]


def _rows(line: Line, name: str) -> Floats:
    """Return a measurement of all cells [seeds, rounds], truncated to the shortest run."""
    curves = [np.array(getattr(cell.curve, name), dtype=np.float64) for cell in line.cells]
    length = min((len(c) for c in curves), default=0)
    return np.array([c[:length] for c in curves]).reshape(len(curves), length)


def curve(line: Line, name: str, scale: float = 1.0) -> tuple[Floats, Floats, Floats, Floats]:
    """Return the rounds measured in every cell, and there the mean, mean - std and mean + std over seeds."""
    rows = _rows(line, name)
    known = np.flatnonzero(np.isfinite(rows).all(axis=0)) if len(rows) else np.empty(0, dtype=np.int64)
    values = scale * rows[:, known]
    mean = values.mean(axis=0) if len(known) else np.empty(0)
    half = values.std(axis=0, ddof=1) if len(known) and len(rows) > 1 else np.zeros(len(known))
    return (known + 1).astype(np.float64), mean, mean - half, mean + half


def extremes(line: Line, name: str, rounds: Floats) -> tuple[Floats, Floats]:
    """Return the minimum and the maximum over seeds in these rounds, which a logarithmic axis can show."""
    rows = _rows(line, name)[:, rounds.astype(np.int64) - 1]
    return rows.min(axis=0), rows.max(axis=0)
