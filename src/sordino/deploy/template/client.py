"""The site's side of the app: passes bytes between the server and the site's own daemon, and nothing else.

Every message starts a process that imports this file, so it imports flwr and the standard library alone. It reads no
data and decides nothing: what leaves the site, and whether, is decided by the daemon `sordino site` behind the socket,
under the site's own policy. Whatever fails here is answered by a fixed text, since Flower would send the text of an
exception to the server.
"""

from __future__ import annotations

import socket
import time

from flwr.app import Array, ArrayRecord, Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp

UNREACHABLE = b'{"error": "the site could not be reached"}'
LIMIT = 4 * 2**30  # bytes of one request or answer
PATIENCE = 3600.0  # seconds until an answer must have arrived
PIECE = 2**20

app = ClientApp()


@app.train()
def train(msg: Message, context: Context) -> Message:
    """Hand the request to the site's daemon and return its answer."""
    try:
        answer = ask(request(msg), str(context.node_config["socket"]), patience(context))
    except Exception:  # its text must not leave the site
        answer = UNREACHABLE
    array = Array(dtype="uint8", shape=(len(answer),), stype="sordino.bytes", data=answer)
    return Message(RecordDict({"sordino": ArrayRecord({"bytes": array})}), reply_to=msg)


@app.evaluate()
def evaluate(msg: Message, context: Context) -> Message:
    """Refuse: all requests of Sordino are of type "train"."""
    return Message(Error(code=0, reason="not supported"), reply_to=msg)


@app.query()
def query(msg: Message, context: Context) -> Message:
    """Refuse, as above."""
    return Message(Error(code=0, reason="not supported"), reply_to=msg)


def request(msg: Message) -> bytes:
    """Return the bytes that the server sent."""
    record = msg.content["sordino"]
    if not isinstance(record, ArrayRecord):
        raise TypeError("the request is not an array record")
    return record["bytes"].data


def patience(context: Context) -> float:
    """Return the number of seconds after which the site counts as out of reach."""
    return float(context.node_config.get("timeout", PATIENCE))


def ask(content: bytes, path: str, seconds: float) -> bytes:
    """Send a length of 8 bytes and the content to a Unix socket; return what comes back in the same form."""
    if len(content) > LIMIT:
        raise ValueError("the request is too long")
    end = time.monotonic() + seconds
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
        line.settimeout(seconds)
        line.connect(path)
        line.sendall(len(content).to_bytes(8, "big"))
        line.sendall(content)
        length = int.from_bytes(_receive(line, 8, end), "big")
        if length > LIMIT:
            raise ValueError("the answer is too long")
        return _receive(line, length, end)


def _receive(line: socket.socket, length: int, end: float) -> bytes:
    out = bytearray()
    while len(out) < length:
        left = end - time.monotonic()
        if left <= 0:
            raise TimeoutError
        line.settimeout(left)
        piece = line.recv(min(PIECE, length - len(out)))
        if not piece:
            raise ConnectionError
        out += piece
    return bytes(out)
