"""Who is answered by the server of the view, and that it changes nothing."""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import socket
from pathlib import Path

import pytest

from sordino.cli.ui import opened
from sordino.core.errors import RunError
from sordino.ui.api import ViewAnswers
from sordino.ui.shelf import Shelf
from support.views import id_of, make_run, served

METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "MADEUP")
PATHS = (
    "/",
    "/assets/app.js",
    "/api/about",
    "/api/runs",
    "/api/run/x/report",
    "/nowhere",
    "/../etc/passwd",
    "*",
    "//x",
    "http://[x/",
    "/?token=%",
)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A folder of runs."""
    folder = tmp_path_factory.mktemp("view") / "runs"
    make_run(folder, "first")
    make_run(folder, "going", done=7)
    (folder.parent / "secret.txt").write_text("nobody may read this")
    return folder


@pytest.fixture(scope="module")
def server(runs):
    """A server of the folder."""
    with served(runs) as found:
        yield found


def ask(server, path="/", method="GET", cookie=True, **headers):
    """Ask the server; return status, headers and body."""
    gate = server.gate
    given = {"Host": f"127.0.0.1:{gate.port}"} | {k.replace("_", "-"): v for k, v in headers.items()}
    if cookie:
        given["Cookie"] = f"{gate.cookie}={gate.session}"
    connection = http.client.HTTPConnection("127.0.0.1", gate.port, timeout=10)
    connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
    for name, value in given.items():
        for each in value if isinstance(value, tuple) else (value,):
            connection.putheader(name, each)
    connection.endheaders()
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer.status, dict(answer.getheaders()), body


def refused(answer):
    """Whether an answer is 403 and says nothing."""
    status, headers, body = answer
    return status == 403 and body == b"" and set(headers) <= {"Content-Length", "Connection"}


@pytest.mark.parametrize("method", METHODS)
def test_without_the_secret_every_path_and_method_is_refused_alike(server, method):
    for path in PATHS:
        assert refused(ask(server, path, method, cookie=False)), (method, path)


def changed(secret):
    """A secret that differs from this one in its first character."""
    return ("A" if secret[0] != "A" else "B") + secret[1:]


def test_a_wrong_secret_opens_nothing(server):
    gate = server.gate
    for wrong in (changed(gate.token), gate.token[:-1], gate.token + "A", "", "%C3%A9", "%ff", gate.session):
        assert refused(ask(server, f"/?token={wrong}", cookie=False)), wrong
    assert refused(ask(server, f"/api/runs?token={gate.token}", cookie=False))  # the token opens the front door alone
    assert refused(ask(server, f"/?token={gate.token}", "POST", cookie=False))
    for wrong in (changed(gate.session), gate.token, "", '"'):
        assert refused(ask(server, "/api/runs", cookie=False, Cookie=f"{gate.cookie}={wrong}"))
    assert refused(ask(server, "/api/runs", cookie=False, Cookie=f"sordino-{gate.port + 1}={gate.session}"))


@pytest.mark.parametrize("other", ['prefs={"a": 1}', "a b=1", 'x="; y=a,b c', "caf\xe9=1", "flag"])
def test_cookies_of_other_pages_on_this_machine_shut_nobody_out(server, other):
    own = f"{server.gate.cookie}={server.gate.session}"
    for sent in (f"{other}; {own}", f"{own}; {other}", (other, own)):
        assert ask(server, "/api/about", cookie=False, Cookie=sent)[0] == 200
    assert refused(ask(server, "/api/about", cookie=False, Cookie=f"{other}; {server.gate.cookie}=x"))


def test_the_token_is_exchanged_for_a_cookie_that_scripts_cannot_read(server):
    status, headers, body = ask(server, f"/?token={server.gate.token}", cookie=False)
    assert status == 200 and b"url=/" in body and server.gate.token.encode() not in body
    name, *rest = headers["Set-Cookie"].split("; ")
    assert name == f"{server.gate.cookie}={server.gate.session}"
    assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= set(rest)
    assert headers["Referrer-Policy"] == "no-referrer"
    status, headers, body = ask(server)
    assert status == 200 and b"app.js" in body
    status, _, body = ask(server, f"/?token={server.gate.token}")  # opened again: it leaves the history there, too
    assert status == 200 and b"url=/" in body and b"app.js" not in body


def test_the_address_that_a_browser_is_started_with_works_once(runs):
    with served(runs) as server:
        ticket = server.gate.ticket
        assert ask(server, f"/?token={ticket}", cookie=False)[0] == 200
        assert refused(ask(server, f"/?token={ticket}", cookie=False))


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example", "sordino.localhost", "10.0.0.1", "", "[::1]x"]
)
def test_a_page_under_another_name_reaches_nothing(server, host):
    assert refused(ask(server, "/api/runs", Host=host))
    assert refused(ask(server, f"/?token={server.gate.token}", cookie=False, Host=host))


def test_a_tunnel_from_another_port_is_answered(server):
    assert ask(server, "/api/about", Host="localhost:9999")[0] == 200
    assert refused(ask(server, "/api/about", Host=("localhost:9999", "localhost:9998")))


def test_another_page_of_the_browser_is_refused(server):
    here = f"http://127.0.0.1:{server.gate.port}"
    assert ask(server, "/api/runs", Origin=here)[0] == 200
    for origin in ("http://evil.example", "null", f"https://127.0.0.1:{server.gate.port}", "http://127.0.0.1:1"):
        assert refused(ask(server, "/api/runs", Origin=origin)), origin
    for site in ("cross-site", "same-site"):
        assert refused(ask(server, "/api/runs", Sec_Fetch_Site=site)), site


def test_only_reading_is_possible(server):
    for method in set(METHODS) - {"GET", "HEAD"}:
        status, headers, body = ask(server, "/api/runs", method)
        assert (status, headers["Allow"], body) == (405, "GET, HEAD", b"")
    status, headers, body = ask(server, "/api/runs", "HEAD")
    assert (status, body) == (200, b"") and int(headers["Content-Length"]) > 0


def test_answers_forbid_scripts_from_elsewhere_and_frames(server):
    for path in ("/", "/assets/app.js", "/api/about", "/nowhere"):
        _, headers, _ = ask(server, path)
        policy = headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy and "frame-ancestors 'none'" in policy
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert not any(name.lower().startswith("access-control") for name in headers)
        assert "Server" not in headers


@pytest.mark.parametrize(
    "path",
    [
        "/assets/../server.py", "/assets/%2e%2e/server.py", "/assets/..%2fserver.py", "/../secret.txt", "/secret.txt",
        "/api/run/..%2f..%2fsecret.txt/live", "/api/run/../../secret.txt", "/api/../../secret.txt",
    ],
)  # fmt: skip
def test_no_path_leads_to_a_file(server, path):
    status, _, body = ask(server, path)
    assert b"nobody may read this" not in body and b"import" not in body
    assert status == 404 or "error" in json.loads(body)


@pytest.mark.parametrize(
    "text",
    [
        b"nonsense\r\n\r\n", b"GET /\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"GET / HTTP/1.1\r\nno header\r\n\r\n",
        b"POST / HTTP/1.1\r\nExpect: 100-continue\r\n\r\n", b"GET /\xff HTTP/1.1\r\nHost: \xff\r\n\r\n",
    ],
)  # fmt: skip
def test_requests_that_cannot_be_read_are_refused(server, text):
    with socket.create_connection(("127.0.0.1", server.gate.port), timeout=10) as link:
        link.sendall(text)
        link.shutdown(socket.SHUT_WR)
        with link.makefile("rb") as answer:
            assert answer.read() == b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


def test_a_connection_that_is_left_alone_ends_without_a_word(server, monkeypatch, capfd):
    monkeypatch.setattr("sordino.ui.server._Handler.timeout", 0.05)
    with socket.create_connection(("127.0.0.1", server.gate.port), timeout=10) as link:
        assert link.recv(1) == b""
    assert capfd.readouterr() == ("", "")


def test_what_has_not_changed_is_not_sent_again(server):
    for path in ("/assets/charts.js", f"/api/run/{id_of(server, 'first')}/live"):
        status, headers, body = ask(server, path, Accept_Encoding="gzip")
        assert status == 200 and headers["Content-Encoding"] == "gzip" and len(body) == int(headers["Content-Length"])
        status, again, body = ask(server, path, If_None_Match=headers["ETag"])
        assert (status, body) == (304, b"") and "ETag" not in again


def test_a_connection_serves_many_requests(server):
    connection = http.client.HTTPConnection("127.0.0.1", server.gate.port, timeout=10)
    for _ in range(3):
        connection.request("GET", "/api/about", headers={"Cookie": f"{server.gate.cookie}={server.gate.session}"})
        assert json.load(connection.getresponse())["audience"] == "public"
    connection.close()


def hashes(folder: Path):
    """The contents of all files, and the names and times of all of them and of all folders."""
    found = sorted(folder.rglob("*"))
    return [
        (str(p), p.stat().st_mtime_ns, hashlib.sha256(p.read_bytes()).hexdigest() if p.is_file() else "") for p in found
    ]


def test_looking_at_everything_changes_no_file(runs, tmp_path, monkeypatch):
    from sordino.ledger.ledger import Ledger

    monkeypatch.setenv("SORDINO_HOME", str(tmp_path / "home"))
    with Ledger(tmp_path / "home" / "registry" / "ledger.sqlite") as book:
        book.note({"purpose": "nothing"})
    before = hashes(runs), hashes(tmp_path)
    with served(runs, audience="owner") as server:
        one = [id_of(server, name) for name in ("first", "going")]
        parts = [f"run/{id}/{part}" for id in one for part in ("live", "report", "attacks", "line")]
        for path in ("about", "runs", "attacks", "ledger", "chain", f"compare?runs={','.join(one)}", *parts):
            status, _, body = ask(server, f"/api/{path}")
            assert status == 200 and "error" not in json.loads(body), (path, body)
    assert (hashes(runs), hashes(tmp_path)) == before


def test_a_missing_or_foreign_folder_is_one_clear_error(tmp_path):
    with pytest.raises(RunError, match=r"there is no folder .*missing.*sordino run"):
        Shelf([tmp_path / "missing"])
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").touch()
    with pytest.raises(RunError, match=r"photos holds no runs: of its 1 entries none"):
        Shelf([tmp_path / "photos"])
    with pytest.raises(RunError, match=r"is a file"):
        Shelf([tmp_path / "photos" / "cat.jpg"])
    (tmp_path / "empty").mkdir()
    assert Shelf([tmp_path / "empty"]).items() == []


def test_a_taken_port_is_one_clear_error_if_it_was_asked_for(server, runs):
    with pytest.raises(RunError, match=r"port \d+ of 127.0.0.1 cannot be used"):
        opened(ViewAnswers([runs]), server.gate.port)


def test_the_server_listens_on_the_loopback_interface_alone(server):
    assert server.server_address[0] == "127.0.0.1"


def test_the_list_needs_neither_torch_nor_numpy(runs):
    import subprocess
    import sys

    code = (
        "import sys; from pathlib import Path; import sordino.cli.ui; from sordino.ui.api import ViewAnswers;"
        f"a = ViewAnswers([Path({os.fspath(runs)!r})]); rows = a.answer(['runs'], {{}})['rows'];"
        "loaded = lambda: [n for n in ('torch', 'numpy', 'scipy', 'pandas') if n in sys.modules];"
        "print(len(rows), loaded()); a.answer(['run', rows[0]['id'], 'live'], {}); print(loaded())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["2 []", "['numpy']"]
