"""The daemon of a site: answers letters that arrive at a Unix socket, one at a time.

What Flower starts at a site talks to this socket and to nothing else of the site. A request is 8 bytes of length, most
significant first, and the letter; the answer has the same form. Whoever may open the socket may ask, and gets what the
policy allows. Letters are read by a thread for each connection, so that nobody holds up others, and answered by one
thread, that of `serve`: the site's SQLite files must be used where they were opened.
"""

from __future__ import annotations

import contextlib
import os
import queue
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

from sordino.core.errors import RunError

PIECE = 1 << 20  # bytes read at once
PATIENCE = 60.0  # seconds that a sender may take for a megabyte
BACKLOG = 16
TICK = 0.5  # seconds after which a request to stop is noticed


class SiteDaemon:
    """Listens at a socket and hands every letter to a site.

    Args:
        path: the path of the socket; a socket that nobody listens at is replaced.
        answer: returns the reply to a letter.
        largest: bytes of the largest letter that is read.
        mode: permissions of the socket.
    """

    def __init__(
        self, path: Path, answer: Callable[[bytes], bytes], largest: int, mode: int = 0o660, patience: float = PATIENCE
    ) -> None:
        self.path, self._answer, self._largest, self._patience = path, answer, largest, patience
        self._server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._stopped = threading.Event()
        self._letters: queue.SimpleQueue[tuple[bytes, Future[bytes]]] = queue.SimpleQueue()
        try:
            _remove_stale(path)
            self._server.bind(str(path))
            os.chmod(path, mode)  # noqa: PTH101 (a socket)
            self._server.listen(BACKLOG)
            self._server.settimeout(TICK)
        except OSError as error:
            self._server.close()
            raise RunError(f"cannot listen at {path}: {error.strerror or error}.") from error

    def serve(self) -> None:
        """Answer until `stop` is called; a connection that fails or sends anything else is dropped."""
        threading.Thread(target=self._accept, daemon=True).start()
        while not self._stopped.is_set():
            try:
                letter, reply = self._letters.get(timeout=TICK)
            except queue.Empty:
                continue
            try:
                reply.set_result(self._answer(letter))
            except Exception as error:  # the sender gets no answer, and others are answered still
                traceback.print_exc(file=sys.stderr)
                reply.set_exception(error)
        self._server.close()
        with contextlib.suppress(OSError):
            self.path.unlink()

    def _accept(self) -> None:
        while not self._stopped.is_set():
            try:
                line, _ = self._server.accept()
            except TimeoutError:
                continue
            except OSError:  # closed, or too many files are open for now
                time.sleep(TICK)
                continue
            threading.Thread(target=self._one, args=(line,), daemon=True).start()

    def stop(self) -> None:
        """End `serve` after the request at hand."""
        self._stopped.set()

    def _one(self, line: socket.socket) -> None:
        with line, contextlib.suppress(Exception):  # whatever happens to one connection is no matter of the others
            line.settimeout(self._patience)
            length = int.from_bytes(_received(line, 8, self._patience), "big")
            if length > self._largest:
                return
            letter = _received(line, length, self._patience)
            asked: Future[bytes] = Future()
            self._letters.put((letter, asked))
            reply = asked.result()
            line.settimeout(self._patience * (1 + len(reply) / PIECE))
            line.sendall(len(reply).to_bytes(8, "big") + reply)


def _received(line: socket.socket, length: int, patience: float) -> bytes:
    """Return so many bytes; raise ValueError if the other side ends early or is too slow."""
    parts, left = [], length
    end = time.monotonic() + patience * (1 + length / PIECE)
    while left:
        if time.monotonic() > end:
            raise ValueError("too slow")
        part = line.recv(min(PIECE, left))
        if not part:
            raise ValueError("ended early")
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


def _remove_stale(path: Path) -> None:
    """Remove a socket that nobody listens at; raise OSError if someone does."""
    if not path.is_socket():
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            path.unlink()
            return
    raise OSError(98, "a daemon listens there already")
