"""Memory that all processes of a federation on one machine share, so that each can read the records of every client.

The memory is a file without a name, which is gone as soon as the last process that holds it ends, however it ends.
"""

from __future__ import annotations

import mmap
import os
import pickle
import sys
import tempfile
from dataclasses import dataclass
from functools import cached_property
from typing import IO, Any

from sordino.core.errors import RunError
from sordino.federations import wire

ALIGNED = 64  # bytes; torch begins its own tensors at such places, on which last bits may depend


@dataclass(frozen=True)
class Stored:
    """An object in shared memory: its structure, and where the memory of its arrays is."""

    structure: bytes
    places: tuple[tuple[int, int], ...]  # start and length of every array, in bytes


class _Arrays(wire.Pickler):
    """Serialises tensors so that the arrays behind them stay where they are."""

    def reducer_override(self, value: Any) -> Any:
        """Return how to rebuild an object; see `pickle.Pickler`."""
        return wire.reduced(value, wire.tensor_in_place)


class SharedWriter:
    """The end that writes, in the process of the server."""

    def __init__(self) -> None:
        self._file: IO[bytes] = _nameless()
        self._end = 0

    @property
    def handle(self) -> int:
        """Return the file descriptor that the other processes need."""
        return self._file.fileno()

    def put(self, value: Any, what: str) -> Stored:
        """Write an object; raise an error naming `what` if it cannot be sent to another process."""
        places: list[tuple[int, int]] = []

        def write(buffer: pickle.PickleBuffer) -> None:
            data = buffer.raw()
            start = -(-self._end // ALIGNED) * ALIGNED
            self._file.seek(start)
            self._file.write(data)
            self._end = start + len(data)
            places.append((start, len(data)))

        try:
            structure = wire.packed(value, what, _Arrays, write)
            self._file.flush()
        except OSError as error:
            raise RunError(f"{what} cannot be put into shared memory: {error}. Use federation = simulator.") from error
        return Stored(structure, tuple(places))

    def close(self) -> None:
        """Release the memory here; other processes keep it as long as they need it."""
        self._file.close()


class SharedReader:
    """The end that reads, in a worker. What a worker writes to an array stays its own."""

    def __init__(self, handle: int) -> None:
        self._handle = handle

    @cached_property
    def _memory(self) -> memoryview:
        size = os.fstat(self._handle).st_size
        return memoryview(mmap.mmap(self._handle, size, access=mmap.ACCESS_COPY)) if size else memoryview(bytearray())

    def get(self, stored: Stored) -> Any:
        """Return an object, whose arrays are in the shared memory; all must have been written before the first call."""
        buffers = [self._memory[start : start + length] for start, length in stored.places]
        return pickle.loads(stored.structure, buffers=buffers)  # data comes only from the process of the server


def _nameless() -> IO[bytes]:
    if sys.platform == "linux":
        return os.fdopen(os.memfd_create("sordino"), "w+b")
    return tempfile.TemporaryFile()
