"""Runs as they are now: state, rounds, epsilon spent, the score with its curve, and how fast a run goes.

A `LiveRun` reads the public part of a run and, every time it is asked, only what was appended. Of a round it keeps few
numbers, so that a run of a hundred thousand rounds takes a few megabytes. `LiveRuns` finds the runs in folders, also
those that appear later. Works on runs that go on, have ended or died, and on copies; damaged ones are shown up to the
damage. No time is part of what is told unless the caller asks for it: how long rounds take tells who was drawn.
"""

from __future__ import annotations

import math
import os
from array import array
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sordino.core.errors import RunError
from sordino.core.parts import PUBLIC
from sordino.core.record import RoundRecord
from sordino.report import reading
from sordino.report.growing import DAMAGE, RecordFile, opened, public_record
from sordino.report.reading import State, harmless, mapping_at, number_at, text_at
from sordino.report.run.fields import is_number

END = 64 * 2**10  # bytes at the end of a large file of records that are looked at first
LARGE = 2**20  # bytes of records from which on the end is looked at first
WINDOW = 90.0  # seconds over which the speed of a run is taken
MEASURES = ("accuracy", "rmse", "mae", "loss")  # the first that a run has is shown
LONGEST = 200  # letters of a name
WHOLE = 2**53  # largest number of rounds that is believed
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class LiveRow:
    """What is known of a run now; None where its records do not say it."""

    name: str
    path: Path
    state: State
    method: str = ""
    data: str = ""
    round: int = 0
    planned: int = 0
    epsilon: float | None = None  # spent so far; inf if there is no guarantee
    total: float | None = None  # of the whole run
    claimed: float | None = None  # by a paper, of a printed form
    unit: str = ""
    viewer: str = ""
    measure: str = ""  # one of MEASURES
    value: float | None = None  # in the last round in which it was measured
    damage: tuple[str, ...] = ()
    loading: bool = False  # whether the end of the records alone was read so far
    public_data: bool = False  # whether times may be told to anybody
    since: float | None = None  # seconds since the last round
    per_minute: float | None = None  # rounds a minute
    left: float | None = None  # seconds until the end


@dataclass
class _Measured:
    """A few numbers of every round."""

    rounds: array[float] = field(default_factory=lambda: array("d"))
    epsilon: array[float] = field(default_factory=lambda: array("d"))
    values: dict[str, array[float]] = field(default_factory=lambda: {name: array("d") for name in MEASURES})

    def add(self, record: RoundRecord, viewer: str) -> None:
        metrics = record.metrics if isinstance(record.metrics, dict) else {}
        self.rounds.append(_float(record.round))
        self.epsilon.append(_float(record.epsilon.get(viewer)))
        for name in MEASURES:
            self.values[name].append(_float(getattr(record, name, None) if name in ONES else metrics.get(name)))


ONES = ("accuracy", "loss")  # measures that are fields of a record


def _float(value: float | None) -> float:
    try:
        return math.nan if value is None else float(value)
    except OverflowError:  # a whole number that no record has
        return math.nan


class LiveRun:
    """One run, which is read again and again."""

    def __init__(self, path: Path, name: str = "") -> None:
        """Look at a run that `reading.find` or `LiveRuns` has found; nothing is read yet."""
        self.path = path
        self.public = reading.public_part(path)
        self.name = harmless(name or reading.name_of(path))[:LONGEST]
        self._file = RecordFile(self.public / "records.jsonl", public_record)
        self._list: list[RoundRecord] | None = None
        self._numbers = _Measured()
        self._read = False  # whether the records were read from their beginning
        self._last: RoundRecord | None = None
        self._marks: dict[str, tuple[int, ...]] = {}
        self._files: dict[str, dict[str, object]] = {}
        self._damaged: dict[str, list[str]] = {}
        self._pace: deque[tuple[float, int]] = deque()
        self.state: State = "unknown"

    # --- reading

    def look(self) -> None:
        """Find out whether the run goes on, and when it last wrote; nothing else is read."""
        if self.state == "finished":
            return
        locked = reading.held(self.path)  # before the result: a run that ends in between has written it
        finished = os.path.isfile(self.public / "result.json")  # noqa: PTH113 (never raises)
        self.state = "finished" if finished else "unknown" if locked is None else "running" if locked else "stopped"

    @property
    def changed(self) -> float:
        """When the records were last written to, in seconds since 1970; 0.0 if that cannot be known."""
        for path in (self.public / "records.jsonl", self.public / "plan.json"):
            try:
                return path.stat().st_mtime
            except (OSError, ValueError):
                continue
        return 0.0

    def glance(self) -> None:
        """Read what is small, and of a large file of records the end alone."""
        self._small()
        if not self._read and self._size() > LARGE:
            self._last = self._at_end()
        else:
            self.refresh()

    def refresh(self) -> None:
        """Read everything that was written since the last call."""
        self.look()
        self._small()
        records = self._file.refresh()
        if records is not self._list:  # a resumed run has replaced the file
            self._numbers, self._list = _Measured(), records
        viewer = text_at(self._promise(), "viewer")
        for record in records[1:] if self._numbers.rounds else records:  # the first one is known already
            self._numbers.add(record, viewer)
        self._read = True
        if records:
            self._last = records[-1]
            del records[:-1]  # the last one stays: the order of rounds is checked by it
            self._note_pace()

    def _size(self) -> int:
        try:
            return (self.public / "records.jsonl").stat().st_size
        except (OSError, ValueError):
            return 0

    def _at_end(self) -> RoundRecord | None:
        try:
            with opened(self.public / "records.jsonl", self.public) as file:
                file.seek(-min(END, os.fstat(file.fileno()).st_size), os.SEEK_END)
                lines = file.read().split(b"\n")[1:-1]
        except OSError:
            return None
        for line in reversed(lines):
            try:
                return public_record(line)
            except DAMAGE:
                continue
        return None

    def _small(self) -> None:
        """Read the small files that have changed."""
        for name in ("plan.json", "result.json", "spec.toml"):
            path = self.public / name
            try:
                found = path.stat()
                mark: tuple[int, ...] = (found.st_ino, found.st_size, found.st_mtime_ns)
            except (OSError, ValueError):
                mark = ()
            if self._marks.get(name) != mark:
                self._marks[name], self._damaged[name] = mark, []
                read = reading.toml_in if name == "spec.toml" else reading.object_in
                self._files[name] = read(path, self.public, self._damaged[name]) if mark else {}

    # --- what is known

    def _promise(self) -> dict[str, object]:
        return mapping_at(self._files.get("result.json"), "guarantee") or mapping_at(
            self._files.get("plan.json"), "promise"
        )

    def _note_pace(self) -> None:
        changed, number = self._file.changed, self._last.round if self._last is not None else 0
        if changed is None or (self._pace and self._pace[-1][1] == number):
            return
        if self._pace and number < self._pace[-1][1]:
            self._pace.clear()
        self._pace.append((changed, number))
        while len(self._pace) > 2 and changed - self._pace[0][0] > WINDOW:
            self._pace.popleft()

    def _per_second(self) -> float | None:
        """Return the rounds a second: as seen while watching, else from the times of the files."""
        if len(self._pace) > 1 and self._pace[-1][0] > self._pace[0][0]:
            (first, before), (last, now) = self._pace[0], self._pace[-1]
            return (now - before) / (last - first)
        if self._last is None or self._file.changed is None:
            return None
        try:
            began = (self.public / "plan.json").stat().st_mtime
        except (OSError, ValueError):
            return None
        took = self._file.changed - began
        return self._last.round / took if took > 0 else None

    def row(self, now: float | None = None) -> LiveRow:
        """Return what is known of the run.

        Args:
            now: the time, in seconds since 1970, of a row that tells times; None: it tells none.
        """
        plan, spec, result = (self._files.get(n, {}) for n in ("plan.json", "spec.toml", "result.json"))
        promise, last = self._promise(), self._last
        total = math.inf if promise.get("infinite") is True else _number(promise, "epsilon")
        stated = (_number(spec, "rounds"), _number(plan, "promise", "rounds"))
        planned = next((int(n) for n in stated if n and 0 < n <= WHOLE), 0)
        done = min(last.round, WHOLE) if last is not None else 0
        measure = self._measure()
        value = self._value(measure)
        if self.state == "finished":
            value = value if measure != "accuracy" else (_number(result, "accuracy") or value)
        spent = None if last is None else _known(_float(last.epsilon.get(text_at(promise, "viewer"))))
        since = per_minute = left = None
        if now is not None and self.state == "running":
            since = None if self._file.changed is None else max(0.0, now - self._file.changed)
            speed = self._per_second()
            per_minute = None if speed is None else 60 * speed
            left = max(0.0, (planned - done) / speed) if speed and planned else None
        return LiveRow(
            self.name,
            self.path,
            self.state,
            harmless(text_at(plan, "method"))[:LONGEST],
            harmless(text_at(spec, "dataset"))[:LONGEST],
            done,
            planned,
            math.inf if total == math.inf and last is not None else spent,
            total,
            _number(plan, "claim", "epsilon"),
            harmless(text_at(promise, "unit"))[:LONGEST],
            harmless(text_at(promise, "viewer"))[:LONGEST],
            measure,
            value,
            self.damage(),
            self._last is not None and not self._read,
            plan.get("public_data") is True,
            since,
            per_minute,
            left,
        )

    def damage(self) -> tuple[str, ...]:
        """Return what is wrong with the records, in sentences."""
        out = [harmless(text) for texts in self._damaged.values() for text in texts]
        if self._file.damage:
            count = len(self._numbers.rounds)
            rounds = f"{count:,} {'round' if count == 1 else 'rounds'}"
            out.append(
                f"{self._file.path.name} is damaged or cannot be read after {rounds}; nothing after them is shown."
            )
        elif self._read and self.state == "finished":
            counted = _number(self._files.get("result.json"), "rounds")
            if counted is not None and len(self._numbers.rounds) < counted:
                out.append(f"{self._file.path.name} holds {len(self._numbers.rounds):,} of {counted:,.0f} rounds.")
        return tuple(out)

    def _measure(self) -> str:
        if not self._read and self._last is not None:
            one = _Measured()
            one.add(self._last, "")
            return next((m for m in MEASURES if not math.isnan(one.values[m][0])), "")
        return next((m for m in MEASURES if self._any(m)), "")

    def _any(self, measure: str) -> bool:
        return bool(np.isfinite(np.frombuffer(self._numbers.values[measure] or array("d", [math.nan]))).any())

    def _value(self, measure: str) -> float | None:
        if not measure:
            return None
        if not self._read and self._last is not None:
            one = _Measured()
            one.add(self._last, "")
            return _known(one.values[measure][0])
        values = self._numbers.values[measure]
        return next((v for v in reversed(values) if math.isfinite(v)), None)

    def curve(self, measure: str = "") -> tuple[Floats, Floats]:
        """Return rounds, and the score of a run, or "epsilon" in them; nan where nothing was measured."""
        name = measure or self._measure()
        values = self._numbers.epsilon if name == "epsilon" else self._numbers.values.get(name, array("d"))
        return np.array(self._numbers.rounds), np.array(values)


def _number(data: object, *keys: str) -> float | None:
    """Return the number under these keys, if floating point can hold it."""
    value = number_at(data, *keys)
    return float(value) if is_number(value) and value is not None else None


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value


# --- many runs


class LiveRuns:
    """The runs in some folders: runs themselves, folders of runs, and comparisons with their cells."""

    def __init__(self, places: Sequence[Path], follow: bool = False) -> None:
        """Look for runs.

        Raises:
            RunError: if a folder is not there, or holds no run and none is waited for.
        """
        self.places = tuple(places)
        self.runs: dict[Path, LiveRun] = {}
        for place in self.places:
            found = runs_in(place)
            if not found and not (follow and place.is_dir()):
                reading.find(place)  # raises the error that says what is there instead
        self.search()

    def search(self) -> None:
        """Look for runs that have appeared or are gone."""
        found: dict[Path, str] = {}
        for place in self.places:
            found |= runs_in(place)
        self.runs = {path: self.runs.get(path) or LiveRun(path, name) for path, name in found.items()}

    def ordered(self) -> list[LiveRun]:
        """Return all runs: those that go on first, then the newest."""
        for run in self.runs.values():
            run.look()
        times = {path: run.changed for path, run in self.runs.items()}
        return sorted(self.runs.values(), key=lambda run: (run.state != "running", -times[run.path], run.name))

    def counts(self) -> dict[str, int]:
        """Return how many runs are in which state."""
        out: dict[str, int] = {}
        for run in self.runs.values():
            out[run.state] = out.get(run.state, 0) + 1
        return out


def runs_in(place: Path) -> dict[Path, str]:
    """Return the runs that a path names, with the names by which they are told apart: itself, or those inside."""
    try:
        if _is_run(place):
            return {reading.find(place): ""}
        if place.name == PUBLIC and _is_run(place.parent):
            return {reading.find(place): ""}
        out: dict[Path, str] = {}
        for folder in _folders(place):
            if _is_run(folder):
                out[folder] = folder.name
            elif (folder / "cells").is_dir():
                out |= {cell: f"{folder.name}/{cell.name}" for cell in _folders(folder / "cells") if _is_run(cell)}
        if (place / "cells").is_dir():
            out |= {cell: cell.name for cell in _folders(place / "cells") if _is_run(cell)}
        return out
    except (OSError, ValueError, RunError):
        return {}


def _folders(place: Path) -> Iterable[Path]:
    """Return the folders inside one, without links that lead out of it."""
    with os.scandir(place) as entries:
        for entry in entries:
            if entry.is_symlink() and not Path(os.path.realpath(entry.path)).is_relative_to(os.path.realpath(place)):
                continue
            if entry.is_dir():
                yield Path(entry.path)


def _is_run(path: Path) -> bool:
    return os.path.isfile(path / PUBLIC / "plan.json") or os.path.isfile(path / "plan.json")  # noqa: PTH113
