"""The public files of a comparison, read cell by cell: of a finished one, one that goes on or died, or a copy.

Nothing outside the public parts is read but the lock of the comparison, an empty file, which is tried for an instant.
Cells are found by listing `cells/`, never by a name in a record. If there are no folders of cells, as in a copy of the
tables alone, the rows of results.csv stand for them. What is damaged is left out and named.
"""

from __future__ import annotations

import csv
import io
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from sordino.core.errors import RunError
from sordino.core.parts import PRIVATE, PUBLIC
from sordino.core.record import RoundRecord
from sordino.report import reading
from sordino.report.cells import CellResult, ClaimLine, Curve
from sordino.report.reading import RunRecords, State, harmless
from sordino.report.run.fields import Fields, RunSources, is_number, one_line
from sordino.report.run.promise import guarantee_of

INDEX, RESULTS = "cells.json", "results.csv"
MOST = 2000  # cells that are read
UNFINISHED = "not finished"
LARGEST = 1e100  # numbers beyond it are no measurements


@dataclass(frozen=True)
class CellRecords:
    """One cell of a comparison and, where its folder is there, the records of its run."""

    cell: CellResult  # with an error while it has no result
    state: State | str  # also "failed", "waiting" (has not begun) and "listed" (a row of results.csv alone)
    done: int = 0  # rounds on record
    planned: int = 0
    run: RunSources | None = None
    audited: float = math.nan  # lower bound on epsilon that an audit has shown; nan without an audit
    confidence: float = math.nan  # of this bound
    promised: float = math.nan  # epsilon that was planned, also of a cell that is not finished


@dataclass(frozen=True)
class ComparisonRecords:
    """What the public files of a comparison say."""

    path: Path
    name: str
    cells: tuple[CellRecords, ...]
    index: Fields  # public/cells.json
    state: State  # of the whole comparison
    damage: tuple[str, ...] = ()

    @property
    def results(self) -> list[CellResult]:
        """The cells that have a result or have failed, as the tables summarise them."""
        return [c.cell for c in self.cells if not c.cell.error or c.state == "failed"]

    @property
    def runs(self) -> list[RunSources]:
        """The records of all runs that have begun and can be read."""
        return [c.run for c in self.cells if c.run is not None]

    def waiting(self) -> list[CellRecords]:
        """Return the cells that have neither a result nor a failure."""
        return [c for c in self.cells if c.cell.error and c.state != "failed"]


def is_comparison(path: Path) -> bool:
    """Return whether a path names a comparison, a folder of a paper's runs, or the public part or a copy of one."""
    try:
        return not _is_run(path) and _located(path) is not None
    except (OSError, ValueError):
        return False


def find(path: Path) -> Path:
    """Return the folder of the comparison that a path names.

    Raises:
        RunError: if there is none.
    """
    shown = harmless(str(path))[:200]
    try:
        if not path.exists():
            raise RunError(f"there is no folder {shown}.")
        found = None if _is_run(path) else _located(path)
    except (OSError, ValueError) as error:
        raise RunError(f"{shown} cannot be read: {getattr(error, 'strerror', None) or error}.") from error
    if found is None:
        raise RunError(
            f"{shown} is not the folder of a comparison: it has neither cells nor {PUBLIC}/{RESULTS}. "
            "Name the folder that `sordino compare` printed."
        )
    return found


def _is_run(path: Path) -> bool:
    return (path / "plan.json").is_file() or (path / PUBLIC / "plan.json").is_file()


def _located(path: Path) -> Path | None:
    if path.name == PUBLIC and ((path.parent / "cells").is_dir() or (path.parent / PRIVATE).is_dir()):
        path = path.parent
    tables = any((path / part / name).is_file() for part in (PUBLIC, "") for name in (INDEX, RESULTS))
    return path if tables or _folders(path) else None


def _folders(path: Path) -> dict[str, Path]:
    """Return the run folders of the cells by name, without links that lead elsewhere."""
    place = path / "cells"
    if not place.is_dir():
        return {}
    inside = os.path.realpath(path)
    out = {}
    for at in sorted(place.iterdir())[:MOST]:
        if at.is_dir() and _is_run(at) and Path(os.path.realpath(at)).is_relative_to(inside):
            out[at.name] = at
    return out


def read(path: Path) -> ComparisonRecords:
    """Return what the public files of a comparison say.

    Raises:
        RunError: if the path does not name a comparison.
    """
    folder = find(path)
    public = folder / PUBLIC if (folder / PUBLIC).is_dir() else folder
    damage: list[str] = []
    index = Fields(f"{PUBLIC}/{INDEX}", reading.object_in(public / INDEX, public, damage), damage)
    rows = _rows(public, damage)
    folders = _folders(folder)
    listed = _listed(index) or {name: _asked(row) for name, row in rows.items()}
    cells = []
    for name in [*listed, *(n for n in folders if n not in listed)][:MOST]:
        row = rows.get(name, {})
        if name in folders:
            cells.append(_of_run(name, folders[name], row, listed.get(name), damage))
        else:
            cells.append(_of_row(name, row, listed[name]))
    held = reading.held(folder) if (folder / PRIVATE).is_dir() else None
    ended = bool(cells) and all(not c.cell.error or c.state == "failed" for c in cells)
    state: State = "finished" if ended else "unknown" if held is None else "running" if held else "stopped"
    whole = Path(os.path.abspath(folder))  # noqa: PTH100 (links keep their names)
    name = whole.parent.name if whole.name == PUBLIC else whole.name
    return ComparisonRecords(folder, one_line(name), tuple(cells), index, state, tuple(dict.fromkeys(damage)))


Asked = tuple[str, float | None, int]  # method, epsilon that was asked for, seed


def _listed(index: Fields) -> dict[str, Asked]:
    out = {}
    for entry in index.parts("cells")[:MOST]:
        name, method = entry.text("name"), entry.text("method")
        if name and method:
            out[name] = method, entry.number("epsilon", 0.0), entry.count("seed") or 0
    return out


def _rows(public: Path, damage: list[str]) -> dict[str, dict[str, str]]:
    """Return the rows of results.csv by the name of their cell."""
    text = reading.text_in(public / RESULTS, public, damage)
    try:
        rows = list(csv.DictReader(io.StringIO(text), strict=True))
    except csv.Error as error:
        damage.append(f"{PUBLIC}/{RESULTS} is damaged ({one_line(str(error))}); what it says is left out.")
        return {}
    clean = [{k: one_line(v) for k, v in row.items() if isinstance(k, str) and isinstance(v, str)} for row in rows]
    return {row["cell"]: row for row in clean if row.get("cell") and row.get("method")}


def _asked(row: Mapping[str, str]) -> Asked:
    asked, seed = _number(row.get("epsilon")), _number(row.get("seed"))
    known = 0 <= seed < 2**53
    return row.get("method", ""), None if math.isnan(asked) else asked, int(seed) if known else 0


def _number(text: str | None) -> float:
    """Return the number in a field of a table; nan if there is none."""
    if text == "infinite":
        return math.inf
    try:
        value = float(text or "nan")
    except ValueError:
        return math.nan
    return value if abs(value) <= LARGEST else math.nan


# --- cells of which there is a row alone


def _of_row(name: str, row: Mapping[str, str], asked: Asked) -> CellRecords:
    method, epsilon, seed = asked
    if not row:
        return CellRecords(CellResult(name, method, epsilon, seed, UNFINISHED), "waiting")
    number = {k: _number(v) for k, v in row.items()}
    if row.get("status") == "failed" or not row.get("unit"):
        reason = row.get("reason") or UNFINISHED
        waits = reason == UNFINISHED
        return CellRecords(CellResult(name, method, epsilon, seed, reason), "waiting" if waits else "failed")
    rounds = number.get("rounds", math.nan)
    claimed = number.get("claimed_epsilon", math.nan)
    claim = None if math.isnan(claimed) else ClaimLine(
        claimed, None, row.get("claim_scope") or "total", "", row.get("reason", ""), row.get("claim_unit", ""),
        row.get("claim_viewer", ""),
    )  # fmt: skip
    names = ("accuracy", "loss", "rmse", "mae", "delta", "bytes_up", "seconds")
    measured: dict[str, Any] = {k: number.get(k, math.nan) for k in names}
    accounted = number.get("accounted_epsilon", math.nan)
    cell = CellResult(
        name, method, epsilon, seed, **measured, accounted=accounted, reason=row.get("reason", ""),
        unit=row["unit"], relation=row.get("relation", ""), viewer=row.get("viewer", ""),
        channel=row.get("channel") or "direct", rounds=int(rounds) if 0 <= rounds < 2**53 else 0, claim=claim,
    )  # fmt: skip
    return CellRecords(cell, "listed", cell.rounds, cell.rounds, promised=accounted)


# --- cells with a run folder


def _of_run(name: str, at: Path, row: Mapping[str, str], asked: Asked | None, damage: list[str]) -> CellRecords:
    shown = one_line(name)
    try:
        records = reading.read_run(at)
    except RunError as error:
        damage.append(f"cell {shown}: {one_line(str(error))}")
        method, epsilon, seed = asked or (shown, None, 0)
        return CellRecords(CellResult(shown, method, epsilon, seed, "its records cannot be read"), "failed")
    run = RunSources(records, [])
    cell = _start(shown, run, asked)
    promise = guarantee_of(run.plan.part("promise"))
    out = CellRecords(
        cell, records.state, len(records.rounds), records.planned_rounds, run,
        promised=math.nan if promise is None else promise.epsilon,
    )  # fmt: skip
    if run.finished:
        out = _finished(out, run, row)
    elif row.get("status") == "failed" and row.get("reason", UNFINISHED) != UNFINISHED and records.state != "running":
        out = replace(out, cell=replace(cell, error=row["reason"]), state="failed")
    damage += [f"cell {shown}: {text}" for text in dict.fromkeys([*records.damage, *run.damage])]
    return out


def _start(name: str, run: RunSources, asked: Asked | None) -> CellResult:
    """Return a cell without a result; what was asked for is taken from its own spec if no list of cells says it."""
    if asked is not None:
        return CellResult(name, asked[0], asked[1], asked[2], UNFINISHED)
    method = run.spec.text("method") or run.plan.text("method") or name
    private = run.plan.number("noise_multiplier") or run.plan.has("claim")
    seed = run.spec.count("seed")
    if seed is None:  # the seed of a run on own data is left out of its spec
        digits = name.rpartition("seed")[2]
        seed = int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 10 else 0
    return CellResult(name, method, run.spec.number("epsilon", 0.0) if private else None, seed, UNFINISHED)


def _finished(out: CellRecords, run: RunSources, row: Mapping[str, str]) -> CellRecords:
    result = run.result
    promised = guarantee_of(result.part("guarantee"))
    if promised is None:
        return replace(out, cell=replace(out.cell, error="its result is damaged"), state="failed")
    curve = _curve(run.records)
    audit = run.audit
    cell = replace(
        out.cell,
        error="",
        accuracy=_known(result.share("accuracy")),
        **{k: getattr(curve, k)[-1] for k in ("loss", "rmse", "mae") if getattr(curve, k)},
        accounted=promised.epsilon,
        reason=promised.reason or "",
        delta=promised.delta,
        unit=promised.unit,
        relation=promised.relation,
        viewer=promised.viewer,
        channel=run.plan.text("channel") or "direct",
        rounds=result.count("rounds") or len(run.records.rounds),
        bytes_up=_number(row.get("bytes_up")),  # in the table of results where the data are public
        seconds=_number(row.get("seconds")),
        claim=_claim(result.part("claim")),
        notes=result.texts("notes"),
        curve=curve,
    )
    same = audit.text("viewer") == promised.viewer and audit.text("unit") == promised.unit
    audited = audit.number("least", 0.0) if same else None
    return replace(
        out, cell=cell, audited=_known(audited), confidence=_known(audit.share("confidence")), promised=promised.epsilon
    )


def _claim(fields: Fields) -> ClaimLine | None:
    epsilon = fields.number("epsilon", 0.0)
    if epsilon is None:
        return None
    return ClaimLine(
        epsilon, fields.number("delta", 0.0, 1.0), fields.text("scope") or "total", fields.text("source"),
        fields.text("why_not"), fields.text("unit"), fields.text("viewer"),
    )  # fmt: skip


def _curve(records: RunRecords) -> Curve:
    """Return the measurements by round, up to the first round that is missing."""
    rounds: list[RoundRecord] = []
    for place, record in enumerate(records.rounds, 1):
        if record.round != place:
            break
        rounds.append(record)
    errors: dict[str, Sequence[Any]] = {}
    if any(r.metrics for r in rounds):
        metrics = [r.metrics if isinstance(r.metrics, dict) else {} for r in rounds]
        errors = {name: [m.get(name) for m in metrics] for name in ("rmse", "mae")}
    return Curve(
        accuracy=_measured([r.accuracy for r in rounds]),
        loss=_measured([r.loss for r in rounds]),
        rmse=_measured(errors.get("rmse", [None] * len(rounds))),
        mae=_measured(errors.get("mae", [None] * len(rounds))),
        noise=_measured([r.noise or None for r in rounds]),
    )


def _measured(values: Sequence[Any]) -> tuple[float, ...]:
    """Return measurements, nan where there is none; the records hold numbers and None alone."""
    try:
        out = np.array(values, dtype=np.float64)
    except OverflowError:  # a whole number that floating point cannot hold
        out = np.array([v if is_number(v) else None for v in values], dtype=np.float64)
    out[~(np.abs(out) <= LARGEST)] = np.nan
    return tuple(out.tolist())


def _known(value: float | None) -> float:
    return math.nan if value is None else value
