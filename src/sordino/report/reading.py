"""Reading the folder of a run for a report or a live view: of a finished run, a running one, a dead one or a copy.

For the public nothing but the public part is read, so that a report cannot tell what it was not given; of the private
part only the lock, an empty file, is tried, to tell a run that goes on from one that died. What is damaged is left out
and named in `damage`; records are read up to the first damaged line. Nothing is written, and no link is followed out of
the part of the folder in which it stands: a folder that somebody sent must not draw in other files of its reader.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import sys
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from sordino.core.errors import RunError
from sordino.core.parts import PRIVATE, PUBLIC, runs_below
from sordino.core.record import OwnerRecord, RoundRecord
from sordino.report.growing import RecordFile, RoundFile, opened, owner_record

__all__ = [
    "Audience", "OwnerFiles", "RoundFile", "RunRecords", "State", "amount_at", "find", "harmless", "list_at",
    "mapping_at", "number_at", "read_run", "state_of", "text_at",
]  # fmt: skip

Audience = Literal["public", "owner"]
State = Literal["running", "finished", "stopped", "unknown"]  # unknown: an unfinished copy of the public part
LARGEST = 256 * 2**20  # bytes of a file other than the round records; none of a run is larger
OURS = ("spec.toml", "records.jsonl", "inputs.json")  # beside a plan.json that cannot be read: the folder is ours
NAMED = 8  # largest number of runs that a message lists


def harmless(text: str) -> str:
    """Return a text of a record or a file name on one line, without characters that a terminal would obey."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


# --- values inside records, which may have any type


def _at(data: Any, keys: tuple[str, ...]) -> Any:
    for key in keys:
        data = data.get(key) if isinstance(data, dict) else None
    return data


def number_at(data: Any, *keys: str) -> float | None:
    """Return the number under these keys, one inside the other; None if there is none."""
    value = _at(data, keys)
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def amount_at(data: Any, *keys: str) -> float | None:
    """Return the number under these keys if it is finite and not below zero, as an epsilon, a delta and a count are."""
    value = number_at(data, *keys)
    return float(value) if value is not None and 0 <= value <= sys.float_info.max else None


def text_at(data: Any, *keys: str) -> str:
    """Return the text under these keys; "" if there is none."""
    return value if isinstance(value := _at(data, keys), str) else ""


def mapping_at(data: Any, *keys: str) -> dict[str, Any]:
    """Return the object under these keys; {} if there is none."""
    return value if isinstance(value := _at(data, keys), dict) else {}


def list_at(data: Any, *keys: str) -> list[Any]:
    """Return the list under these keys; [] if there is none."""
    return value if isinstance(value := _at(data, keys), list) else []


# --- runs


@dataclass(frozen=True)
class OwnerFiles:
    """What only the owner of the data may see of a run."""

    rounds: tuple[OwnerRecord, ...] = ()
    result: dict[str, Any] = field(default_factory=dict)  # epsilon for the draws that happened
    ledger: dict[str, Any] = field(default_factory=dict)  # which ledger, which job in it
    audit: dict[str, Any] = field(default_factory=dict)  # of a viewer who is not the guarantee's
    notes: tuple[str, ...] = ()
    participation: dict[str, Any] = field(default_factory=dict)  # how often every client took part
    federation: dict[str, Any] = field(default_factory=dict)  # sites of a run on real sites, and what they answered
    attacks: tuple[dict[str, Any], ...] = ()  # the contents of private/attacks/*.json, with "file"
    error: str = ""  # why the run stopped


@dataclass(frozen=True)
class RunRecords:
    """The records of one run, as far as its reader may see them; an empty dict stands for a file that is not there."""

    path: Path
    name: str
    audience: Audience
    state: State
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
    tune: dict[str, Any] = field(default_factory=dict)  # of the search that chose the run's settings, if one did
    signed: bool = False  # whether a signature lies beside the seal; it is not checked here

    @property
    def guarantee(self) -> dict[str, Any]:
        """The guarantee of the result, or what was promised if the run has not ended; {} if neither can be read."""
        return mapping_at(self.result, "guarantee") or mapping_at(self.plan, "promise")

    @property
    def planned_rounds(self) -> int:
        """The number of rounds that were planned; if that cannot be read, the number of those on record."""
        for value in (number_at(self.spec, "rounds"), number_at(self.plan, "promise", "rounds")):
            if isinstance(value, int) and value > 0:
                return value
        return len(self.rounds)


def find(path: Path) -> Path:
    """Return the folder of the run that a path names: the run itself, or one of its two parts.

    Raises:
        RunError: if there is no folder, or it is not that of one run.
    """
    shown = harmless(str(path))
    try:
        whole = _whole(path)
        path.stat()
        if not path.is_dir():
            raise RunError(f"{shown} is a file, not a run folder. Name the folder, such as runs/20270101-120000.")
        if (path / PUBLIC / "plan.json").is_file() or (path / "plan.json").is_file():
            if whole.name == PUBLIC and (whole.parent / PRIVATE).is_dir():
                return path.parent if path.name == PUBLIC else whole.parent
            return path
        if whole.name == PRIVATE and (whole.parent / PUBLIC / "plan.json").is_file():
            return path.parent if path.name == PRIVATE else whole.parent
        below = [harmless(str(p)) for p in (runs_below(path) or runs_below(path / "cells"))]
    except (FileNotFoundError, ValueError) as error:  # ValueError: a path with a zero byte
        raise RunError(
            f"there is no run folder {shown}. Name one that is there, such as runs/20270101-120000."
        ) from error
    except OSError as error:
        raise RunError(f"the run folder {shown[:200]} cannot be read: {error.strerror or error}.") from error
    some = f" Runs in it: {', '.join(below[:NAMED])}{' and more' if len(below) > NAMED else ''}." if below else ""
    raise RunError(f"{shown} is not a run folder: it has no plan.json and no {PUBLIC}/plan.json.{some}")


def _whole(path: Path) -> Path:
    """Return a path whose last part is a name, also that of "."; links keep their own names."""
    return Path(os.path.abspath(path))  # noqa: PTH100 (resolve() follows links)


def public_part(run: Path) -> Path:
    """Return the folder with the public files of a run that `find` has found."""
    return run / PUBLIC if (run / PUBLIC / "plan.json").is_file() else run


def name_of(run: Path) -> str:
    """Return the name of a run that `find` has found; a copy of its public part may still be called "public"."""
    whole = _whole(run)
    return whole.parent.name if whole.name == PUBLIC and public_part(run) == run else whole.name


def read_run(path: Path, audience: Audience = "public") -> RunRecords:
    """Return the records of a run.

    Args:
        path: the folder of the run, or of its public part.
        audience: "public" reads nothing outside the public part; "owner" reads everything.

    Raises:
        RunError: if there is no run folder, or it was not written by Sordino, or it has no private part for the owner.
    """
    run = find(path)
    public = public_part(run)
    damage: list[str] = []
    plan = read_plan(public, damage)
    held = _held(run)  # before the result is read: a run that ends in between has written it
    names = ("inputs", "result", "audit", "accounting", "seal", "baseline", "tune")
    files = {name: _object(public / f"{name}.json", public, damage) for name in names}
    tail = RoundFile(public / "records.jsonl")
    tail.refresh()
    state = _state(held, bool(files["result"]))
    damage += _of_rounds(tail, state, files["result"])
    return RunRecords(
        run,
        name_of(run),
        audience,
        state,
        _toml(public / "spec.toml", public, damage),
        plan,
        **files,
        rounds=tuple(tail.records),
        owner=_of_owner(run, public, damage) if audience == "owner" else None,
        damage=tuple(damage),
        signed=os.path.isfile(public / "seal.json.sig"),  # noqa: PTH113 (never raises, other than Path.is_file)
    )


def read_plan(public: Path, damage: list[str]) -> dict[str, Any]:
    """Return the plan of a run; {} and a sentence in `damage` if it is damaged.

    Raises:
        RunError: if it is not the plan of a run of Sordino.
    """
    plan = _object(public / "plan.json", public, damage)
    if plan:
        ours = isinstance(plan.get("method"), str) and isinstance(plan.get("promise"), dict)
    else:
        ours = any(os.path.isfile(public / name) for name in OURS)  # noqa: PTH113
    if not ours:
        raise RunError(
            f"{harmless(str(public / 'plan.json'))} was not written by Sordino: it names no method and no promise."
        )
    return plan


def _of_rounds(tail: RoundFile, state: State, result: dict[str, Any]) -> list[str]:
    """Return sentences on what is missing of the rounds."""
    if tail.damage:
        return [tail.damage]
    counted, found = number_at(result, "rounds"), len(tail.records)
    if state == "finished" and counted is not None and found < counted:
        cut = ": its last line is cut off" if tail.torn else ""
        return [f"{tail.path.name} holds {found:,} of the {counted:,} rounds of the run{cut}."]
    return []


def _of_owner(run: Path, public: Path, damage: list[str]) -> OwnerFiles:
    private = run / PRIVATE
    try:
        with os.scandir(private):
            pass
    except (FileNotFoundError, NotADirectoryError) as error:
        kind = "a copy of a public part" if public == run else "not complete"
        raise RunError(
            f"{harmless(str(run))} has no {PRIVATE} part: it is {kind}. What is for the owner needs the run folder on "
            "the machine where the run took place; leave out --for owner to see what is public."
        ) from error
    except OSError as error:
        raise RunError(
            f"{harmless(str(private))} cannot be read ({error.strerror or error}): it is for the owner of the run "
            "alone. Leave out --for owner to see what is public."
        ) from error
    rounds = RecordFile(private / "records.jsonl", owner_record)
    rounds.refresh()
    if rounds.damage:
        damage.append(f"{PRIVATE}/{rounds.damage}")
    attacks = []
    for path in sorted((private / "attacks").glob("*.json")):
        if found := _object(path, private, damage):
            attacks.append({**found, "file": f"{PRIVATE}/attacks/{path.name}"})
    names = ("result", "ledger", "audit", "participation", "federation")
    files = {name: _object(private / f"{name}.json", private, damage) for name in names}
    error_file = _object(private / "error.json", private, damage)
    return OwnerFiles(
        tuple(rounds.records),
        **files,
        notes=tuple(_lines(private / "notes.txt", private, damage)),
        attacks=tuple(attacks),
        error=next((v for v in error_file.values() if isinstance(v, str)), ""),
    )


# --- whether a run goes on


def state_of(run: Path) -> State:
    """Return the state of a run that `find` has found."""
    held = _held(run)
    return _state(held, bool(_object(public_part(run) / "result.json", public_part(run), [])))


def _state(held: bool | None, finished: bool) -> State:
    if finished:
        return "finished"
    return "unknown" if held is None else "running" if held else "stopped"


def held(folder: Path) -> bool | None:
    """Return whether a process holds the lock of a run or of a comparison; None if that cannot be known."""
    return _held(folder)


def _held(run: Path) -> bool | None:
    """Return whether a process holds the lock of a run; None if that cannot be known.

    The lock is tried, shared and for an instant, which leaves the file as it is. A table of the system's locks would
    not do: it lists inodes, which a copy on another disk may share, and no locks of other machines or containers.
    """
    try:
        with opened(run / PRIVATE / "lock", run) as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return None
    return False


# --- files


def object_in(path: Path, root: Path, damage: list[str]) -> dict[str, Any]:
    """Return the JSON object in a file inside the folder `root`; {} and a sentence in `damage` if it is damaged."""
    return _object(path, root, damage)


def toml_in(path: Path, root: Path, damage: list[str]) -> dict[str, Any]:
    """Return the contents of a TOML file inside the folder `root`; {} and a sentence if it is damaged."""
    return _toml(path, root, damage)


def text_in(path: Path, root: Path, damage: list[str]) -> str:
    """Return the text of a file inside the folder `root`; "" if there is none, or it cannot be read."""
    return "\n".join(_lines(path, root, damage))


def _object(path: Path, root: Path, damage: list[str]) -> dict[str, Any]:
    """Return the JSON object in a file; {} if there is no file, or, with a sentence in `damage`, no such object."""

    def parse(text: str) -> Any:
        return json.loads(text, parse_constant=lambda name: math.nan)

    return _parsed(path, root, damage, parse)


def _toml(path: Path, root: Path, damage: list[str]) -> dict[str, Any]:
    return _parsed(path, root, damage, tomllib.loads)


def _parsed(path: Path, root: Path, damage: list[str], parse: Callable[[str], Any]) -> dict[str, Any]:
    where = _where(path)
    try:
        data = parse(_text(path, root))
        if not isinstance(data, dict):
            raise ValueError("it does not hold an object")
        return data
    except FileNotFoundError:
        return {}
    except OSError as error:
        damage.append(f"{where} cannot be read ({error.strerror or error}); what it says is left out.")
    except UnicodeDecodeError:
        damage.append(f"{where} is damaged (it is not text in UTF-8); what it says is left out.")
    except (ValueError, RecursionError) as error:
        said = harmless((str(error) or "it is empty").splitlines()[0][:120])
        damage.append(f"{where} is damaged ({said}); what it says is left out.")
    return {}


def _lines(path: Path, root: Path, damage: list[str]) -> list[str]:
    try:
        return _text(path, root, errors="replace").splitlines()
    except FileNotFoundError:
        return []
    except OSError as error:
        damage.append(f"{_where(path)} cannot be read ({error.strerror or error}).")
    except ValueError as error:
        damage.append(f"{_where(path)} cannot be read ({error}).")
    return []


def _text(path: Path, root: Path, errors: str = "strict") -> str:
    """Return the text of a file of a run.

    Raises:
        OSError: if it cannot be opened: see `opened`.
        ValueError: if it is too large or not text.
    """
    with opened(path, root) as file:
        data = file.read(LARGEST + 1)
    if len(data) > LARGEST:
        raise ValueError("it is too large to be a record of a run")
    return data.decode("utf-8", errors)


def _where(path: Path) -> str:
    return harmless(f"{path.parent.name}/{path.name}")
