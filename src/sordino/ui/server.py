"""The server of the view: on the loopback interface only, for whoever holds its token, and for reading alone."""

from __future__ import annotations

import gzip
import hashlib
import json
from dataclasses import dataclass
from functools import cached_property
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from sordino.ui.api import ViewAnswers
from sordino.ui.guard import ViewGate

HOST = "127.0.0.1"
IDLE = 75  # seconds after which a connection without requests is closed
SMALL = 800  # bytes that are not worth compressing
FIELDS = 24  # of a query
OWN = Path(__file__).parent / "assets"
REPORT = Path(__file__).parent.parent / "report" / "assets"
SHARED = ("report.css", "charts.js", "echarts.min.js")
KINDS = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
POLICY = "; ".join((
    "default-src 'none'", "script-src 'self'", "style-src 'self'", "img-src 'self' data:", "connect-src 'self'",
    "base-uri 'none'", "form-action 'none'", "frame-ancestors 'none'",
))  # fmt: skip
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
WELCOME = (
    '<!doctype html><html lang="en"><meta charset="utf-8"><meta http-equiv="refresh" content="0; url=/">'
    '<title>Sordino</title><link rel="icon" href="/assets/icon.svg"><p><a href="/">Open the view</a></p></html>'
)


@dataclass(frozen=True)
class Served:
    """A body with its type."""

    kind: str
    body: bytes
    keep: bool  # whether the browser may keep a copy, to be asked for anew each time

    @cached_property
    def tag(self) -> str:
        """The name of this content."""
        return f'"{hashlib.sha256(self.body).hexdigest()[:24]}"'

    @cached_property
    def small(self) -> bytes:
        """The body, compressed."""
        return gzip.compress(self.body, 5, mtime=0)


class ViewServer(ThreadingHTTPServer):
    """The server with its secrets and its answers."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    def __init__(self, answers: ViewAnswers, port: int = 0) -> None:
        """Bind the port; 0 takes a free one.

        Raises:
            OSError: if the port is taken.
        """
        super().__init__((HOST, port), _Handler)
        self.answers = answers
        self.gate = ViewGate(self.server_address[1])
        files = [*OWN.iterdir(), *(REPORT / name for name in SHARED)]
        self.files = {
            f"/assets/{f.name}": Served(f"{KINDS[f.suffix]}; charset=utf-8", f.read_bytes(), True)
            for f in files
            if f.suffix in KINDS
        }
        self.files["/favicon.ico"] = self.files["/assets/icon.svg"]
        self.files["/"] = self.files.pop("/assets/index.html")

    def address(self, token: str | None = None) -> str:
        """Return the address for a browser, with the token or another secret."""
        return f"http://{HOST}:{self.gate.port}/?token={self.gate.token if token is None else token}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing about a browser that went away."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = IDLE
    server: ViewServer

    def parse_request(self) -> bool:
        """Read the head of a request; refuse it, before anything else is looked at, unless it may be answered."""
        if not super().parse_request():
            return False
        self.close_connection = self.close_connection or _has_body(self.headers)
        gate, (path, query) = self.server.gate, _asked(self.path)
        if not gate.own_page(self.headers):
            self._refuse()
        elif self.command == "GET" and path == "/" and gate.entered(query.get("token", "")):
            self._send(
                200, Served("text/html; charset=utf-8", WELCOME.encode(), False), {"Set-Cookie": gate.set_cookie()}
            )
        elif not gate.known(self.headers):
            self._refuse()
        elif self.command not in ("GET", "HEAD"):
            self._send(405, Served("text/plain", b"", False), {"Allow": "GET, HEAD"})
        else:
            return True
        return False

    def handle_expect_100(self) -> bool:
        """Do not ask for a body: no request that is answered has one."""
        return True

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Refuse a request that cannot be read."""
        self._refuse()

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing: the terminal is for the address, and connections of a hidden page end by themselves."""

    def _refuse(self) -> None:
        """Answer 403, and nothing else, whatever was asked."""
        self.close_connection = True
        self.wfile.write(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")

    def do_GET(self) -> None:
        """Answer a request of the page."""
        path, query = _asked(self.path)
        served = self.server.files.get(path)
        if served is None and path.startswith("/api/"):
            answer = self.server.answers.answer(path.removeprefix("/api/").split("/"), query)
            if answer is not None:
                text = json.dumps(answer, allow_nan=False, separators=(",", ":"))
                served = Served("application/json", text.encode(), False)
        if served is None:
            self._send(404, Served("text/plain; charset=utf-8", b"There is nothing here.", False))
        elif self.headers.get("If-None-Match") == served.tag:
            self._send(304, served)
        else:
            self._send(200, served)

    do_HEAD = do_GET  # noqa: N815 (the name that http.server looks for)

    def _send(self, status: int, served: Served, more: dict[str, str] | None = None) -> None:
        packed = status == 200 and len(served.body) > SMALL and "gzip" in self.headers.get("Accept-Encoding", "")
        body = b"" if status == 304 else served.small if packed else served.body
        self.send_response_only(status)
        headers = {"Cache-Control": "no-cache" if served.keep else "no-store", **HEADERS, **(more or {})}
        if status == 200:
            headers |= {"Content-Type": served.kind, "ETag": served.tag, "Vary": "Accept-Encoding"}
        if packed:
            headers["Content-Encoding"] = "gzip"
        if status != 304:
            headers["Content-Length"] = str(len(body))
        if self.close_connection:
            headers["Connection"] = "close"
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def _has_body(headers: Any) -> bool:
    return "Transfer-Encoding" in headers or headers.get("Content-Length", "0") != "0"


def _asked(target: str) -> tuple[str, dict[str, str]]:
    """Return the path and the query of a request, which may be any text."""
    path, _, query = target.partition("?")
    try:
        return path, dict(parse_qsl(query[:8000], max_num_fields=FIELDS))
    except ValueError:
        return path, {}
