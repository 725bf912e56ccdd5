"""Files of a run that are read while it goes on: they grow, and a resumed run replaces them.

`opened` opens a file of a run and nothing else. `RecordFile` reads a file of round records; every further look reads
only what is new, so that a view may look once a second at a run of many rounds.
"""

from __future__ import annotations

import errno
import json
import math
import os
import re
import stat
import sys
from collections import deque
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, BinaryIO, Generic, TypeVar

from sordino.core.record import OwnerRecord, RoundRecord

CHUNK = 16 * 2**20  # bytes that are read and parsed at a time
LONGEST = 64 * 2**20  # bytes of a line; the confusion matrix of a thousand classes is far shorter
TAIL = 256  # bytes before the place where reading stopped, by which a rewritten file is noticed
HELD = 64 * 2**20  # bytes of confusion matrices that are kept: those of the last rounds
DAMAGE = (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError)  # raised by damaged lines
LARGEST = sys.float_info.max  # a whole number beyond it is no epsilon
FIELDS = frozenset(RoundRecord.__dataclass_fields__)

R = TypeVar("R", RoundRecord, OwnerRecord)


def opened(path: Path, root: Path) -> BinaryIO:
    """Open a file of a run for reading.

    Args:
        path: the file.
        root: the folder that it must lie in, also after all links are followed.

    Raises:
        FileNotFoundError: if it is not there.
        OSError: if it cannot be opened, leads out of `root`, or is not a plain file.
    """
    real = Path(os.path.realpath(path, strict=True))
    if not real.is_relative_to(os.path.realpath(root)):
        raise OSError(errno.ELOOP, "it is a link that leads out of its folder")
    handle = os.open(real, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)  # a pipe must not stop the reader
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, "it is not a plain file")
    return os.fdopen(handle, "rb")


class RecordFile(Generic[R]):
    """A file of round records that may still grow; every call of `refresh` reads what is new."""

    def __init__(self, path: Path, parse: Callable[[bytes], R], root: Path | None = None) -> None:
        self.path = path
        self.records: list[R] = []  # a reader may delete all but the last of them
        self.count = 0  # records that were read
        self.changed: float | None = None  # when the file was last written to, in seconds since 1970
        self._parse: Callable[[bytes], R] = parse
        self._root = root or path.parent
        self._unreadable = ""
        self._forget()

    def _forget(self) -> None:
        self.records, self.count, self._bad_line = [], 0, ""
        self._offset, self._lines, self._rest, self._tail = 0, 0, b"", b""
        self._inode: tuple[int, int] | None = None
        self._seen: tuple[int, ...] = ()

    @property
    def damage(self) -> str:
        """What is wrong with the file, in a sentence; "" if nothing is."""
        return self._unreadable or self._bad_line

    @property
    def torn(self) -> bool:
        """Whether the last line has no end: it is being written, or its writer died, or a copy was cut off."""
        return bool(self._rest.strip())

    def refresh(self) -> list[R]:
        """Read what was appended since the last call, and return all records up to the first damaged line.

        A last line without an end is one that is being written; it is not damage. If a resumed run has replaced the
        file, it is read anew.
        """
        try:
            if _mark(self.path.stat()) != self._seen:
                with opened(self.path, self._root) as file:
                    self._read(file)
            self._unreadable = ""
        except FileNotFoundError:
            self._unreadable = ""
        except OSError as error:
            self._unreadable = f"{self.path.name} cannot be read ({error.strerror or error})."
        return self.records

    def _read(self, file: BinaryIO) -> None:
        found = os.fstat(file.fileno())
        if self._replaced(file, found):
            self._forget()
        self._inode, self._seen, self.changed = (found.st_dev, found.st_ino), _mark(found), found.st_mtime
        file.seek(self._offset)
        while chunk := file.read(CHUNK):
            self._offset += len(chunk)
            self._tail = (self._tail + chunk)[-TAIL:]
            if self._bad_line:
                continue
            *complete, self._rest = (self._rest + chunk).split(b"\n")
            self._take(complete)
            if len(self._rest) > LONGEST:
                self._rest = b""
                self._damaged()

    def _replaced(self, file: BinaryIO, found: os.stat_result) -> bool:
        """Return whether the file is another one than before: a resumed run removes rounds that were not saved."""
        if self._inode is None:
            return False
        if self._inode != (found.st_dev, found.st_ino) or found.st_size < self._offset:
            return True
        file.seek(self._offset - len(self._tail))
        return file.read(len(self._tail)) != self._tail

    def _take(self, lines: list[bytes]) -> None:
        last = self.records[-1].round if self.records else 0
        for line in lines:
            self._lines += 1
            if not line or line.isspace():
                continue
            try:
                record = self._parse(line)
                if record.round <= last:
                    raise ValueError("rounds are not in order")
            except DAMAGE:
                self._lines -= 1
                self._damaged()
                return
            last = record.round
            self.count += 1
            self.records.append(record)

    def _damaged(self) -> None:
        shown = self.count
        before = {0: "no round is", 1: "the one round before it is"}.get(shown, f"the {shown:,} rounds before it are")
        self._bad_line = f"{self.path.name} is damaged in line {self._lines + 1}: {before} shown, and nothing after it."


def _mark(found: os.stat_result) -> tuple[int, ...]:
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


class RoundFile(RecordFile[RoundRecord]):
    """The public records of a run. Of very large confusion matrices only those of the last rounds are kept."""

    def __init__(self, path: Path, root: Path | None = None) -> None:
        super().__init__(path, self._record, root)

    def _forget(self) -> None:
        super()._forget()
        self._matrices: deque[LazyRecord] = deque()
        self._held = 0

    def _record(self, line: bytes) -> RoundRecord:
        record = public_record(line)
        if isinstance(record, LazyRecord):
            self._matrices.append(record)
            self._held += len(record.written)
            while self._held > HELD and len(self._matrices) > 1:
                oldest = self._matrices.popleft()
                self._held -= len(oldest.written)
                oldest.forget()
        return record


class _Later:
    """The confusion matrix of a record, which is parsed when somebody asks for it: most of the bytes of a line."""

    def __get__(self, record: LazyRecord | None, owner: type) -> list[list[float]] | None:
        if record is None or not record.written:
            return None
        try:
            matrix: list[list[float]] = json.loads(record.written)
        except ValueError:
            return None
        return matrix


class LazyRecord(RoundRecord):
    """A public record whose confusion matrix is still text; it is equal to a record with the same contents."""

    confusion = _Later()
    written: bytes  # the matrix as it stands in the file

    @staticmethod
    def of(fields: dict[str, Any], written: bytes) -> LazyRecord:
        """Return the record of these fields, which have been checked."""
        record = object.__new__(LazyRecord)
        record.__dict__.update(fields, written=written)
        return record

    def forget(self) -> None:
        """Give up the matrix."""
        self.__dict__["written"] = b""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RoundRecord) and asdict(self) == asdict(other)

    __hash__ = None  # type: ignore[assignment]


MATRIX = b', "confusion": [['
DIGITS = re.compile(rb"[0-9.eE, \[\]+-]*+")
NUMBERS = frozenset({int, float, type(None)})


def public_record(line: bytes) -> RoundRecord:
    """Return the public record on a line, also one of an earlier or a later version.

    Raises:
        ValueError, TypeError, KeyError, AttributeError or RecursionError: if a field does not have the type that it
            should have.
    """
    written = b""
    if (start := line.rfind(MATRIX)) > 0:
        first, end = start + len(MATRIX) - 2, line.rfind(b"]]") + 2
        if end > first and DIGITS.fullmatch(line, first, end):
            written, line = line[first:end], line[:start] + line[end:]
    data = json.loads(line.decode())
    if not data.keys() <= FIELDS:  # fields of other versions
        data = {k: v for k, v in data.items() if k in FIELDS}
    _check(data)
    return LazyRecord.of(data, written) if written else RoundRecord(**data)


def _check(data: dict[str, Any]) -> None:
    """Check the fields of a record, and give null the meaning it has: an epsilon is infinite, a metric unknown."""
    number, epsilon, metrics = data["round"], data["epsilon"], data.get("metrics")
    if type(number) is not int or number < 1:
        raise ValueError("round")
    if not set(map(type, epsilon.values())) <= NUMBERS:
        raise ValueError("epsilon")
    if None in epsilon.values():
        data["epsilon"] = epsilon = {k: math.inf if v is None else v for k, v in epsilon.items()}
    if not all(0 <= v <= LARGEST or v == math.inf for v in epsilon.values()):
        raise ValueError("epsilon")
    if metrics:
        if not set(map(type, metrics.values())) <= NUMBERS:
            raise ValueError("metrics")
        if None in metrics.values():
            data["metrics"] = {k: math.nan if v is None else v for k, v in metrics.items()}
    elif metrics is not None and not isinstance(metrics, dict):
        raise ValueError("metrics")
    get = data.get
    if not {type(get("loss")), type(get("accuracy")), type(get("clip")), type(get("noise"))} <= NUMBERS:
        raise ValueError("a number")
    if not isinstance(get("evaluated_on"), str | None) or not isinstance(get("lost"), str | None):
        raise ValueError("a text")
    if (matrix := get("confusion")) is not None and not all(_number(v) for row in matrix for v in row):
        raise ValueError("confusion")


def owner_record(line: bytes) -> OwnerRecord:
    """Return the owner's record on a line; raise an error as `public_record` does."""
    record = OwnerRecord.from_line(line.decode())
    counts = (record.round, record.clients, record.bytes_up, record.bytes_down)
    if not all(type(v) is int for v in counts) or record.round < 1 or not _number(record.seconds):
        raise ValueError("a count")
    if not all(v is None or _number(v) for v in (record.answers, record.noise)):
        raise ValueError("a number")
    if not all(isinstance(v, dict | None) for v in (record.decided, record.measured, record.by_client)):
        raise ValueError("an object")
    return record


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
