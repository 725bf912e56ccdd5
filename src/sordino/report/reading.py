"""Reading the folder of a run for a report or a live view: of a finished run, a running one, a dead one or a copy.

For the public nothing but the public part is opened, so that a report cannot tell what it was not given. What is
damaged is left out and named in `damage`; records are read up to the first damaged line. Files are read only.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from sordino.core.errors import RunError
from sordino.core.parts import PRIVATE, PUBLIC, runs_below
from sordino.core.record import OwnerRecord, RoundRecord

Audience = Literal["public", "owner"]
LARGEST = 256 * 2**20  # bytes of a file that is read; no record of a run is larger


@dataclass(frozen=True)
class OwnerFiles:
    """What only the owner of the data may see of a run."""

    rounds: tuple[OwnerRecord, ...] = ()
    result: dict[str, Any] = field(default_factory=dict)  # epsilon for the draws that happened
    ledger: dict[str, Any] = field(default_factory=dict)  # which ledger, which job in it
    audit: dict[str, Any] = field(default_factory=dict)  # of a viewer who is not the guarantee's
    notes: tuple[str, ...] = ()
    participation: dict[str, Any] = field(default_factory=dict)  # how often every client took part
    attacks: tuple[dict[str, Any], ...] = ()  # the contents of private/attacks/*.json, with "file"
    error: str = ""  # why the run stopped


@dataclass(frozen=True)
class RunRecords:
    """The records of one run, as far as its reader may see them; an empty dict stands for a file that is not there."""

    path: Path
    name: str
    audience: Audience
    state: Literal["running", "finished", "stopped", "unknown"]  # unknown: an unfinished copy of the public part
    spec: dict[str, Any]
    plan: dict[str, Any]
    inputs: dict[str, Any]
    result: dict[str, Any]
    audit: dict[str, Any]
    accounting: dict[str, Any]
    seal: dict[str, Any]
    rounds: tuple[RoundRecord, ...]
    owner: OwnerFiles | None = None
    damage: tuple[str, ...] = ()
    baseline: dict[str, Any] = field(default_factory=dict)  # of the same run without privacy, where that is public
    signed: bool = False  # whether a signature lies beside the seal; it is not checked here

    @property
    def guarantee(self) -> dict[str, Any]:
        """The guarantee of the result, or what was promised if the run has not ended; {} if neither can be read."""
        for data, key in ((self.result, "guarantee"), (self.plan, "promise")):
            if isinstance(found := data.get(key), dict):
                return found
        return {}

    @property
    def planned_rounds(self) -> int:
        """The number of rounds that were planned, 0 if unknown."""
        for value in (self.spec.get("rounds"), (self.plan.get("promise") or {}).get("rounds"), len(self.rounds)):
            if isinstance(value, int) and not isinstance(value, bool):
                return value
        return 0


def find(path: Path) -> Path:
    """Return the folder of the run that a path names: the run itself, or one of its two parts.

    Raises:
        RunError: if there is no folder, or it is not that of one run.
    """
    if not path.exists():
        raise RunError(f"there is no run folder {path}.")
    if not path.is_dir():
        raise RunError(f"{path} is a file, not a run folder. Name the folder, such as runs/20270101-120000.")
    if (path / PUBLIC / "plan.json").is_file() or (path / "plan.json").is_file():
        run = path
    elif path.name == PRIVATE and (path.parent / PUBLIC / "plan.json").is_file():
        run = path.parent
    else:
        below = [str(p) for p in (runs_below(path) or runs_below(path / "cells"))]
        some = f" Runs in it: {', '.join(below[:8])}{' ...' if len(below) > 8 else ''}." if below else ""
        raise RunError(f"{path} is not a run folder: it has no plan.json and no {PUBLIC}/plan.json.{some}")
    if run.name == PUBLIC and (run.parent / PRIVATE).is_dir():
        return run.parent
    return run


def read_run(path: Path, audience: Audience = "public") -> RunRecords:
    """Return the records of a run.

    Args:
        path: the folder of the run, or of its public part.
        audience: "public" opens nothing outside the public part; "owner" reads everything.

    Raises:
        RunError: if there is no run folder, or it was not written by Sordino, or it has no private part for the owner.
    """
    run = find(path)
    public = run / PUBLIC if (run / PUBLIC / "plan.json").is_file() else run
    damage: list[str] = []
    plan = _object(public / "plan.json", damage)
    if not damage and not {"method", "promise"} <= plan.keys():
        raise RunError(f"{public / 'plan.json'} was not written by Sordino: it names no method and no promise.")
    files = {name: _object(public / f"{name}.json", damage) for name in ("inputs", "result", "audit", "accounting")}
    tail = RoundFile(public / "records.jsonl")
    rounds = tail.refresh()
    owner = None
    if audience == "owner":
        owner = _of_owner(run, public, damage)
    return RunRecords(
        run,
        run.name if public.name == PUBLIC or run.name != PUBLIC else run.parent.name,
        audience,
        state_of(run, bool(files["result"])),
        _toml(public / "spec.toml", damage),
        plan,
        **files,
        seal=_object(public / "seal.json", damage),
        rounds=tuple(rounds),
        owner=owner,
        baseline=_object(public / "baseline.json", damage),
        damage=(*damage, *([tail.damage] if tail.damage else [])),
        signed=(public / "seal.json.sig").is_file(),
    )


class RoundFile:
    """A file of public round records that may still grow; every call of `refresh` reads what is new."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.damage = ""  # what is wrong with the first line that could not be read, in a sentence
        self.records: list[RoundRecord] = []
        self._offset = 0
        self._rest = b""

    def refresh(self) -> list[RoundRecord]:
        """Read what was appended since the last call, and return all records up to the first damaged line.

        A last line without an end is one that is being written; it is not damage.
        """
        try:
            size = self.path.stat().st_size
        except OSError:
            return self.records
        if size < self._offset:  # a resumed run removed rounds that were not saved
            self.records, self._offset, self._rest, self.damage = [], 0, b"", ""
        if size == self._offset:
            return self.records
        try:
            with self.path.open("rb") as file:
                file.seek(self._offset)
                data = file.read(LARGEST)
        except OSError as error:
            self.damage = f"{self.path.name} cannot be read ({error.strerror or error})."
            return self.records
        self._offset += len(data)
        *complete, self._rest = (self._rest + data).split(b"\n")
        if not self.damage:
            self._take(complete)
        return self.records

    def _take(self, lines: list[bytes]) -> None:
        for line in lines:
            if not line.strip():
                continue
            try:
                self.records.append(_record(line))
            except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
                shown = len(self.records)
                self.damage = (
                    f"{self.path.name} is damaged in line {shown + 1}: the {shown} rounds before it are shown, and "
                    "nothing after it."
                )
                return


def _record(line: bytes) -> RoundRecord:
    """Return a public record whose fields have the types that they should have."""
    record = RoundRecord.from_line(line.decode())
    numbers = (record.loss, record.accuracy, record.clip, record.noise, *record.epsilon.values())
    named = record.metrics or {}
    if isinstance(record.round, bool) or not isinstance(record.round, int) or record.round < 1:
        raise ValueError("round")
    if not all(v is None or _number(v) for v in (*numbers, *named.values())):
        raise ValueError("a number")
    if record.confusion is not None and not all(_number(v) for row in record.confusion for v in row):
        raise ValueError("confusion")
    if not all(isinstance(v, str | None) for v in (record.evaluated_on, record.lost)):
        raise ValueError("a text")
    return record


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _of_owner(run: Path, public: Path, damage: list[str]) -> OwnerFiles:
    private = run / PRIVATE
    if not private.is_dir():
        kind = "a copy of a public part" if public == run else "not complete"
        raise RunError(
            f"{run} has no {PRIVATE} part: it is {kind}. A report for the owner needs the run folder on the machine "
            "where the run took place; leave out --for owner for the public report."
        )
    rounds: list[OwnerRecord] = []
    for number, line in enumerate(_lines(private / "records.jsonl", damage), start=1):
        try:
            rounds.append(OwnerRecord.from_line(line))
        except (ValueError, TypeError, KeyError, AttributeError):
            damage.append(f"{PRIVATE}/records.jsonl is damaged in line {number}; nothing after it is shown.")
            break
    attacks = []
    for path in sorted((private / "attacks").glob("*.json")) if (private / "attacks").is_dir() else []:
        if found := _object(path, damage):
            attacks.append({"file": f"{PRIVATE}/attacks/{path.name}", **found})
    ledger = _object(private / "ledger.json", damage)
    error = _object(private / "error.json", damage)
    return OwnerFiles(
        tuple(rounds),
        _object(private / "result.json", damage),
        ledger,
        _object(private / "audit.json", damage),
        tuple(_lines(private / "notes.txt", damage)),
        _object(private / "participation.json", damage),
        tuple(attacks),
        str(next((v for v in error.values() if isinstance(v, str)), "")) if error else "",
    )


def state_of(run: Path, finished: bool) -> Literal["running", "finished", "stopped", "unknown"]:
    """Return whether a run goes on, has ended or was stopped, without opening anything in its private part."""
    if finished:
        return "finished"
    lock = run / PRIVATE / "lock"
    if not lock.is_file():
        return "unknown"
    return "running" if _locked(lock) else "stopped"


def _locked(path: Path) -> bool:
    """Return whether a process holds the lock of a run.

    The lock itself is tried only where the system does not list its locks: for an instant that would keep a run from
    starting.
    """
    table = Path("/proc/locks")
    try:
        inode = str(path.stat().st_ino)
        if table.is_file():
            rows = [line.split() for line in table.read_text().splitlines()]
            return any("FLOCK" in row and "WRITE" in row and row[-3].split(":")[-1] == inode for row in rows)
        with path.open("r") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except (OSError, IndexError):
        return False
    return False


def _object(path: Path, damage: list[str]) -> dict[str, Any]:
    """Return the JSON object in a file; {} if there is no file, or, with a sentence in `damage`, no such object."""

    def parse(text: str) -> Any:
        return json.loads(text, parse_constant=lambda name: math.nan)

    return _parsed(path, damage, parse)


def _toml(path: Path, damage: list[str]) -> dict[str, Any]:
    return _parsed(path, damage, tomllib.loads)


def _parsed(path: Path, damage: list[str], parse: Callable[[str], Any]) -> dict[str, Any]:
    where = f"{path.parent.name}/{path.name}"
    try:
        if not path.is_file():
            return {}
        if path.stat().st_size > LARGEST:
            raise ValueError("it is too large to be a record of a run")
        data = parse(path.read_text(encoding="utf-8"))
        if not isinstance(data, dict):
            raise ValueError("it does not hold an object")
        return data
    except OSError as error:
        damage.append(f"{where} cannot be read ({error.strerror or error}); what it says is left out.")
    except (ValueError, RecursionError) as error:
        damage.append(f"{where} is damaged ({str(error).splitlines()[0][:120]}); what it says is left out.")
    return {}


def _lines(path: Path, damage: list[str]) -> list[str]:
    with contextlib.suppress(FileNotFoundError):
        try:
            return path.read_text(encoding="utf-8", errors="replace").splitlines()
        except FileNotFoundError:
            raise
        except OSError as error:
            damage.append(f"{path.parent.name}/{path.name} cannot be read ({error.strerror or error}).")
    return []
