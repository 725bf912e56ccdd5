"""Messages of a gigabyte: they are refused by what they announce, before any memory is taken for them.

That the gate does so too is shown in test_gate.py.
"""

from __future__ import annotations

import json
import resource
import socket
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from sordino.core.errors import RunError
from sordino.deploy.daemon import SiteDaemon
from sordino.federations import letters

GIGABYTE = 1 << 30
ROOM = 256 << 20  # bytes of address space that the work may take besides what is there


@pytest.fixture
def little_memory() -> Iterator[None]:
    """Let this process take a quarter of a gigabyte more, and no further."""
    if not Path("/proc/self/statm").exists():
        pytest.skip("needs Linux, to know how much memory this process has")
    before = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + ROOM, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


def test_this_process_cannot_take_a_gigabyte(little_memory: None) -> None:
    with pytest.raises(MemoryError):
        bytes(GIGABYTE)


def claiming(header: dict[str, object]) -> bytes:
    """Return the bytes of a letter whose head announces more than there is."""
    text = json.dumps({"__metadata__": {letters.HEADER: "{}"}} | header).encode()
    return len(text).to_bytes(8, "little") + text


@pytest.mark.parametrize(
    "letter",
    [
        GIGABYTE.to_bytes(8, "little") + b"{}",
        claiming({"a": {"dtype": "U8", "shape": [GIGABYTE], "data_offsets": [0, GIGABYTE]}}),
        claiming({"a": {"dtype": "F64", "shape": [GIGABYTE // 8], "data_offsets": [0, 8]}}) + bytes(8),
        claiming({"a": {"dtype": "U8", "shape": [GIGABYTE, 0, GIGABYTE], "data_offsets": [0, GIGABYTE]}}),
    ],
    ids=["a head of a gigabyte", "a tensor that is not there", "a shape beyond its bytes", "a shape of nothing"],
)
def test_a_letter_that_announces_a_gigabyte_takes_none(little_memory: None, letter: bytes) -> None:
    with pytest.raises(RunError, match="no letter of Sordino"):
        letters.unpacked(letter)


def test_a_letter_of_a_gigabyte_is_not_even_looked_at(little_memory: None) -> None:
    class Long(bytes):
        def __len__(self) -> int:
            return GIGABYTE

        def __getitem__(self, key: object) -> bytes:  # type: ignore[override]
            raise AssertionError("it was looked at")

    with pytest.raises(RunError, match="1,073,741,824 bytes"):
        letters.unpacked(Long(), GIGABYTE - 1)


@pytest.mark.parametrize("largest", [1000, GIGABYTE])
def test_a_daemon_takes_memory_for_what_has_arrived_alone(little_memory: None, largest: int) -> None:
    seen: list[bytes] = []
    with tempfile.TemporaryDirectory(prefix="sordino") as short:
        daemon = SiteDaemon(Path(short) / "site.sock", lambda letter: seen.append(letter) or b"fine", largest)
        serving = threading.Thread(target=daemon.serve, daemon=True)
        serving.start()
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
            line.settimeout(10)
            line.connect(str(daemon.path))
            line.sendall(GIGABYTE.to_bytes(8, "big"))
            if largest == GIGABYTE:  # allowed, so it waits for the letter, of which little comes
                line.sendall(bytes(1 << 16))
                line.shutdown(socket.SHUT_WR)
            assert line.recv(1) == b""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
            line.settimeout(10)
            line.connect(str(daemon.path))
            line.sendall((2).to_bytes(8, "big") + b"ok")
            assert line.recv(100)[8:] == b"fine"  # others are answered
        daemon.stop()
        serving.join(5)
    assert seen == [b"ok"]
