"""The record of the run without privacy that `baseline` trains on public data: public/baseline.json."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sordino.core.record import RoundRecord, plain
from sordino.run_folder.folder import RunFolder
from sordino.run_folder.seal import reseal
from sordino.runs.run import Result

FILE = "baseline.json"
POINTS = 500  # most rounds of a curve


def publish(folder: Path, twin: Result) -> None:
    """Write the figures of a run without privacy beside those of the private run; the seal of the run covers them.

    Args:
        folder: the folder of the private run.
        twin: the run without privacy, of the same clients and features.
    """
    last = twin.history[-1] if twin.history else None
    data = {
        "rounds": len(twin.history),
        "accuracy": twin.accuracy,
        "metrics": last.metrics if last is not None else None,
        "evaluated_on": last.evaluated_on if last is not None else None,
        "curve": curve(twin.history),
    }
    run = RunFolder(folder)
    run.publish_json(FILE, plain(data), compact=True)
    reseal(run, FILE)


def curve(history: Sequence[RoundRecord]) -> dict[str, Any]:
    """Return the figures of the evaluated rounds as columns of equal length, of at most about 500 rounds."""
    seen = [r for r in history if r.loss is not None or r.accuracy is not None or r.metrics]
    step = max(1, -(-len(seen) // POINTS))
    shown = seen[::-1][::step][::-1]  # with the last one
    names = sorted({name for r in shown for name in r.metrics or {}})
    return {
        "round": [r.round for r in shown],
        "loss": [r.loss for r in shown],
        "accuracy": [r.accuracy for r in shown],
        "metrics": {name: [(r.metrics or {}).get(name) for r in shown] for name in names},
    }
