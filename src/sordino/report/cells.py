"""The cells of a comparison, read from the files of its runs."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sordino.core.errors import RunError
from sordino.core.parts import PRIVATE, PUBLIC, locate


@dataclass(frozen=True)
class ClaimLine:
    """The claim of a paper about a method in its printed form, and why it does not hold."""

    epsilon: float
    delta: float | None = None
    scope: str = "total"  # or "round"
    source: str = ""
    why_not: str = ""
    unit: str = ""  # the unit of privacy in the paper's terms
    viewer: str = ""  # against whom; unknown in comparisons run by an earlier version


@dataclass(frozen=True)
class Curve:
    """Measurements by round; nan where nothing was measured."""

    accuracy: tuple[float, ...] = ()
    loss: tuple[float, ...] = ()
    rmse: tuple[float, ...] = ()  # for a regression
    mae: tuple[float, ...] = ()
    noise: tuple[float, ...] = ()  # standard deviation per coordinate of one client's message; nan where there is none


@dataclass(frozen=True)
class CellResult:
    """The result of one cell: one run of a method at one epsilon with one seed."""

    name: str
    method: str
    asked: float | None  # requested epsilon; None for a method without noise
    seed: int
    error: str = ""  # why there are no results, if the cell failed
    accuracy: float = math.nan
    loss: float = math.nan
    rmse: float = math.nan  # for a regression
    mae: float = math.nan
    accounted: float = math.nan  # total epsilon; inf if there is no guarantee, for the reason below
    reason: str = ""
    delta: float = math.nan
    unit: str = ""
    relation: str = ""
    viewer: str = ""
    channel: str = ""
    rounds: int = 0
    bytes_up: float = math.nan  # for public data only, as bytes and seconds reveal the sampling
    seconds: float = math.nan
    claim: ClaimLine | None = None
    notes: tuple[str, ...] = ()  # remarks of the run
    curve: Curve = Curve()


def read(folder: Path, failures: Mapping[str, str]) -> list[CellResult]:
    """Return every cell of the comparison in a folder.

    Cells that failed or are not finished have an `error`; `failures` gives the reasons by name."""
    path = locate(folder, PRIVATE, "comparison.json")
    comparison = _json(path)
    try:
        listed = [(str(c["name"]), str(c["method"]), c["epsilon"], int(c["seed"])) for c in comparison["cells"]]
    except (KeyError, TypeError, ValueError) as error:
        raise RunError(f"{path} is damaged: {error!r}.") from error
    return [_cell(folder / "cells" / name, failures, name, method, e, s) for name, method, e, s in listed]


def _cell(at: Path, failures: Mapping[str, str], name: str, method: str, asked: float | None, seed: int) -> CellResult:
    if name in failures:
        return CellResult(name, method, asked, seed, failures[name])
    path = locate(at, PUBLIC, "result.json")
    if not path.is_file():
        return CellResult(name, method, asked, seed, "not finished")
    plan, result = _json(locate(at, PUBLIC, "plan.json")), _json(path)
    records = _records(locate(at, PUBLIC, "records.jsonl"))
    try:
        if plan.get("public_data"):
            records = _with_owners(records, _records(locate(at, PRIVATE, "records.jsonl")))
        return _done(CellResult(name, method, asked, seed), plan, result, records)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RunError(f"{path} is damaged: {error!r}.") from error


def _with_owners(records: list[dict[str, Any]], owners: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rounds of a run on public data with the bytes, seconds and injected noise of its private records."""
    known = {o["round"]: {k: v for k, v in o.items() if v is not None} for o in owners}
    return [r | known.get(r["round"], {}) for r in records]


def _done(cell: CellResult, plan: dict[str, Any], result: dict[str, Any], records: list[dict[str, Any]]) -> CellResult:
    promised, claim = result["guarantee"], result.get("claim")
    rounds = [r | (r.get("metrics") or {}) for r in records]
    measured = {k: tuple(_number(r.get(k)) for r in rounds) for k in ("accuracy", "loss", "rmse", "mae")}
    curve = Curve(**measured, noise=tuple(_number(r.get("noise") or None) for r in records))
    return CellResult(
        cell.name,
        cell.method,
        cell.asked,
        cell.seed,
        accuracy=_number(result.get("accuracy")),
        **{k: getattr(curve, k)[-1] for k in ("loss", "rmse", "mae") if records},
        accounted=math.inf if promised["epsilon"] is None else float(promised["epsilon"]),
        reason=promised.get("reason") or "",
        delta=_number(promised.get("delta")),
        unit=str(promised["unit"]),
        relation=str(promised["relation"]),
        viewer=str(promised["viewer"]),
        channel=str(plan.get("channel") or "direct"),
        rounds=int(result["rounds"]),
        bytes_up=sum(_number(r.get("bytes_up")) for r in records),
        seconds=sum(_number(r.get("seconds")) for r in records),
        claim=None if claim is None else _claim(claim),
        notes=tuple(str(note) for note in result.get("notes") or ()),
        curve=curve,
    )


def _claim(data: dict[str, Any]) -> ClaimLine:
    delta = data.get("delta")
    return ClaimLine(
        float(data["epsilon"]),
        None if delta is None else float(delta),
        str(data.get("scope") or "total"),
        str(data.get("source") or ""),
        str(data.get("why_not") or ""),
        str(data.get("unit") or ""),
        str(data.get("viewer") or ""),
    )


def _number(value: Any) -> float:
    return math.nan if value is None else float(value)


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RunError(f"{path} is missing or damaged: {error}") from error


def _records(path: Path) -> list[dict[str, Any]]:
    try:
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, ValueError) as error:
        raise RunError(f"{path} is missing or damaged: {error}") from error
