"""A real federation on loopback: SuperLink, gate, three SuperNodes and three `sordino site`, as a user starts them."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import signal
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from http.client import HTTPSConnection
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.ports import free_ports

from sordino.deploy import accounts, certificates, flower, follow, processes, start, status
from sordino.deploy.agreement import Agreement
from sordino.deploy.create import create
from sordino.deploy.folder import Folder
from sordino.deploy.site_account import read_ledger
from sordino.runs import build, run
from sordino.spec import spec as specs
from sordino.spec.toml import to_toml

pytest.importorskip("flwr")
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("federation")]

KEYS: dict[str, Any] = {"dataset": "breast-cancer", "clients": 3, "rounds": 2, "epsilon": 4.0, "seed": 1}
DIRECT = {"method": "dp-sgd", "normalise": "none"}
SUMMED = {"method": "dp-sgd", "normalise": "none", "channel": "secure-sum", "rounds": 1}
LONGER = {"method": "dp-sgd", "normalise": "none", "rounds": 5}
ALLOWED = {
    "epsilon_per_job": 50.0,
    "epsilon_total": 200.0,
    "delta_total": 0.01,
    "channels": ("direct", "secure-sum"),
}


@pytest.fixture(scope="module")
def federation() -> Iterator[Folder]:
    place = Path(tempfile.mkdtemp(prefix="sordino-"))
    place.chmod(0o755)  # another user must be able to reach the node of a site
    (place / "spec.toml").write_text(_toml(KEYS | DIRECT))
    folder = create(place / "spec.toml", place / "f", 3, port=free_ports())
    for site in folder.roster().sites:
        _allow(folder.site(site.name) / "policy.toml")
    said: list[str] = []
    try:
        start.up(folder, say=said.append)
        assert said[-1] == "All 3 sites are online."
        yield folder
    finally:
        start.down(folder, say=said.append)
    records = processes.read(folder.state)
    assert processes.family(r.mark for r in records) == []
    shutil.rmtree(place)


def _toml(keys: Mapping[str, Any]) -> str:
    return "".join(f"{name} = {to_toml(value)}\n" for name, value in keys.items())


def _allow(policy: Path) -> None:
    """Widen a policy, so that several jobs fit."""
    kept = [line for line in policy.read_text().splitlines() if line.split(" = ")[0] not in ALLOWED]
    policy.write_text("\n".join(kept) + "\n" + _toml(ALLOWED))


def begun(folder: Folder, name: str, keys: Mapping[str, Any], timeout: float = 120.0) -> tuple[str, Path]:
    """Start a job with another run file in the same app; a letter that is lost is sent again after half the time."""
    folder.spec.write_text(_toml(KEYS | dict(keys)))
    return follow.begin(folder, name=name, timeout=timeout)


def ended(folder: Folder, job: tuple[str, Path]) -> str:
    """Wait for the end of a job, for at most four minutes."""
    end = time.monotonic() + 240

    def say(text: str) -> None:
        assert time.monotonic() < end, f"the job takes too long: {text}"

    return follow.follow(folder, *job, say)


def weights(path: Path) -> torch.Tensor:
    from safetensors.torch import load_file

    return torch.cat([t.reshape(-1) for _, t in sorted(load_file(path / "public" / "model.safetensors").items())])


def participations(folder: Folder, run_folder: Path) -> dict[str, tuple[int, int]]:
    """Return by site the rounds that its own ledger has of a job, and those that the server counts."""
    content = json.loads((run_folder / "private" / "federation.json").read_text())
    out = {}
    for site in content["sites"]:
        with read_ledger(folder.site(site["name"]) / "state") as ledger:
            rows = [e for e in ledger.chain.select("kind = 'round'") if content["job"].startswith(e.job)]
        out[site["name"]] = (len(rows), site["participations"])
    return out


def post(folder: Folder, port: int, path: str) -> int:
    """Send an empty request of Flower's form; return the status."""
    context = ssl.create_default_context(cafile=str(folder.server / "ca.crt"))
    line = HTTPSConnection("127.0.0.1", port, context=context, timeout=10)
    try:
        line.request("POST", path, b"", {"content-type": "application/protobuf"})
        return line.getresponse().status
    finally:
        line.close()


def node(
    folder: Folder, home: Path, key: Path, authority: Path, number: int, programs: Path | None = None, **user: Any
) -> subprocess.Popen[bytes]:
    """Start a SuperNode with a key and an authority of one's choice, and perhaps as another user."""
    home.mkdir(exist_ok=True)
    environment = flower.node_environment(home)
    if programs is not None:
        environment["PATH"] = f"{programs}:/usr/bin:/bin"
    site, roster = folder.site("site-1"), folder.roster()
    command = [
        str((programs or Path(sys.executable).parent) / "flower-supernode"), "--superlink", f"127.0.0.1:{roster.port}",
        "--root-certificates", str(authority), "--auth-supernode-private-key", str(key),
        "--host", "127.0.0.1", "--port", str(roster.node_port(number)), "--ssl-certfile", str(site / "site.crt"),
        "--ssl-keyfile", str(site / "site.key"), "--ssl-ca-certfile", str(site / "ca.crt"),
    ]  # fmt: skip
    with (home / "log").open("wb") as log:
        return subprocess.Popen(command, env=environment, stdout=log, stderr=log, cwd=home, **user)


def test_training_gives_the_model_of_the_simulator(federation: Folder, tmp_path: Path) -> None:
    job = begun(federation, "trained", DIRECT)
    assert ended(federation, job) == "finished:completed", follow.reason(federation)
    keys = KEYS | DIRECT | {"out": str(tmp_path), "name": "simulated"}
    run.execute(build.from_spec(specs.from_dict(keys)), own_model=False)
    assert torch.allclose(weights(job[1]), weights(tmp_path / "simulated"), atol=1e-5)
    assert participations(federation, job[1]) == dict.fromkeys(("site-1", "site-2", "site-3"), (2, 2))
    look = status.look(federation)
    assert look.online == 3 and look.job is not None and look.job.done == 2


def test_a_secure_sum_tells_the_server_no_size_and_all_ledgers_agree(federation: Folder) -> None:
    job = begun(federation, "summed", SUMMED)
    assert ended(federation, job) == "finished:completed", follow.reason(federation)
    agreement = Agreement.from_json(json.loads((job[1] / "private" / "agreement.json").read_text()))
    assert [member.sizes for member in agreement.members] == [(150,)] * 3  # rounded down: the server learns no size
    assert participations(federation, job[1]) == dict.fromkeys(("site-1", "site-2", "site-3"), (1, 1))
    said = json.loads((job[1] / "public" / "result.json").read_text())["guarantee"]["sentence"]
    assert "server" in said


def test_a_job_beyond_the_policy_is_refused_with_a_reason(federation: Folder) -> None:
    before = [_charged(federation, site.name) for site in federation.roster().sites]
    job = begun(federation, "refused", DIRECT | {"epsilon": 60.0})
    assert ended(federation, job) == "finished:failed"
    assert "the policy allows 50 per job" in str(follow.reason(federation))
    assert [_charged(federation, site.name) for site in federation.roster().sites] == before


def _charged(folder: Folder, site: str) -> int:
    with read_ledger(folder.site(site) / "state") as ledger:
        return len(list(ledger.chain.select("kind = 'plan'")))


def test_killed_nodes_and_a_killed_superlink_cost_rounds_of_one_site_only(federation: Folder, tmp_path: Path) -> None:
    certificates.write_node_key(tmp_path / "stranger", "stranger")
    other = certificates.new_authority("another federation", 1)
    certificates.write_certificate(tmp_path / "other.crt", other.certificate)
    own = federation.site("site-1") / "ca.crt"
    intruders = [
        node(federation, tmp_path / "a", tmp_path / "stranger", own, 3),  # its key was not enrolled
        node(federation, tmp_path / "b", federation.site("site-1") / "node", tmp_path / "other.crt", 4),
    ]
    job = begun(federation, "killed", LONGER, timeout=20.0)
    try:
        _until(lambda: _done(federation, job[1]) >= 1)
        _kill(federation, "site-3 node")
        _until(lambda: _done(federation, job[1]) >= 2)
        _kill(federation, "superlink")
        start.up(federation, nodes=2, say=lambda text: None)  # site-3 stays away
        assert ended(federation, job) == "finished:completed", follow.reason(federation)
        counts = participations(federation, job[1])
        assert all(paid >= counted for paid, counted in counts.values())  # an answer that was lost is paid for too
        assert counts["site-3"][1] < 3 and counts["site-1"][1] >= 3
        records = [json.loads(line) for line in (job[1] / "public" / "records.jsonl").read_text().splitlines()]
        assert [record["round"] for record in records] == [1, 2, 3, 4, 5]
        assert intruders[0].wait(timeout=30) != 0
        assert "CERTIFICATE_VERIFY_FAILED" in (tmp_path / "b" / "log").read_text()
        assert list(flower.nodes(federation).values()).count("online") == 2
    finally:
        for intruder in intruders:
            intruder.kill()
            intruder.wait()
    for path in ("/v1/control/list-runs", "/v1/runtime/acquire-task", "/v1/fleet/register-node", "/docs"):
        assert post(federation, federation.roster().port, path) == 403, path
    assert post(federation, federation.roster().inner_port, "/v1/control/list-nodes") == 200  # hence the gate
    assert post(federation, federation.roster().port, "/v1/fleet/pull-messages") == 401  # not signed by a node
    assert "/v1/control/list-runs" in (federation.log / "gate.log").read_text()


def _done(folder: Folder, run_folder: Path) -> int:
    assert follow.reason(folder) is None
    progress = status.read_progress(run_folder)
    return 0 if progress is None else progress.done or 0


def _until(condition: Any, seconds: float = 120.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it takes too long"
        time.sleep(0.1)


def _kill(folder: Folder, name: str) -> None:
    """Kill a process of the federation and its children, as a crash of the machine would."""
    record = next(r for r in processes.read(folder.state) if r.name == name)
    for child in [*processes.family([record.mark]), record]:
        if processes.alive(child):
            os.kill(child.pid, signal.SIGKILL)
    _until(lambda: not processes.alive(record), 10.0)


PROGRAMS = {
    "flower-supernode": "from flwr.supernode.cli import flower_supernode as main",
    "flower-superexec": "from flwr.supercore.cli import flower_superexec as main",
    "flwr-clientapp": "from flwr.supernode.cli import flwr_clientapp as main",
}
HOSTILE_SITE = """
from pathlib import Path
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


@app.train()
def train(msg, context):
    seen = []
    for place in msg.content["config"]["places"]:
        try:
            seen.append("read " + repr(Path(place).read_bytes()[:20]))
        except OSError as error:
            seen.append(type(error).__name__)
    return Message(RecordDict({"seen": ConfigRecord({"seen": seen})}), reply_to=msg)
"""
HOSTILE_SERVER = """
import json, time
from pathlib import Path
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import ServerApp

app = ServerApp()


@app.main()
def main(grid, context):
    out = Path(str(context.run_config["out"]))
    asked = json.loads((out / "asked.json").read_text())
    content = RecordDict({"config": ConfigRecord({"places": asked["places"]})})
    (i,) = grid.push_messages([Message(content, dst_node_id=int(asked["node"]), message_type="train", ttl=60)])
    end = time.monotonic() + 60
    while time.monotonic() < end:
        for reply in grid.pull_messages([i]):
            seen = reply.error.reason if reply.has_error() else list(reply.content["seen"]["seen"])
            (out / "seen.json").write_text(json.dumps(seen))
            return
        time.sleep(0.2)
"""


def _other_user() -> str | None:
    """Return why this test cannot run; None if another user can run Flower with the system's Python."""
    if os.geteuid() != 0:
        return "needs root, to run Flower as another user"
    code = f"import sys; sys.path[:0] = {sys.path!r}; import flwr.clientapp; assert sys.version_info[:2] == (3, 11)"
    try:
        done = subprocess.run(["/usr/bin/python3", "-c", code], user="nobody", cwd="/", capture_output=True, timeout=60)
    except (OSError, KeyError, subprocess.TimeoutExpired):
        return "needs a Python that other users may run"
    return "needs a Python that other users may run, with Flower" if done.returncode else None


def test_a_hostile_app_reads_neither_data_nor_ledger_nor_keys(federation: Folder, tmp_path: Path) -> None:
    if (why := _other_user()) is not None:
        pytest.skip(why)
    site, other = federation.site("site-1"), pwd.getpwnam("nobody")
    daemon = next(r for r in processes.read(federation.state) if r.name == "site-1")
    places = [site / "patients.csv", site / "state" / "ledger.sqlite", site / "identity.key", site / "policy.toml"]
    places += [site / "state" / "log.txt", Path(f"/proc/{daemon.pid}/mem"), Path(f"/proc/{daemon.pid}/environ")]
    for place in places:
        if place.is_relative_to(site):
            place.touch(0o600)  # there already, but for the data and what a first job makes
        assert place.exists()
    places[0].write_text("age,ill\n70,yes\n")

    programs = federation.path / "programs"
    programs.mkdir()
    for name, line in PROGRAMS.items():
        path = [p for p in sys.path if p]
        (programs / name).write_text(f"#!/usr/bin/python3\nimport sys\nsys.path[:0] = {path!r}\n{line}\nmain()\n")
        (programs / name).chmod(0o755)
    app = tmp_path / "hostile"
    shutil.copytree(federation.app, app)
    (app / "sordino_app" / "client.py").write_text(HOSTILE_SITE)
    (app / "sordino_app" / "server.py").write_text(HOSTILE_SERVER)
    number = start.known_nodes(federation)["site-1"]
    (federation.runs / "asked.json").write_text(json.dumps({"places": [str(p) for p in places], "node": number}))

    processes.stop([r for r in processes.read(federation.state) if r.name == "site-1 node"])
    user = processes.SystemUser("nobody", other.pw_uid, other.pw_gid)
    accounts.hand_over(site, user)
    running = node(
        federation, site / "home", site / "node", site / "ca.crt", 0, programs, user=user.uid, group=user.gid
    )
    try:
        _until(lambda: "SuperNode ID" in (site / "home" / "log").read_text(), 60.0)
        flower.call(federation, "run", str(app), "federation", "-c", f"out={json.dumps(str(federation.runs))}")
        _until(lambda: (federation.runs / "seen.json").exists(), 90.0)
        seen = json.loads((federation.runs / "seen.json").read_text())
        assert seen == ["PermissionError"] * len(places)
    finally:
        running.terminate()
        running.wait()
