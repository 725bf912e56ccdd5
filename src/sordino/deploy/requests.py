"""The one form of HTTP request that the gate accepts; whatever two readers could understand differently is refused.

A SuperNode sends POST to a path of the Fleet API, over HTTP/1.1, with one Content-Length. Nothing else is needed, so
nothing else is accepted: no other method, path or version, no chunks, no header twice, no line without its CRLF. Paths
are compared byte by byte, never decoded, so no spelling of another path can pass (RFC 9112, sections 2.2, 6.3, 11.2).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

FLEET = tuple(
    f"/v1/fleet/{name}"
    for name in (
        "activate-node",
        "deactivate-node",
        "send-node-heartbeat",
        "pull-messages",
        "push-messages",
        "get-run",
        "get-fab",
        "push-object",
        "pull-object",
        "confirm-message-received",
    )
)  # without register-node and unregister-node: who takes part is decided by the operator, on the server itself
FORWARDED = re.compile(r"(accept|accept-encoding|content-type|user-agent|traceparent|tracestate|flwr-[a-z0-9-]+)\Z")
REASONS = {
    400: "Bad Request",
    403: "Forbidden",
    408: "Request Timeout",
    411: "Length Required",
    413: "Content Too Large",
    431: "Request Header Fields Too Large",
    502: "Bad Gateway",
    503: "Service Unavailable",
    504: "Gateway Timeout",
}
_LINE = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+) ([\x21-\x7e]+) HTTP/1\.([01])\Z")
_FIELD = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*((?:[\x21-\x7e](?:[\x20-\x7e\t]*[\x21-\x7e])?)?)[ \t]*\Z")


class Refused(Exception):  # noqa: N818 (it is an answer, not an error of ours)
    """A request gets this status, and its connection ends."""

    def __init__(self, status: int, path: str = "") -> None:
        super().__init__(status)
        self.status = status
        self.path = path


@dataclass(frozen=True)
class Request:
    """A request that may pass: its path, the length of its body, and the headers that travel on."""

    path: str
    length: int
    headers: tuple[tuple[str, str], ...]

    def head(self, host: str) -> bytes:
        """Return the request line and headers for the SuperLink, written anew."""
        lines = [f"POST {self.path} HTTP/1.1", f"host: {host}", f"content-length: {self.length}", "connection: close"]
        lines += [f"{name}: {value}" for name, value in self.headers]
        return ("\r\n".join(lines) + "\r\n\r\n").encode("ascii")


def parse(head: bytes, body_limit: int) -> Request:
    """Return the request of this head (without its last empty line); raise Refused if it may not pass."""
    lines, path = _lines(head), ""
    match = _LINE.match(lines[0])
    if match is None:
        raise Refused(400)
    method, path, minor = match.groups()
    fields = _fields(lines[1:], path)
    if path not in FLEET:
        raise Refused(403, path)
    if method != "POST" or minor != "1" or "host" not in fields:
        raise Refused(400, path)
    if {"transfer-encoding", "upgrade", "expect", "trailer", "te", "content-encoding"} & fields.keys():
        raise Refused(400, path)
    if "content-length" not in fields:
        raise Refused(411, path)
    if not re.fullmatch(r"0|[1-9][0-9]{0,18}", fields["content-length"]):
        raise Refused(400, path)
    length = int(fields["content-length"])
    if length > body_limit:
        raise Refused(413, path)
    return Request(path, length, tuple((k, v) for k, v in fields.items() if FORWARDED.match(k)))


def _lines(head: bytes) -> list[str]:
    try:
        lines = head.decode("ascii").split("\r\n")
    except UnicodeDecodeError as error:
        raise Refused(400) from error
    if any("\n" in line or "\r" in line or "\0" in line for line in lines):
        raise Refused(400)
    return lines


def _fields(lines: list[str], path: str) -> dict[str, str]:
    out: dict[str, str] = {}
    for line in lines:
        match = _FIELD.match(line)
        if match is None or (name := match[1].lower()) in out:
            raise Refused(400, path)
        out[name] = match[2]
    return out


def answer_fields(head: bytes) -> tuple[str, dict[str, str]]:
    """Return the status line of an answer of the SuperLink, and its headers."""
    lines = head.decode("latin-1").split("\r\n")
    fields = dict(line.split(":", 1) for line in lines[1:] if ":" in line)
    return lines[0], {name.strip().lower(): value.strip() for name, value in fields.items()}
