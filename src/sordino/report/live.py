"""A run as it is now: state, rounds, epsilon spent, the score, curves, and how fast it goes.

A `LiveRun` reads the public part of a run and, every time it is asked, only what was appended. Of a round it keeps few
numbers, so that a run of a hundred thousand rounds takes a few megabytes. Works on runs that go on, have ended or died,
and on copies; damaged ones are shown up to the damage. No time is part of what is told unless the caller asks for it:
how long rounds take tells who was drawn.
"""

from __future__ import annotations

import math
import os
from array import array
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from sordino.core.record import RoundRecord
from sordino.report import reading
from sordino.report.chart import Point
from sordino.report.growing import DAMAGE, RecordFile, opened, public_record
from sordino.report.reading import State, amount_at, harmless, mapping_at, number_at, text_at

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

END = 64 * 2**10  # bytes at the end of a large file of records that are looked at first
LARGE = 2**17  # bytes of records from which on the end is looked at first
WINDOW = 90.0  # seconds over which the speed of a run is taken
MEASURES = ("accuracy", "rmse", "mae", "loss")  # the first that a run has is shown
LONGEST = 200  # letters of a name
WHOLE = 2**53  # largest number of rounds that is believed
VIEWERS = 12  # whose epsilon is kept


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
    epsilon: float | None = None  # spent so far, against the viewer of the guarantee; inf if there is no guarantee
    total: float | None = None  # of the whole run
    claimed: float | None = None  # by a paper, of a printed form
    delta: float | None = None
    unit: str = ""
    relation: str = ""
    viewer: str = ""
    measure: str = ""  # one of MEASURES
    value: float | None = None  # in the last round in which it was measured
    damage: tuple[str, ...] = ()
    loading: bool = False  # whether the end of the records alone was read so far
    public_data: bool = False  # whether times may be told to anybody
    since: float | None = None  # seconds since the last round
    per_minute: float | None = None  # rounds a minute
    left: float | None = None  # seconds until the end


NUMBERS_OF = {  # numbers of the small files that are shown; none of them is below zero
    "plan.json": (("promise", "epsilon"), ("promise", "delta"), ("claim", "epsilon")),
    "result.json": (("guarantee", "epsilon"), ("guarantee", "delta"), ("rounds",), ("accuracy",)),
}
NUMBERS = ("accuracy", "loss", "noise", "clip")  # of every round, beside its metrics
CURVES = tuple(dict.fromkeys((*MEASURES, *NUMBERS)))


@dataclass
class _Measured:
    """A few numbers of every round; nan where there is none."""

    rounds: array[float] = field(default_factory=lambda: array("d"))
    epsilon: dict[str, array[float]] = field(default_factory=dict)  # by viewer
    values: dict[str, array[float]] = field(default_factory=lambda: {name: array("d") for name in CURVES})
    known: set[str] = field(default_factory=set)  # names of `values` with any number

    def add(self, record: RoundRecord) -> None:
        for viewer in record.epsilon:
            if viewer not in self.epsilon and len(self.epsilon) < VIEWERS:
                self.epsilon[viewer] = array("d", [math.nan]) * len(self.rounds)
        self.rounds.append(_float(record.round))
        for viewer, line in self.epsilon.items():
            line.append(_float(record.epsilon.get(viewer)))
        metrics = record.metrics or {}
        for name, line in self.values.items():
            value = _float(getattr(record, name) if name in NUMBERS else metrics.get(name))
            line.append(value)
            if math.isfinite(value):
                self.known.add(name)


def _float(value: float | None) -> float:
    try:
        return math.nan if value is None else float(value)
    except OverflowError:  # a whole number that no record has
        return math.nan


class LiveRun:
    """One run, which is read again and again."""

    def __init__(self, path: Path, name: str = "") -> None:
        """Look at the folder of a run; nothing is read yet."""
        self.path = path
        self.public = reading.public_part(path)
        self.name = harmless(name or reading.name_of(path))[:LONGEST]
        self._file = RecordFile(self.public / "records.jsonl", public_record)
        self._list: list[RoundRecord] | None = None
        self._numbers = _Measured()
        self._read = False  # whether the records were read from their beginning
        self._torn = False  # whether the end of a large file is damaged, whose beginning was not read
        self._last: RoundRecord | None = None
        self._marks: dict[str, tuple[int, ...]] = {}
        self._files: dict[str, dict[str, object]] = {}
        self._damaged: dict[str, list[str]] = {}
        self._pace: deque[tuple[float, int]] = deque()
        self.state: State = "unknown"

    # --- reading

    def look(self) -> None:
        """Find out whether the run goes on, and when it last wrote; nothing else is read."""
        result = self.public / "result.json"
        if self.state == "finished" and os.path.isfile(result):  # noqa: PTH113 (never raises)
            return
        locked = reading.held(self.path)  # before the result: a run that ends in between has written it
        finished = os.path.isfile(result)  # noqa: PTH113
        self.state = "finished" if finished else "unknown" if locked is None else "running" if locked else "stopped"

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
        for record in records[1:] if self._numbers.rounds else records:  # the first one is known already
            self._numbers.add(record)
        self._read, self._torn = True, False
        self._last = records[-1] if records else None
        if records:
            del records[:-1]  # the last one stays: the order of rounds is checked by it
            self._note_pace()

    def _size(self) -> int:
        try:
            return (self.public / "records.jsonl").stat().st_size
        except (OSError, ValueError):
            return 0

    def _at_end(self) -> RoundRecord | None:
        """Return the last round, of which no more than the end of the file is read."""
        self._torn = False
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
                self._torn = True
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
                self._check(name)

    def _check(self, name: str) -> None:
        """Note the numbers of a file that cannot be what they say; `row` leaves them out."""
        for keys in NUMBERS_OF.get(name, ()):
            if number_at(self._files[name], *keys) is not None and amount_at(self._files[name], *keys) is None:
                self._damaged[name].append(
                    f"{self.public.name}/{name}: {'.'.join(keys)} is not a number of at least 0; it is left out."
                )

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
        total = math.inf if promise.get("infinite") is True else amount_at(promise, "epsilon")
        stated = (amount_at(spec, "rounds"), amount_at(plan, "promise", "rounds"))
        planned = next((int(n) for n in stated if n and 0 < n <= WHOLE), 0)
        done = min(last.round, WHOLE) if last is not None else 0
        measure, spent = self.measure, None
        value = self._value(measure)
        if last is not None:
            spent = total if total == math.inf else _known(_float(last.epsilon.get(text_at(promise, "viewer"))))
        if self.state == "finished":
            spent, done = total, int(min(amount_at(result, "rounds") or done, WHOLE))
            if (accuracy := amount_at(result, "accuracy")) is not None:
                measure, value = "accuracy", accuracy
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
            spent,
            total,
            amount_at(plan, "claim", "epsilon"),
            amount_at(promise, "delta"),
            harmless(text_at(promise, "unit"))[:LONGEST],
            harmless(text_at(promise, "relation"))[:LONGEST],
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
            out.append(self._file.damage)
        elif self._torn:
            out.append(f"{self._file.path.name} is damaged at its end.")
        elif self.state == "finished":
            held = self.count if self._read else self._last.round if self._last is not None else 0
            counted = amount_at(self._files.get("result.json"), "rounds") or 0
            if held < counted:
                out.append(f"{self._file.path.name} holds {held:,} of the {counted:,.0f} rounds of the run.")
        return tuple(out)

    # --- curves

    def _seen(self) -> _Measured:
        """Return the numbers of all rounds, or, as long as the end of the file alone was read, those of the last."""
        if self._read or self._last is None:
            return self._numbers
        one = _Measured()
        one.add(self._last)
        return one

    @property
    def measure(self) -> str:
        """The name of the score: the first of MEASURES that the run has; "" without any."""
        return next((name for name in MEASURES if name in self._seen().known), "")

    @property
    def known(self) -> set[str]:
        """The names of all curves with a number, other than epsilon."""
        return self._seen().known

    @property
    def viewers(self) -> tuple[str, ...]:
        """The viewers whose epsilon is on record."""
        return tuple(self._seen().epsilon)

    @property
    def sentence(self) -> str:
        """The guarantee in words, or the promise of a run that has not ended."""
        return text_at(self._promise(), "sentence")

    @property
    def last(self) -> RoundRecord | None:
        """The last round on record."""
        return self._last

    @property
    def count(self) -> int:
        """The number of rounds that were read."""
        return len(self._numbers.rounds)

    def _value(self, measure: str) -> float | None:
        """Return the last number of a measure."""
        return next((v for v in reversed(self._seen().values.get(measure, ())) if math.isfinite(v)), None)

    def _curve(self, name: str, viewer: str) -> array[float]:
        if name != "epsilon":
            return self._numbers.values.get(name, array("d"))
        lines = self._numbers.epsilon
        viewer = viewer or text_at(self._promise(), "viewer")
        return lines.get(viewer) or next(iter(lines.values()), array("d"))

    def curve(self, name: str = "", viewer: str = "") -> tuple[Floats, Floats]:
        """Return the rounds and the values of a curve; nan where nothing was measured.

        Args:
            name: one of CURVES, or "epsilon"; by default the score.
            viewer: whose epsilon; by default that of the guarantee.
        """
        import numpy as np

        values = np.array(self._curve(name or self.measure, viewer))
        return np.array(self._numbers.rounds)[: len(values)], values

    def points(self, name: str = "", viewer: str = "", most: int = 600) -> tuple[Point, ...]:
        """Return at most about `most` points that look like the whole curve; () without any number."""
        rounds, values = self.curve(name, viewer)
        return _thinned(rounds, values, most) if len(values) else ()


def _thinned(x: Floats, y: Floats, most: int) -> tuple[Point, ...]:
    """Return of each stretch of a curve the smallest and the largest point, and both ends."""
    import numpy as np

    picked = np.arange(len(x))
    if len(x) > most:
        width = -(-len(x) // max(1, (most - 2) // 2))
        table = np.full((-(-len(x) // width), width), np.nan)
        table.ravel()[: len(x)] = y
        known, first = np.isfinite(table), np.arange(len(table)) * width
        low, high = np.where(known, table, np.inf).argmin(1), np.where(known, table, -np.inf).argmax(1)
        picked = np.unique([0, *(first + low), *(first + high), len(x) - 1])
    return tuple(zip(x[picked].tolist(), y[picked].tolist(), strict=True))


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value
