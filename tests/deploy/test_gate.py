"""The gate passes the Fleet API byte by byte, and refuses whatever is not exactly that."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time

import pytest

from sordino.deploy import gate as gates
from sordino.deploy.certificates import LOOPBACK, issue, new_authority, write_certificate, write_key
from sordino.deploy.requests import FLEET, Refused, parse

GOOD = b"POST /v1/fleet/pull-messages HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\nflwr-signature: abc"
CONTROL = b"/v1/control/start-run"


@pytest.fixture(scope="module")
def tls(tmp_path_factory):
    """Certificate files as `init` writes them."""
    folder = tmp_path_factory.mktemp("tls")
    authority = new_authority("test", 1)
    key, certificate = issue(authority, "server", LOOPBACK, 1)
    write_key(folder / "key", key)
    write_certificate(folder / "crt", certificate)
    write_certificate(folder / "ca", authority.certificate)
    return str(folder / "crt"), str(folder / "key"), str(folder / "ca")


class SuperLink:
    """A server behind the gate that notes what reaches it."""

    def __init__(self, answer: bytes | None = None) -> None:
        self.seen: list[tuple[bytes, int]] = []
        self.answer = answer
        self.wait: asyncio.Event | None = None

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, EOFError):
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
            moved = 0
            if self.wait is not None:
                await self.wait.wait()
            while moved < length and (piece := await reader.read(2**16)):
                moved += len(piece)
            self.seen.append((head, moved))
            writer.write(self.answer or b"HTTP/1.1 200 OK\r\nServer: secret\r\nContent-Length: 5\r\n\r\nhello")
            await writer.drain()
        writer.close()


def through(tls, work, limits=gates.Limits(), answer=None):  # noqa: B008 (frozen)
    """Run `work(connect, link, gate)` with a gate and a stand-in for the SuperLink."""

    async def main():
        link, lines = SuperLink(answer), []
        server_tls, client_tls = gates.contexts(*tls)
        inner = await asyncio.start_server(link.handle, "127.0.0.1", 0, ssl=server_tls)
        at = inner.sockets[0].getsockname()[:2]
        gate = gates.Gate(at, server_tls, client_tls, limits, lines.append)
        outer = await gate.serve("127.0.0.1", 0)
        port = outer.sockets[0].getsockname()[1]

        async def connect(plain=False):
            context = None if plain else client_tls
            return await asyncio.open_connection("127.0.0.1", port, ssl=context)

        try:
            async with asyncio.timeout(10):
                return await work(connect, link, lines, inner, gate)
        finally:
            outer.close()
            inner.close()
            while gate.open.total():
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.01)

    return asyncio.run(main())


async def ask(connect, content: bytes) -> bytes:
    """Send bytes on a new connection; return all that comes back until it ends."""
    reader, writer = await connect()
    out = b""
    with contextlib.suppress(OSError):
        writer.write(content)
        await writer.drain()
    with contextlib.suppress(OSError):
        out = await reader.read()
    writer.close()
    return out


def test_a_request_of_a_node_passes_and_the_connection_carries_the_next(tls):
    async def work(connect, link, lines, inner, gate):
        reader, writer = await connect()
        for _ in range(3):
            writer.write(GOOD + b"\r\nX-Forwarded-For: me\r\n\r\nbody")
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200 OK") and b"secret" not in head
            assert await reader.readexactly(5) == b"hello"
        assert [moved for _, moved in link.seen] == [4, 4, 4]
        assert b"flwr-signature: abc" in link.seen[0][0] and b"forwarded" not in link.seen[0][0].lower()
        assert lines == []
        writer.close()

    through(tls, work)


def test_chunked_answers_arrive_whole(tls):
    async def work(connect, link, lines, inner, gate):
        got = await ask(connect, GOOD + b"\r\n\r\nbody")
        assert got.endswith(b"\r\n\r\nhello world") and b"chunked" not in got and b"connection: close" in got

    answer = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n6\r\n world\r\n0\r\n\r\n"
    through(tls, work, answer=answer)


LINES = {
    "control": (CONTROL, 403),
    "runtime": (b"/v1/runtime/acquire-task", 403),
    "enrolment": (b"/v1/fleet/register-node", 403),
    "documentation": (b"/docs", 403),
    "two slashes": (b"//v1/control/start-run", 403),
    "up and over": (b"/v1/fleet/../control/start-run", 403),
    "encoded dots": (b"/v1/fleet/%2e%2e/control/start-run", 403),
    "encoded slash": (b"/v1/fleet/..%2fcontrol/start-run", 403),
    "encoded letter": (b"/v1/%63ontrol/start-run", 403),
    "query": (b"/v1/fleet/pull-messages?x=/v1/control", 403),
    "fragment": (b"/v1/fleet/pull-messages#x", 403),
    "parameter": (b"/v1/fleet/pull-messages;x", 403),
    "trailing slash": (b"/v1/fleet/pull-messages/", 403),
    "upper case": (b"/V1/fleet/pull-messages", 403),
    "absolute form": (b"https://x/v1/fleet/pull-messages", 403),
    "absolute control": (b"https://127.0.0.1:18001/v1/control/start-run", 403),
    "backslash": (b"/v1/fleet/..\\control", 403),
    "null byte": (b"/v1/fleet/pull-messages\x00", 400),
    "tab": (b"/v1/fleet/pull-messages\t", 400),
    "two paths": (b"/v1/fleet/pull-messages /v1/control/start-run", 400),
}


@pytest.mark.parametrize("case", LINES)
def test_no_spelling_of_another_path_passes(case):
    path, status = LINES[case]
    with pytest.raises(Refused) as refused:
        parse(b"POST " + path + b" HTTP/1.1\r\nHost: x\r\nContent-Length: 0", 10)
    assert refused.value.status == status


HEADS = {
    "get": (GOOD.replace(b"POST", b"GET"), 400),
    "connect": (GOOD.replace(b"POST", b"CONNECT"), 400),
    "version 1.0": (GOOD.replace(b"1.1", b"1.0"), 400),
    "version 2": (GOOD.replace(b"1.1", b"2.0"), 400),
    "no version": (GOOD.replace(b" HTTP/1.1", b""), 400),
    "no host": (GOOD.replace(b"Host: x\r\n", b""), 400),
    "no length": (GOOD.replace(b"Content-Length: 4\r\n", b""), 411),
    "two lengths": (GOOD + b"\r\nContent-Length: 5", 400),
    "the same length twice": (GOOD + b"\r\nContent-Length: 4", 400),
    "list of lengths": (GOOD.replace(b": 4", b": 4, 4"), 400),
    "negative": (GOOD.replace(b": 4", b": -4"), 400),
    "plus": (GOOD.replace(b": 4", b": +4"), 400),
    "hexadecimal": (GOOD.replace(b": 4", b": 0x4"), 400),
    "leading zero": (GOOD.replace(b": 4", b": 04"), 400),
    "underscore": (GOOD.replace(b": 4", b": 1_0"), 400),
    "enormous": (GOOD.replace(b": 4", b": " + b"9" * 18), 413),
    "more digits than a word": (GOOD.replace(b": 4", b": " + b"9" * 40), 400),
    "chunked": (GOOD + b"\r\nTransfer-Encoding: chunked", 400),
    "chunked in disguise": (GOOD + b"\r\nTransfer-Encoding: \tchunked", 400),
    "identity": (GOOD + b"\r\nTransfer-Encoding: identity", 400),
    "space before colon": (GOOD + b"\r\nTransfer-Encoding : chunked", 400),
    "folded": (GOOD + b"\r\n folded", 400),
    "bare newline": (GOOD + b"\nTransfer-Encoding: chunked", 400),
    "bare return": (GOOD + b"\rTransfer-Encoding: chunked", 400),
    "empty name": (GOOD + b"\r\n: x", 400),
    "no colon": (GOOD + b"\r\nx", 400),
    "two hosts": (GOOD + b"\r\nhost: y", 400),
    "two signatures": (GOOD + b"\r\nFLWR-signature: other", 400),
    "upgrade": (GOOD + b"\r\nUpgrade: h2c", 400),
    "expect": (GOOD + b"\r\nExpect: 100-continue", 400),
    "not ascii": (GOOD + b"\r\nx: \xff", 400),
    "compressed body": (GOOD + b"\r\nContent-Encoding: gzip", 400),
    "leading empty line": (b"\r\n" + GOOD, 400),
}


@pytest.mark.parametrize("case", HEADS)
def test_whatever_two_readers_could_understand_differently_is_refused(case):
    head, status = HEADS[case]
    assert parse(GOOD, 10).length == 4
    with pytest.raises(Refused) as refused:
        parse(head, 10)
    assert refused.value.status == status


def test_all_paths_that_pass_belong_to_the_fleet():
    assert len(FLEET) == 10
    for path in FLEET:
        assert parse(GOOD.replace(b"/v1/fleet/pull-messages", path.encode()), 10).path == path
        assert path.startswith("/v1/fleet/")


def test_hostile_bytes_reach_nobody_and_the_gate_lives_on(tls):
    smuggled = GOOD.replace(b": 4", b": 0") + b"\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nPOST " + CONTROL
    hostile = [
        (b"\x00\xff" * 3000 + b"\r\n\r\n", b" 400 "),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b" 400 "),
        (GOOD + b"\r\nx: " + b"a" * 17_000 + b"\r\n\r\nbody", b" 431 "),
        (GOOD + b"\r\nx: " + b"a" * 200_000, b" 431 "),
        (smuggled + b" HTTP/1.1\r\n\r\n", b" 400 "),
        (b"POST " + CONTROL + b" HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n", b" 403 "),
        (GOOD.replace(b": 4", b": 101") + b"\r\n\r\n", b" 413 "),
    ]

    async def work(connect, link, lines, inner, gate):
        for content, status in hostile:
            got = await ask(connect, content)
            assert status in got.split(b"\r\n")[0], (content[:60], got[:80])
        reader, writer = await connect(plain=True)  # no TLS at all
        writer.write(GOOD + b"\r\n\r\nbody")
        with contextlib.suppress(OSError):
            assert b"HTTP" not in await reader.read()
        writer.close()
        assert link.seen == []
        assert b" 200 " in (await ask(connect, GOOD + b"\r\nConnection: close\r\n\r\nbody"))[:20]
        assert len(link.seen) == 1
        while gate.open.total():  # every connection is given back; the test ends after ten seconds
            await asyncio.sleep(0.01)
        assert any(line.endswith("403 /v1/control/start-run") for line in lines)
        assert not any("abc" in line for line in lines)  # no header is written down

    through(tls, work, gates.Limits(body=100, idle=0.3, goodbye=0.2))


def test_slow_senders_are_cut_off(tls):
    async def work(connect, link, lines, inner, gate):
        began = time.monotonic()
        assert b" 408 " in (await ask(connect, GOOD))[:20]  # headers that never end
        assert b" 408 " in (await ask(connect, GOOD + b"\r\n\r\nb"))[:20]  # a body that stops
        reader, writer = await connect()
        writer.write(GOOD.replace(b": 4", b": 4000") + b"\r\n\r\n")
        with contextlib.suppress(OSError):
            while time.monotonic() - began < 5 and not reader.at_eof():  # never stalls, but has no pace
                writer.write(b"x")
                await writer.drain()
                await asyncio.sleep(0.05)
                if gate.open.total() == 0:
                    break
        assert gate.open.total() == 0 and time.monotonic() - began < 4
        writer.close()
        assert await ask(connect, b"") == b""  # silence
        assert [moved for _, moved in link.seen] == [1, pytest.approx(7, abs=6)]  # no body arrived whole

    through(tls, work, gates.Limits(first=0.2, stall=0.3, idle=0.3, rate=1000.0))


def test_one_address_cannot_hold_all_connections(tls):
    async def work(connect, link, lines, inner, gate):
        held = [await connect() for _ in range(2)]
        with pytest.raises((OSError, EOFError)):
            await connect()
        assert gate.open.total() == 2
        for _, writer in held:
            writer.close()
        while gate.open.total():
            await asyncio.sleep(0.01)
        assert b" 200 " in (await ask(connect, GOOD + b"\r\n\r\nbody"))[:20]

    through(tls, work, gates.Limits(per_address=2, idle=0.5))


def test_handshakes_that_never_end_count_and_end(tls):
    async def work(connect, link, lines, inner, gate):
        held = [await connect(plain=True) for _ in range(2)]
        await asyncio.sleep(0.05)
        assert gate.open.total() == 2
        while gate.open.total():
            await asyncio.sleep(0.02)
        for _, writer in held:
            writer.close()

    through(tls, work, gates.Limits(handshake=0.3, goodbye=0.2))


def test_a_large_body_is_streamed_and_never_held_at_once(tls):
    async def work(connect, link, lines, inner, gate):
        reader, writer = await connect()
        size, piece, sent = 128 * 2**20, b"x" * 2**20, 0
        link.wait = asyncio.Event()  # the SuperLink does not read yet
        writer.write(GOOD.replace(b": 4", b": %d" % size) + b"\r\n\r\n")
        with contextlib.suppress(TimeoutError):
            while sent < size:
                writer.write(piece)
                sent += len(piece)
                async with asyncio.timeout(0.5):
                    await writer.drain()
        assert sent <= 64 * 2**20  # then the gate stopped taking more: buffers of sockets alone hold that
        link.wait.set()
        while sent < size:
            writer.write(piece)
            sent += len(piece)
            await writer.drain()
        await reader.readuntil(b"\r\n\r\n")
        assert link.seen[0][1] == size
        writer.close()

    through(tls, work)


def test_more_than_two_gigabytes_are_refused_by_the_head_alone(tls):
    async def work(connect, link, lines, inner, gate):
        for size, status in ((2**31 + 1, b" 413 "), (2**40, b" 413 ")):
            answer = await ask(connect, GOOD.replace(b": 4", b": %d" % size) + b"\r\n\r\nsome of it")
            assert answer.startswith(b"HTTP/1.1" + status)
        assert link.seen == [] and [line.split()[3] for line in lines] == ["413"] * 2

    through(tls, work)


def test_the_gate_survives_a_restart_of_the_superlink(tls):
    async def work(connect, link, lines, inner, gate):
        port = gate.upstream[1]
        assert b" 200 " in (await ask(connect, GOOD + b"\r\n\r\nbody"))[:20]
        inner.close()
        await inner.wait_closed()
        assert b" 502 " in (await ask(connect, GOOD + b"\r\n\r\nbody"))[:20]
        again = await asyncio.start_server(link.handle, "127.0.0.1", port, ssl=gate.server_tls)
        assert b" 200 " in (await ask(connect, GOOD + b"\r\n\r\nbody"))[:20]
        again.close()

    through(tls, work, gates.Limits(idle=0.2))


def test_a_flood_of_refusals_does_not_fill_the_disk(tls):
    lines = []
    gate = gates.Gate(("127.0.0.1", 1), *gates.contexts(*tls), say=lines.append)
    for _ in range(5000):
        gate.log("1.2.3.4", 403, "/" + "a" * 5000)
    assert len(lines) <= 2 * gates.LINES_PER_MINUTE and all(len(line) < 260 for line in lines)


def test_the_gate_is_not_an_old_protocol(tls):
    assert gates.contexts(*tls)[0].minimum_version >= ssl.TLSVersion.TLSv1_2
