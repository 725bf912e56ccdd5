"""The files of an attack, all of them in the private part of a run folder:

private/attacks/NAME-VIEW.json   figures with intervals, sentences, options of the attack, points of the ROC curve
private/attacks/NAME-VIEW.npz    the scores of all targets, or originals and reconstructions
private/attacks/NAME-VIEW.png    the ROC curve, or a grid of pictures
"""

from __future__ import annotations

import io
from dataclasses import asdict, fields, is_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sordino.audits.roc import Roc
from sordino.core.record import plain
from sordino.red_team import words
from sordino.red_team.measure import Answer
from sordino.report import figures, roc_curve
from sordino.run_folder.folder import RunFolder

if TYPE_CHECKING:
    from sordino.red_team.attack import AttackOutcome

FOLDER = "attacks"
LOWEST = 1e-4  # least rate on the axes of a ROC curve
POINTS = 100  # points of a ROC curve in the JSON file


def write(
    path: Path, attack: Any, outcome: AttackOutcome, answer: Answer, twin: Answer | None, bound: tuple[float, float]
) -> AttackOutcome:
    """Write the files of one attack, and return its outcome with their names.

    Args:
        path: the run folder.
        attack: the attack.
        outcome: what it found.
        answer: the scores or records behind it.
        twin: those of the run without privacy, if there was one.
        bound: epsilon and delta of the guarantee, for one record.
    """
    folder = RunFolder(path)
    stem = f"{FOLDER}/{outcome.attack}-{outcome.view.replace(':', '-')}"
    arrays = _arrays(answer, "") | ({} if twin is None else _arrays(twin, "without_privacy_"))
    names = [f"{stem}.json"]
    if arrays:
        packed = io.BytesIO()
        np.savez_compressed(packed, **arrays)
        folder.write(f"{stem}.npz", packed.getvalue())
        names.append(f"{stem}.npz")
    if figures.ready() and _drawn(folder.private / f"{stem}.png", outcome, answer, twin, bound):
        names.append(f"{stem}.png")
    outcome = replace(outcome, files=tuple(str(folder.private / name) for name in names))
    options = {f.name: getattr(attack, f.name) for f in fields(attack)} if is_dataclass(attack) else {}
    data = asdict(outcome) | {"options": {k: v if _simple(v) else str(v) for k, v in options.items()}}
    if rocs := _rocs(answer, twin):
        data["roc"] = {name: [levels.tolist() for levels in roc.points(POINTS)] for name, roc in rocs.items()}
    folder.write_json(f"{stem}.json", plain(data))
    return outcome


def _simple(value: Any) -> bool:
    return isinstance(value, str | bool | int | float | tuple | list | None)


def _arrays(answer: Answer, prefix: str) -> dict[str, Any]:
    out = {}
    for name in ("scores", "members"):
        if (value := getattr(answer, name)) is not None:
            out[prefix + name] = value
    for name in ("made", "true"):
        if (value := getattr(answer, name)) is not None:
            out[prefix + name] = value.detach().cpu().numpy()
    return out


def _rocs(answer: Answer, twin: Answer | None) -> dict[str, Roc]:
    """Return the ROC curves of a membership attack, with and without privacy; {} for attacks of other kinds."""
    both = {"this run": answer} | ({} if twin is None else {"without privacy": twin})
    return {k: Roc.of(a.scores, a.members) for k, a in both.items() if a.scores is not None and a.members is not None}


def _drawn(path: Path, outcome: AttackOutcome, answer: Answer, twin: Answer | None, bound: tuple[float, float]) -> bool:
    """Draw the picture of an attack, and return whether there was anything to draw."""
    if rocs := _rocs(answer, twin):
        curves = {name: roc.points() for name, roc in rocs.items()}
        floor = max(LOWEST, 1 / max(10, rocs["this run"].negatives))
        roc_curve.draw(path, curves, f"{outcome.attack} by {words.who(outcome.view)}", *bound, floor=floor)
        return True
    if answer.made is None or answer.true is None or answer.made.ndim != 4 or answer.made.shape[1] not in (1, 3):
        return False
    _grid(path, answer, twin)
    return True


def _grid(path: Path, answer: Answer, twin: Answer | None) -> None:
    """Draw originals above reconstructions."""
    from sordino.report.picture_grid import GridRow, picture_grid

    true, made = _numpy(answer.true), _numpy(answer.made)
    low, high = float(true.min()), float(true.max())

    def scaled(x: Any) -> Any:
        return (x - low) / (high - low if high > low else 1.0)

    rows = [GridRow("this run", scaled(made))]
    same = twin is not None and twin.made is not None and np.array_equal(_numpy(twin.true), true)
    if twin is not None and same:
        rows.append(GridRow("without privacy", scaled(_numpy(twin.made))))
    picture_grid(path, scaled(true), rows)


def _numpy(value: Any) -> Any:
    return value.detach().float().cpu().numpy()
