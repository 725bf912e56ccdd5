"""A shuffler behind a TCP port: one request per connection, with limits on size, time and connections.

The request is a batch, the reply is either its rows or one line that says why there are none (frames.py); a peer never
sees a traceback. Without TLS the rows can be read on the way to the server: give
both ends an `ssl.SSLContext`, or box rows for the server (sealed.py).

    python -m sordino.masking.shuffler_process --key FILE --roster FILE.json --federation NAME --least N --register FILE
"""

from __future__ import annotations

import argparse
import json
import socket
import ssl
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from sordino.core.errors import SordinoError
from sordino.masking import frames, wire
from sordino.masking.errors import MaskingError, NoShuffler, RegisterError
from sordino.masking.identity import KeyRoster
from sordino.masking.once import Once
from sordino.masking.session import Session
from sordino.masking.shuffler import RowShuffler, read_shuffler_key

Address = tuple[str, int]
MOST_BYTES = 1 << 28  # of a batch
SECONDS = 60.0  # for one connection, from beginning to end
FAILED = b"the shuffler failed; its operator must look at it."
AT_ONCE = 2  # connections that are served at the same time; others wait


class ShufflerServer:
    """A shuffler that listens on a port until it is closed."""

    def __init__(
        self,
        shuffler: RowShuffler,
        address: Address = ("127.0.0.1", 0),
        tls: ssl.SSLContext | None = None,
        most_bytes: int = MOST_BYTES,
        seconds: float = SECONDS,
    ) -> None:
        self._shuffler, self._tls, self._most, self._seconds = shuffler, tls, most_bytes, seconds
        self._slots = threading.BoundedSemaphore(AT_ONCE)
        self._socket = socket.create_server(address)
        self._socket.settimeout(0.2)
        self._closed = threading.Event()

    @property
    def address(self) -> Address:
        """Return the address that the shuffler listens on."""
        host, port = self._socket.getsockname()[:2]
        return str(host), int(port)

    def serve(self) -> None:
        """Answer connections until `close` is called."""
        with self._socket:
            while not self._closed.is_set():
                if not self._slots.acquire(timeout=0.2):
                    continue
                try:
                    connection, _ = self._socket.accept()
                except OSError:  # nobody called, or the caller has gone
                    self._slots.release()
                    continue
                threading.Thread(target=self._serve_one, args=(connection,), daemon=True).start()

    def close(self) -> None:
        """Stop listening; `serve` returns soon after."""
        self._closed.set()

    def _serve_one(self, connection: socket.socket) -> None:
        until = time.monotonic() + self._seconds
        try:
            connection.settimeout(self._seconds)
            with connection if self._tls is None else self._tls.wrap_socket(connection, server_side=True) as peer:
                frames.send(peer, self._reply(peer, until), until)
        except (OSError, MaskingError):
            connection.close()  # the peer has gone, or is too slow to be told
        finally:
            self._slots.release()

    def _reply(self, peer: socket.socket, until: float) -> bytes:
        try:
            session, sealed = frames.decode_batch(frames.receive(peer, self._most, until))
            rows = self._shuffler.shuffle(session, sealed)
            return frames.frame(wire.ROWS, rows)
        except RegisterError as error:  # names a file of this machine, such as one on a full disk
            print(error, file=sys.stderr, flush=True)
            return frames.frame(wire.REFUSAL, [FAILED])
        except SordinoError as error:
            return frames.frame(wire.REFUSAL, [str(error).encode()])
        except OSError:
            raise
        except Exception:  # whatever it is, the peer gets one line
            return frames.frame(wire.REFUSAL, [FAILED])


def ask_shuffler(
    address: Address,
    batch: tuple[Session, Mapping[int, bytes]],
    tls: ssl.SSLContext | None = None,
    most_bytes: int = MOST_BYTES,
    seconds: float = SECONDS,
) -> list[bytes]:
    """Send a batch to a shuffler and return its rows in their secret order.

    Args:
        address: host and port of the shuffler.
        batch: the session, and the sealed row of every sender.
        tls: how to check the shuffler's certificate for its host name; None: no encryption.
        most_bytes: the largest reply to accept.
        seconds: how long everything may take.
    """
    until = time.monotonic() + seconds
    try:
        with socket.create_connection(address, seconds) as plain:
            peer = plain if tls is None else tls.wrap_socket(plain, server_hostname=address[0])
            with peer:
                frames.send(peer, frames.encode_batch(*batch), until)
                reply = frames.receive(peer, most_bytes, until)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise NoShuffler(f"the shuffler at {address[0]}:{address[1]} does not answer: {reason}.") from error
    if reply[4:5] == bytes([wire.REFUSAL]):
        text = b" ".join(frames.parts(reply, wire.REFUSAL)).decode(errors="replace")[:300]
        raise MaskingError(f"the shuffler refused the batch: {''.join(c if c.isprintable() else ' ' for c in text)}")
    return frames.parts(reply, wire.ROWS)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a shuffler until the process is ended."""
    parser = argparse.ArgumentParser(description="Run a shuffler behind a TCP port.")
    parser.add_argument("--key", type=Path, required=True, help="private key, made by new_shuffler_key")
    parser.add_argument("--roster", type=Path, required=True, help="JSON file: client number to public key")
    parser.add_argument("--federation", required=True, help="the name of the federation")
    parser.add_argument("--least", type=int, required=True, help="the least number of reports in a batch")
    parser.add_argument("--register", type=Path, required=True, help="file of finished batches")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--certificate", type=Path, help="TLS certificate chain and private key, in one PEM file")
    given = parser.parse_args(arguments)
    try:
        keys = {int(member): key for member, key in json.loads(given.roster.read_text()).items()}
        tls = None
        if given.certificate is not None:
            tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            tls.load_cert_chain(given.certificate)
        secret = read_shuffler_key(given.key)
        shuffler = RowShuffler(secret, given.federation, KeyRoster(keys), given.least, Once(given.register))
        server = ShufflerServer(shuffler, (given.host, given.port), tls)
    except (OSError, ValueError, AttributeError, SordinoError) as error:
        parser.exit(1, f"error: {error}\n")
    print("shuffler at {}:{}, public key {}".format(*server.address, shuffler.public), flush=True)
    server.serve()


if __name__ == "__main__":
    main()
