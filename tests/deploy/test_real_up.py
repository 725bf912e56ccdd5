"""A real federation on loopback: SuperLink, gate and two SuperNodes, with stand-ins for sites and server."""

from __future__ import annotations

import json
import shutil
import socket
import ssl
import subprocess
import sys
from http.client import HTTPSConnection
from pathlib import Path

import pytest

from sordino.deploy import flower, follow, processes, start, status
from sordino.deploy.certificates import write_node_key
from sordino.deploy.create import create
from sordino.deploy.folder import Folder

HERE = Path(__file__).parent
pytest.importorskip("flwr")
pytestmark = pytest.mark.slow


def free_ports() -> int:
    """Return a port p such that p, p + 1 and p + 101 to p + 103 are free."""
    for _ in range(50):
        with socket.socket() as line:
            line.bind(("127.0.0.1", 0))
            port = line.getsockname()[1]
        if port < 65000 and all(_free(port + k) for k in (0, 1, 101, 102, 103)):
            return int(port)
    raise OSError("no free ports")


def _free(port: int) -> bool:
    with socket.socket() as line:
        return line.connect_ex(("127.0.0.1", port)) != 0


def post(folder: Folder, port: int, path: str) -> int:
    """Send an empty request of Flower's form; return the status."""
    context = ssl.create_default_context(cafile=str(folder.server / "ca.crt"))
    line = HTTPSConnection("127.0.0.1", port, context=context, timeout=10)
    try:
        line.request("POST", path, b"", {"content-type": "application/protobuf"})
        return line.getresponse().status
    finally:
        line.close()


def stranger(folder: Folder, home: Path) -> subprocess.Popen[bytes]:
    """Start a SuperNode with the certificate of the authority, but with a key that nobody enrolled."""
    home.mkdir()
    write_node_key(home / "node", "stranger")
    site, roster = folder.site("site-1"), folder.roster()
    command = [
        flower.program("flower-supernode"), "--superlink", f"127.0.0.1:{roster.port}",
        "--root-certificates", str(site / "ca.crt"), "--auth-supernode-private-key", str(home / "node"),
        "--host", "127.0.0.1", "--port", str(roster.node_port(2)), "--ssl-certfile", str(site / "site.crt"),
        "--ssl-keyfile", str(site / "site.key"), "--ssl-ca-certfile", str(site / "ca.crt"),
    ]  # fmt: skip
    return subprocess.Popen(
        command, env=flower.node_environment(home), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=home
    )


def test_a_message_goes_there_and_back_and_nobody_else_comes_in(tmp_path):
    (tmp_path / "spec.toml").write_text("rounds = 2\n")
    folder = create(tmp_path / "spec.toml", tmp_path / "f", 2, port=free_ports())
    shutil.copyfile(HERE / "echo_server.py", folder.app / "sordino_app" / "server.py")
    said: list[str] = []
    intruder = None
    try:
        start.up(folder, say=said.append, command=lambda *a: [sys.executable, str(HERE / "echo_site.py"), str(a[3])])
        assert said[-1] == "All 2 sites are online."
        records = processes.read(folder.state)
        intruder = stranger(folder, tmp_path / "stranger")
        job, _ = follow.begin(folder)

        roster = folder.roster()
        for path in ("/v1/control/list-runs", "/v1/runtime/acquire-task", "/v1/fleet/register-node", "/docs"):
            assert post(folder, roster.port, path) == 403, path
        assert post(folder, roster.inner_port, "/v1/control/list-nodes") == 200  # which is why the gate is there
        assert post(folder, roster.port, "/v1/fleet/pull-messages") == 401  # the SuperLink asks for a signature

        assert follow.follow(folder, job, folder.runs / "none", said.append) == "finished:completed"
        answers = json.loads((folder.runs / "answers.json").read_text())
        assert answers == {"nodes": 2, "answers": [True, True], "errors": ["not supported"]}
        assert intruder.wait(timeout=30) != 0
        assert sorted(flower.nodes(folder).values()) == ["online", "online"]
        assert status.look(folder).online == 2
    finally:
        if intruder is not None:
            intruder.kill()
            intruder.wait()
        start.down(folder, say=said.append)
    assert not any(map(processes.alive, records)) and len(records) == 7
    assert processes.family(r.mark for r in records) == []
    assert "/v1/control/list-runs" in (folder.log / "gate.log").read_text()
