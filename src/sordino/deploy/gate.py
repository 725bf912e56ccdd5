"""The gate: a TLS proxy in front of the SuperLink that passes the Fleet API of the nodes, and nothing else.

The SuperLink serves three APIs on one port, and two of them ask for nobody's name: whoever reaches the Control API can
enrol a node or run code on all nodes. So the SuperLink listens on loopback, and sites reach it through this gate
alone. It streams bodies, holds no state between requests and writes down refusals only: time, address, status, path.

    python -m sordino.deploy.gate --listen 0.0.0.0:18000 --upstream 127.0.0.1:18001 \
        --certificate server.crt --key server.key --ca ca.crt
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import signal
import ssl
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from sordino.deploy.requests import REASONS, Refused, Request, answer_fields, parse

PIECE = 2**16
ANSWER_HEAD = 2**16
LINES_PER_MINUTE = 600  # of the log: a flood of bad requests must not fill the disk


@dataclass(frozen=True)
class Limits:
    """What one client may cost the gate."""

    head: int = 2**14  # bytes of request line and headers
    body: int = 2 * 2**30  # bytes of a request's body
    per_address: int = 256  # open connections of one address; all sites behind one router share theirs
    connections: int = 2048  # open connections in total
    handshake: float = 10.0  # seconds for TLS
    first: float = 10.0  # seconds for all headers, from their first byte
    idle: float = 75.0  # seconds between two requests of one connection
    stall: float = 30.0  # seconds in which no byte of a body moves
    rate: float = 2048.0  # bytes per second on average, after the time of one stall
    goodbye: float = 2.0  # seconds to take the last bytes and close
    upstream: float = 600.0  # seconds for the SuperLink to answer


@dataclass
class Gate:
    """A running gate."""

    upstream: tuple[str, int]
    server_tls: ssl.SSLContext
    client_tls: ssl.SSLContext
    limits: Limits = field(default_factory=Limits)
    say: Callable[[str], None] = print
    open: Counter[str] = field(default_factory=Counter)
    _minute: tuple[int, int] = (0, 0)

    async def serve(self, host: str, port: int) -> asyncio.Server:
        """Listen; TLS begins after the connection was counted, so that handshakes are limited too."""
        return await asyncio.start_server(self._connected, host, port, limit=PIECE, backlog=256)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = writer.get_extra_info("peername")
        address = str(peer[0]) if peer else "unknown"
        if self.open[address] >= self.limits.per_address or self.open.total() >= self.limits.connections:
            self.log(address, 503, "too many connections")
            writer.transport.abort()
            return
        self.open[address] += 1
        try:
            await writer.start_tls(self.server_tls, ssl_handshake_timeout=self.limits.handshake)
            while await self._request(reader, writer, address):
                pass
        except (OSError, EOFError, TimeoutError, asyncio.LimitOverrunError):
            pass  # the client went away, or spoke no TLS
        finally:
            with contextlib.suppress(OSError, RuntimeError, TimeoutError):
                writer.close()  # says goodbye in TLS, for which a client gets little time
                await asyncio.wait_for(writer.wait_closed(), self.limits.goodbye)
            writer.transport.abort()
            self.open[address] -= 1
            if not self.open[address]:
                del self.open[address]

    async def _request(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, address: str) -> bool:
        """Pass one request; return whether the connection may carry another one."""
        answered = _Once()
        try:
            request = parse(await self._head(reader), self.limits.body)
            return await self._pass(request, reader, writer, answered)
        except Refused as refused:
            self.log(address, refused.status, refused.path)
            if not answered.begun:
                await self._refuse(writer, refused.status)
            return False

    async def _head(self, reader: asyncio.StreamReader) -> bytes:
        first = await asyncio.wait_for(reader.readexactly(1), self.limits.idle)
        try:
            rest = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), self.limits.first)
        except asyncio.LimitOverrunError as error:
            raise Refused(431) from error
        except TimeoutError as error:
            raise Refused(408) from error
        except asyncio.IncompleteReadError as error:
            raise Refused(400) from error
        if len(rest) >= self.limits.head:
            raise Refused(431)
        return first + rest[:-4]

    async def _pass(
        self, request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, answered: _Once
    ) -> bool:
        host, port = self.upstream
        try:
            opening = asyncio.open_connection(host, port, ssl=self.client_tls, server_hostname=host, limit=ANSWER_HEAD)
            inner, outer = await asyncio.wait_for(opening, self.limits.handshake)
        except (OSError, TimeoutError) as error:
            raise Refused(502, request.path) from error
        try:
            try:
                outer.write(request.head(f"{host}:{port}"))
                await self._stream(reader, outer, request.length, Refused(408, request.path))
                head = await asyncio.wait_for(inner.readuntil(b"\r\n\r\n"), self.limits.upstream)
            except TimeoutError as error:
                raise Refused(504, request.path) from error
            except (OSError, EOFError, asyncio.LimitOverrunError) as error:
                raise Refused(502, request.path) from error
            return await self._answer(head[:-4], inner, writer, answered)
        finally:
            outer.transport.abort()

    async def _answer(
        self, head: bytes, inner: asyncio.StreamReader, writer: asyncio.StreamWriter, answered: _Once
    ) -> bool:
        """Send the SuperLink's answer on; an answer of unknown length ends with the connection."""
        status, fields = answer_fields(head)
        length = fields.get("content-length", "")
        known = length.isdigit() and "transfer-encoding" not in fields
        dropped = {"connection", "keep-alive", "server", "date", "transfer-encoding"}
        lines = [status, *(f"{k}: {v}" for k, v in fields.items() if k not in dropped)]
        answered.begun = True
        late = Refused(408)
        if known:
            writer.write(("\r\n".join([*lines, "connection: keep-alive"]) + "\r\n\r\n").encode("latin-1"))
            await self._stream(inner, writer, int(length), late)
            return True
        writer.write(("\r\n".join([*lines, "connection: close"]) + "\r\n\r\n").encode("latin-1"))
        if "transfer-encoding" in fields:
            await self._chunks(inner, writer, late)
        else:
            while piece := await asyncio.wait_for(inner.read(PIECE), self.limits.upstream):
                writer.write(piece)
                await asyncio.wait_for(writer.drain(), self.limits.stall)
        return False

    async def _chunks(self, inner: asyncio.StreamReader, writer: asyncio.StreamWriter, late: Refused) -> None:
        while True:
            line = await asyncio.wait_for(inner.readuntil(b"\r\n"), self.limits.upstream)
            size = int(line.split(b";")[0], 16)
            if size == 0:
                return
            await self._stream(inner, writer, size, late)
            await inner.readexactly(2)

    async def _stream(
        self, source: asyncio.StreamReader, target: asyncio.StreamWriter, length: int, late: Refused
    ) -> None:
        """Copy this many bytes; raise `late` when they stall, or arrive too slowly on average."""
        began, moved = time.monotonic(), 0
        while moved < length:
            left = self.limits.stall + moved / self.limits.rate - (time.monotonic() - began)
            try:
                async with asyncio.timeout(max(0.0, min(left, self.limits.stall))):
                    piece = await source.read(min(PIECE, length - moved))
                    target.write(piece)
                    await target.drain()
            except TimeoutError as error:
                raise late from error
            if not piece:
                raise EOFError
            moved += len(piece)

    async def _refuse(self, writer: asyncio.StreamWriter, status: int) -> None:
        text = f"HTTP/1.1 {status} {REASONS[status]}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
        with contextlib.suppress(OSError, TimeoutError):
            writer.write(text.encode("ascii"))
            await asyncio.wait_for(writer.drain(), self.limits.first)

    def log(self, address: str, status: int, path: str) -> None:
        """Write down a refusal: when, who, the status and the path; never headers or content."""
        minute = int(time.time() // 60)
        lines = self._minute[1] + 1 if self._minute[0] == minute else 1
        self._minute = minute, lines
        if lines <= LINES_PER_MINUTE:
            when = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime())
            self.say(f"{when} {address} {status} {path[:200]}".rstrip())


@dataclass
class _Once:
    """Whether an answer has begun, after which no other status can be sent."""

    begun: bool = False


def contexts(certificate: str, key: str, ca: str) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Return the TLS settings towards the sites and towards the SuperLink."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.minimum_version = ssl.TLSVersion.TLSv1_2
    server.load_cert_chain(certificate, key)
    client = ssl.create_default_context(cafile=ca)
    return server, client


def main() -> None:
    """Run the gate until SIGTERM."""
    parser = argparse.ArgumentParser(description="Pass the Fleet API of a SuperLink, and nothing else.")
    for name in ("listen", "upstream", "certificate", "key", "ca"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--body-limit", type=int, default=Limits.body, help="bytes of one request")
    parser.add_argument("--per-address", type=int, default=Limits.per_address, help="open connections of one address")
    given = parser.parse_args()
    limits = Limits(body=given.body_limit, per_address=given.per_address)
    gate = Gate(_address(given.upstream), *contexts(given.certificate, given.key, given.ca), limits, _print)
    asyncio.run(_run(gate, _address(given.listen)))


async def _run(gate: Gate, listen: tuple[str, int]) -> None:
    server = await gate.serve(*listen)
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    _print(f"The gate listens on {listen[0]}:{listen[1]}.")
    await stopped.wait()
    server.close()


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host.strip("[]"), int(port)


def _print(line: str) -> None:
    print(line, file=sys.stdout, flush=True)


if __name__ == "__main__":
    main()
