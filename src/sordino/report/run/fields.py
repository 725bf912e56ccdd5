"""Safe reading of the fields of a record file: what has not the type or the range it should have is left out.

Records come from copies, from other machines and from runs that died. A field that is not there is None (or empty); a
field that is there but cannot be what it says it is is None as well, and a sentence in `damage` names it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from sordino.report.reading import RunRecords

LONGEST = 2000  # letters of a text that is shown
WHOLE = 2**53  # largest whole number that is believed


@dataclass(frozen=True)
class Fields:
    """A mapping of a record file."""

    file: str  # such as public/result.json
    data: Any
    damage: list[str] = field(default_factory=list)
    path: str = ""  # of the mapping inside the file, such as guarantee

    def __bool__(self) -> bool:
        return isinstance(self.data, dict) and bool(self.data)

    def has(self, key: str) -> bool:
        """Return whether there is a value, of whatever type."""
        return isinstance(self.data, dict) and self.data.get(key) is not None

    def name(self, key: str) -> str:
        """Return the file and the field, as a source is named."""
        return f"{self.file}: {self._path(key)}"

    def number(self, key: str, low: float = -math.inf, high: float = math.inf) -> float | None:
        """Return a finite number between two bounds."""
        value = self._value(key)
        if value is None:
            return None
        if is_number(value) and low <= value <= high:
            return float(value)
        self.report(key, f"a number{_between(low, high)}")
        return None

    def share(self, key: str) -> float | None:
        """Return a number between 0 and 1."""
        return self.number(key, 0.0, 1.0)

    def count(self, key: str, low: int = 0) -> int | None:
        """Return a whole number."""
        value = self._value(key)
        if value is None:
            return None
        if is_number(value) and value == int(value) and low <= value <= WHOLE:
            return int(value)
        self.report(key, f"a whole number of at least {low}")
        return None

    def text(self, key: str) -> str:
        """Return a text on one line; "" if there is none."""
        value = self._value(key)
        if value is None:
            return ""
        if isinstance(value, str):
            return one_line(value)
        self.report(key, "a text")
        return ""

    def texts(self, key: str) -> tuple[str, ...]:
        """Return a list of texts."""
        value = self._value(key)
        if value is None:
            return ()
        if isinstance(value, list | tuple) and all(isinstance(v, str) for v in value):
            return tuple(one_line(v) for v in value)
        self.report(key, "a list of texts")
        return ()

    def flag(self, key: str) -> bool | None:
        """Return true or false."""
        value = self._value(key)
        if value is None or isinstance(value, bool):
            return value
        self.report(key, "true or false")
        return None

    def part(self, key: str) -> Fields:
        """Return a mapping inside this one; it is empty if there is none."""
        value = self._value(key)
        if value is not None and not isinstance(value, dict):
            self.report(key, "an object")
            value = None
        return Fields(self.file, value or {}, self.damage, self._path(key))

    def parts(self, key: str) -> tuple[Fields, ...]:
        """Return a list of mappings."""
        value = self._value(key)
        if value is None:
            return ()
        if isinstance(value, list | tuple) and all(isinstance(v, dict) for v in value):
            return tuple(Fields(self.file, v, self.damage, self._path(key)) for v in value)
        self.report(key, "a list of objects")
        return ()

    def numbers(self, low: float = -math.inf, high: float = math.inf) -> dict[str, float]:
        """Return all fields that are numbers between two bounds, by name."""
        out = {}
        for key in self.names():
            value = self.number(key, low, high)
            if value is not None:
                out[key] = value
        return out

    def names(self) -> Iterator[str]:
        """Yield the names of all fields that have a value."""
        if isinstance(self.data, dict):
            yield from (str(k) for k, v in self.data.items() if v is not None)

    def matrix(self, key: str, low: float = 0.0) -> tuple[tuple[float, ...], ...]:
        """Return a table of numbers whose rows have the same length; () if there is none."""
        value = self._value(key)
        rows = table(value, low)
        if value is not None and not rows and value != []:
            self.report(key, "a table of numbers")
        return rows

    def row(self, key: str, low: float = -math.inf) -> tuple[float, ...]:
        """Return a list of numbers; () if there is none."""
        value = self._value(key)
        if value is None:
            return ()
        if isinstance(value, list | tuple) and all(is_number(v) and v >= low for v in value):
            return tuple(float(v) for v in value)
        self.report(key, "a list of numbers")
        return ()

    def _value(self, key: str) -> Any:
        return self.data.get(key) if isinstance(self.data, dict) else None

    def _path(self, key: str) -> str:
        return f"{self.path}.{key}" if self.path else key

    def report(self, key: str, what: str) -> None:
        """Note that a field is not what it should be."""
        sentence = f"{self.file}: {one_line(self._path(key))[:80]} is not {what}; what depends on it is left out."
        if sentence not in self.damage:
            self.damage.append(sentence)


def is_number(value: Any) -> bool:
    """Return whether a value is a finite number that floating point can hold."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(float(value))
    except OverflowError:
        return False


def table(value: Any, low: float = 0.0) -> tuple[tuple[float, ...], ...]:
    """Return a table of numbers whose rows have the same length; () if the value is none."""
    if not isinstance(value, list | tuple) or not all(isinstance(row, list | tuple) for row in value):
        return ()
    fine = all(is_number(v) and v >= low for row in value for v in row) and len({len(row) for row in value}) == 1
    return tuple(tuple(float(v) for v in row) for row in value) if fine and value and value[0] else ()


def one_line(text: str) -> str:
    """Return a text without line ends and control characters, and no longer than a page can show."""
    clean = "".join(c if c.isprintable() else " " for c in text[: LONGEST + 1])
    return clean if len(clean) <= LONGEST else f"{clean[:LONGEST]} ..."


def _between(low: float, high: float) -> str:
    if math.isinf(low) and math.isinf(high):
        return ""
    return f" of at least {low:g}" if math.isinf(high) else f" from {low:g} to {high:g}"


@dataclass(frozen=True)
class RunSources:
    """The records of a run, read field by field; what is wrong with them gathers in `damage`."""

    records: RunRecords
    damage: list[str] = field(default_factory=list)

    @property
    def owners(self) -> bool:
        """Whether the report is for the owner of the data."""
        return self.records.owner is not None and self.records.audience == "owner"

    @property
    def finished(self) -> bool:
        """Whether the run has ended with a result."""
        return bool(self.result)

    @property
    def result(self) -> Fields:
        return self._of("public/result.json", self.records.result)

    @property
    def plan(self) -> Fields:
        return self._of("public/plan.json", self.records.plan)

    @property
    def spec(self) -> Fields:
        return self._of("public/spec.toml", self.records.spec)

    @property
    def inputs(self) -> Fields:
        return self._of("public/inputs.json", self.records.inputs)

    @property
    def accounting(self) -> Fields:
        return self._of("public/accounting.json", self.records.accounting)

    @property
    def seal(self) -> Fields:
        return self._of("public/seal.json", self.records.seal)

    @property
    def baseline(self) -> Fields:
        return self._of("public/baseline.json", self.records.baseline)

    @property
    def tune(self) -> Fields:
        return self._of("public/tune.json", self.records.tune)

    @property
    def audit(self) -> Fields:
        """The audit that may be shown: the public one, else, to the owner, the private one."""
        if self.records.audit or self.records.owner is None or not self.owners:
            return self._of("public/audit.json", self.records.audit)
        return self._of("private/audit.json", self.records.owner.audit)

    def owner(self, name: str) -> Fields:
        """Return an owner's file, such as "participation"; it is empty in a report for the public."""
        held = getattr(self.records.owner, name) if self.records.owner is not None and self.owners else {}
        return self._of(f"private/{name}.json", held)

    def _of(self, file: str, data: Mapping[str, Any]) -> Fields:
        if not isinstance(data, dict):
            sentence = f"{file} does not hold an object; what it says is left out."
            if sentence not in self.damage:
                self.damage.append(sentence)
            return Fields(file, {}, self.damage)
        return Fields(file, data, self.damage)
