"""The daemon of a site: what comes through its socket, and what code of another user can reach."""

from __future__ import annotations

import os
import pwd
import socket
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.sites import local_sites

from sordino.core.errors import RunError
from sordino.deploy.daemon import SiteDaemon
from sordino.federations import letters

HOSTILE = """
import socket, sys
found = []
for path in sys.argv[2:]:
    try:
        with open(path, "rb") as file:
            found.append(path + " was read: " + repr(file.read(20)))
    except OSError as error:
        found.append(type(error).__name__)
line = socket.socket(socket.AF_UNIX)
line.settimeout(10)
line.connect(sys.argv[1])
line.sendall((7).to_bytes(8, "big") + b"give me")
answer = line.recv(100000)
print(";".join(found))
print(b"refused" in answer or b"error" in answer, len(answer) < 2000)
"""


@pytest.fixture
def place() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="sordino") as folder:  # a short path, which others may enter
        path = Path(folder)
        path.chmod(0o755)
        yield path


@pytest.fixture
def daemon(place: Path) -> Iterator[SiteDaemon]:
    made = SiteDaemon(place / "site.sock", lambda letter: letter[::-1], largest=1000, patience=1.0)
    thread = threading.Thread(target=made.serve, daemon=True)
    thread.start()
    yield made
    made.stop()
    thread.join(5)


def sent(daemon: SiteDaemon, data: bytes, wait: float = 5.0) -> bytes:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
        line.settimeout(wait)
        line.connect(str(daemon.path))
        line.sendall(data)
        out = b""
        while part := line.recv(4096):
            out += part
        return out


def test_a_letter_is_answered_in_its_frame(daemon: SiteDaemon) -> None:
    assert sent(daemon, (3).to_bytes(8, "big") + b"abc") == (3).to_bytes(8, "big") + b"cba"


def test_letters_that_are_too_long_or_end_early_are_dropped_and_others_go_on(daemon: SiteDaemon) -> None:
    assert sent(daemon, (10**15).to_bytes(8, "big")) == b""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
        line.connect(str(daemon.path))
        line.sendall(b"\x00\x00")  # a probe that ends
    began = time.monotonic()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as slow:
        slow.connect(str(daemon.path))
        slow.sendall((9).to_bytes(8, "big") + b"a")
        assert sent(daemon, (1).to_bytes(8, "big") + b"a") == (1).to_bytes(8, "big") + b"a"  # others are not held up
    assert time.monotonic() - began < 5


def test_all_letters_are_answered_in_one_thread_where_the_files_of_the_site_were_opened(place: Path) -> None:
    opened: list[sqlite3.Connection] = []

    def answer(letter: bytes) -> bytes:
        if not opened:
            opened.append(sqlite3.connect(place / "ledger.sqlite"))
        if letter == b"fail":
            raise RuntimeError("a fault that no site should have")
        return str(opened[0].execute("SELECT 1").fetchone()[0]).encode()  # an error in any other thread

    made = SiteDaemon(place / "site.sock", answer, largest=1000)

    def serve() -> None:
        made.serve()
        opened[0].close()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    letter = (3).to_bytes(8, "big") + b"abc"
    assert sent(made, letter) == (1).to_bytes(8, "big") + b"1"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as held:
        held.connect(str(made.path))  # its thread waits; so the next letter is read by a thread with another number
        time.sleep(0.05)
        assert sent(made, letter) == (1).to_bytes(8, "big") + b"1"
        assert sent(made, (4).to_bytes(8, "big") + b"fail") == b""
        assert sent(made, letter) == (1).to_bytes(8, "big") + b"1"  # the daemon lives on
        made.stop()
        thread.join(5)
    assert not made.path.exists()


def test_a_socket_in_use_is_not_taken_and_a_stale_one_is(place: Path, daemon: SiteDaemon) -> None:
    with pytest.raises(RunError, match="listens there already"):
        SiteDaemon(daemon.path, bytes, largest=10)
    stale = place / "stale.sock"
    left = socket.socket(socket.AF_UNIX)
    left.bind(str(stale))
    left.close()
    SiteDaemon(stale, bytes, largest=10)._server.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to run code as another user")
@pytest.mark.skipif(not Path("/usr/bin/python3").exists(), reason="needs a Python that other users may run")
def test_hostile_code_of_another_user_reads_neither_data_nor_ledger_nor_keys(place: Path) -> None:
    home = place / "site"
    home.mkdir(mode=0o700)
    post = local_sites(home / "state", "breast-cancer", sites=2)
    site = post.sites["site-1"]
    site.identity.write(home / "identity.key")
    (home / "patients.csv").write_text("age,ill\n70,yes\n")
    letter = letters.packed({"verb": "hello"})
    assert site.answer(letter)
    (site.folder / "ledger.sqlite").touch()
    (place / "socket").mkdir(mode=0o755)
    daemon = SiteDaemon(place / "socket" / "site.sock", site.answer, largest=1000, mode=0o666)
    threading.Thread(target=daemon.serve, daemon=True).start()
    script = place / "app.py"
    script.write_text(HOSTILE)
    secret = [home / "patients.csv", site.folder / "ledger.sqlite", home / "identity.key", site.folder / "log.txt"]
    other = pwd.getpwnam("nobody")
    command = ["/usr/bin/python3", str(script), str(daemon.path), *map(str, secret)]

    def run(user: int) -> list[str]:
        done = subprocess.run(command, user=user, group=other.pw_gid if user else 0, capture_output=True, timeout=30)
        return done.stdout.decode().splitlines()

    assert run(other.pw_uid) == [";".join(["PermissionError"] * 4), "True True"]
    assert "was read" in run(0)[0]  # the test can tell: the site's own user reads them
    daemon.stop()
    assert sys.platform.startswith("linux")
