"""Exactly what was started is ended: no recycled id, no stranger, no child forgotten; a partial start is undone."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.ports import free_ports

from sordino.core.errors import RunError
from sordino.deploy import accounts, flower, processes, sockets, start, status
from sordino.deploy.create import create
from sordino.deploy.folder import Folder
from sordino.deploy.processes import ProcessRecord, alive

SLEEP = "import time; time.sleep(60)"
STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('x', flush=True); time.sleep(60)"
ORPHAN = (
    "import subprocess, sys, time; p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'],"
    " start_new_session=True); print(p.pid, flush=True); time.sleep(60)"
)


@pytest.fixture
def begin(tmp_path):
    """Start a process of this interpreter; whatever is left is killed after the test."""
    records = []

    def start_one(code: str, name: str = "part") -> ProcessRecord:
        mark = os.urandom(8).hex()
        log = tmp_path / f"{len(records)}.log"
        records.append(processes.start(name, [sys.executable, "-c", code], log, mark, dict(os.environ), tmp_path))
        return records[-1]

    yield start_one
    processes.stop(records, patience=0.1)


def word(record: ProcessRecord) -> str:
    """Wait for the first line of a process."""
    end = time.monotonic() + 10
    while not (text := Path(record.log).read_text()) and time.monotonic() < end:
        time.sleep(0.02)
    return text.strip()


def test_a_process_is_stopped_and_reported(begin):
    record, said = begin(SLEEP), []
    assert alive(record)
    processes.stop([record], say=said.append)
    assert not alive(record) and said == ["part: stopped."]
    processes.stop([record], say=said.append)
    assert said[1:] == ["part: had ended already."]


def test_a_recycled_id_is_never_signalled(begin):
    stranger = begin(SLEEP)
    former = replace(stranger, began=stranger.began + "0", mark="someone-else")
    unknown = replace(stranger, began="", mark="someone-else")
    assert not alive(former) and not alive(unknown)
    processes.stop([former, unknown], patience=0.2)
    assert alive(stranger)


def test_what_ignores_sigterm_is_killed_and_that_is_said(begin):
    record, said = begin(STUBBORN), []
    assert word(record) == "x"
    processes.stop([record], patience=0.3, say=said.append)
    assert not alive(record) and said == ["part: did not react and was killed."]


def test_children_with_a_session_of_their_own_are_ended_even_if_the_parent_died_before(begin):
    record = begin(ORPHAN)
    child = int(word(record))
    bystander = begin(SLEEP)
    started = processes.began(child)
    assert started is not None
    os.kill(record.pid, 9)
    while alive(record):
        time.sleep(0.01)
    assert processes.began(child) == started
    processes.stop([record], patience=0.2)
    assert processes.began(child) != started and alive(bystander)


def test_the_list_survives_a_crash_between_two_starts(begin, tmp_path):
    records = [begin(SLEEP, "a"), begin(SLEEP, "b")]
    processes.write(tmp_path / "state", records)
    assert processes.read(tmp_path / "state") == records
    assert (tmp_path / "state" / processes.FILE).stat().st_mode & 0o077 == 0
    assert processes.read(tmp_path / "nowhere") == []
    (tmp_path / "state" / processes.FILE).write_text('{"processes": [{"pid"')
    with pytest.raises(RunError, match="cannot read"):
        processes.read(tmp_path / "state")


def test_a_missing_program_is_one_line(tmp_path):
    with pytest.raises(RunError, match="cannot start x"):
        processes.start("x", ["/no/such/program"], tmp_path / "log", "m", {}, tmp_path)


# --- up and down, with stand-ins for Flower's programs


PROGRAM = """#!{python}
import socket, sys, time
words = sys.argv
print("SuperNode ID: 1" if "supernode" in words[0] else "started", flush=True)
if "{broken}" and words[0].endswith("{broken}"):
    sys.exit("the {broken} is broken")
if "--port" in words and "superlink" in words[0]:
    door = socket.create_server(("127.0.0.1", int(words[words.index("--port") + 1])))
time.sleep(60)
"""
DAEMON = "import socket, sys, time; d = socket.socket(socket.AF_UNIX); d.bind(sys.argv[1]); d.listen(); time.sleep(60)"


@pytest.fixture
def federation(tmp_path, monkeypatch):
    """A federation of two sites, and a function that starts it with stand-ins."""
    (tmp_path / "spec.toml").write_text("rounds = 2\n")
    folder = create(tmp_path / "spec.toml", tmp_path / "f", 2, port=free_ports())
    monkeypatch.setattr(flower, "register", lambda _, site: f"id-{site}")
    monkeypatch.setattr(flower, "nodes", lambda _: {"id-site-1": "online", "id-site-2": "online"})
    monkeypatch.setattr(accounts, "choose", lambda *_: (None, None))

    def begin(broken: str = "", daemon: str = DAEMON) -> list[str]:
        for name in ("flower-superlink", "flower-superexec", "flower-supernode"):
            (tmp_path / name).write_text(PROGRAM.format(python=sys.executable, broken=broken))
            (tmp_path / name).chmod(0o755)
        monkeypatch.setattr(flower, "program", lambda name: str(tmp_path / name))
        said: list[str] = []
        try:
            start.up(folder, say=said.append, command=lambda *a: [sys.executable, "-c", daemon, str(a[3])])
        finally:
            begin.said = said
        return said

    yield folder, begin
    start.down(folder, say=lambda _: None)


def running(folder: Folder) -> set[str]:
    return {r.name for r in processes.read(folder.state) if alive(r)}


ALL = {"superlink", "superexec", "gate", "site-1", "site-2", "site-1 node", "site-2 node"}


def test_up_starts_everything_once_and_down_ends_it(federation):
    folder, begin = federation
    said = begin()
    assert running(folder) == ALL and said[-1] == "All 2 sites are online."
    before = processes.read(folder.state)
    again = begin()
    assert processes.read(folder.state) == before
    assert sum("already running" in line for line in again) == 7
    ended: list[str] = []
    assert start.down(folder, say=ended.append) == 7
    assert running(folder) == set() and not any(map(alive, before))
    assert [line.split(":")[0] for line in ended][:2] == ["site-1 node", "site-2 node"]  # nodes sign off first
    assert start.down(folder, say=ended.append) == 0


def test_what_died_is_started_again_and_the_rest_is_left_alone(federation):
    folder, begin = federation
    begin()
    before = {r.name: r for r in processes.read(folder.state)}
    os.kill(before["site-2"].pid, 9)
    while alive(before["site-2"]):
        time.sleep(0.01)
    begin()
    after = {r.name: r for r in processes.read(folder.state)}
    assert running(folder) == ALL
    assert {name for name in ALL if before[name] != after[name]} == {"site-2"}


@pytest.mark.parametrize("broken", ["flower-superlink", "flower-superexec", "flower-supernode", "daemon"])
def test_a_failed_start_is_undone_and_shows_the_log(federation, broken):
    folder, begin = federation
    with pytest.raises(RunError) as error:
        begin(broken, "raise SystemExit('the daemon is broken')" if broken == "daemon" else DAEMON)
    assert f"the {broken} is broken" in str(error.value)
    assert running(folder) == set()
    assert "stopping what was started" in " ".join(begin.said)


def test_a_failed_start_leaves_what_ran_before(federation):
    folder, begin = federation
    begin()
    kept = {r.name: r for r in processes.read(folder.state)}
    os.kill(kept["site-1"].pid, 9)
    while alive(kept["site-1"]):
        time.sleep(0.01)
    with pytest.raises(RunError):
        begin("", "raise SystemExit('broken')")
    assert running(folder) == ALL - {"site-1"}
    assert all(kept[r.name] == r for r in processes.read(folder.state))


def test_a_port_in_use_is_named(federation):
    folder, begin = federation
    with socket.create_server(("127.0.0.1", folder.roster().inner_port)), pytest.raises(RunError) as error:
        begin()
    assert f"127.0.0.1:{folder.roster().inner_port}" in str(error.value) and running(folder) == set()


def test_two_calls_do_not_meet(federation):
    folder, _ = federation
    with start.locked(folder), pytest.raises(RunError, match="another `sordino deploy`"):
        start.down(folder)


def test_a_node_gets_nothing_of_the_users_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("DATABASE_PASSWORD", "secret")
    monkeypatch.setenv("SORDINO_HOME", "/home/me")
    environment = flower.node_environment(tmp_path)
    assert not {"DATABASE_PASSWORD", "SORDINO_HOME"} & environment.keys()
    assert environment["FLWR_TELEMETRY_ENABLED"] == "0" and environment["HOME"] == str(tmp_path)
    assert environment["PATH"].startswith(str(Path(sys.executable).parent))


def test_without_flower_there_is_one_line(monkeypatch):
    monkeypatch.setattr(flower, "find_spec", lambda _: None)
    with pytest.raises(RunError) as error:
        flower.require()
    assert "pip install 'sordino[flower]'" in str(error.value) and "\n" not in str(error.value)


def test_a_socket_with_a_long_path_moves_and_a_foreign_folder_is_refused(tmp_path):
    near = sockets.place(Path("/srv/f/sites/site-1"))
    assert near == Path("/srv/f/sites/site-1/socket/site.sock")
    far = [sockets.place(Path("/" + "x" * 120) / name) for name in ("site-1", "site-2")]
    assert len({*far}) == 2 and all(len(str(path)) < 100 for path in far)
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.raises(RunError, match="not a folder of yours"):
        sockets.prepare(tmp_path / "link" / "site.sock")


# --- the progress of a job


def test_progress_is_read_as_far_as_it_is_there(tmp_path):
    private = tmp_path / "runs" / "one" / "private"
    assert status.newest(tmp_path / "runs") is None
    private.mkdir(parents=True)
    file = private / "federation.json"
    for text in ("", "{", "[]", "null", '{"rounds": 3, "sites"'):
        file.write_text(text)
        assert status.newest(tmp_path / "runs") is None
    file.write_text(json.dumps({"sites": "?", "rounds": "many"}))
    progress = status.newest(tmp_path / "runs")
    assert progress is not None and progress.sites == {} and progress.sentence().startswith("no round yet")
    sites = [
        {"name": "site-1", "answered": 4, "silent": 1, "failed": 0, "refused": None, "epsilon": 1.5},
        {"name": "site-2", "answered": 2, "silent": 0, "failed": 1, "refused": "over budget", "epsilon": None},
        "damaged",
    ]
    file.write_text(json.dumps({"job": "j", "rounds": 9, "done": 5, "updated": "now", "sites": sites}))
    progress = status.read_progress(tmp_path / "runs" / "one")
    assert progress is not None
    assert progress.sentence() == "round 5 of 9; 6 answers, 1 missing; refused by site-2"


def test_status_of_a_federation_that_is_down(federation):
    folder, _ = federation
    state = status.look(folder)
    assert state.server == {"superlink": "stopped", "superexec": "stopped", "gate": "stopped"}
    assert state.online is None and [row[0] for row in state.rows] == ["site-1", "site-2"]


def test_the_result_ends_a_job(tmp_path):
    assert status.result_lines(tmp_path) == []
    (tmp_path / "public").mkdir()
    (tmp_path / "public" / "result.json").write_text(
        json.dumps({"guarantee": {"sentence": "epsilon = 2."}, "accuracy": 0.5})
    )
    assert status.result_lines(tmp_path)[:2] == ["epsilon = 2.", "Accuracy with privacy: 50.00 %"]
    content = {"guarantee": {"sentence": "."}, "guarantees": {"public": {"epsilon": 1.5}, "server": {"epsilon": None}}}
    (tmp_path / "public" / "result.json").write_text(json.dumps(content))
    (tmp_path / "private").mkdir()
    sites = [{"name": "site-1", "epsilon": 2.25}, {"name": "site-2", "epsilon": 0.0}]
    (tmp_path / "private" / "federation.json").write_text(json.dumps({"rounds": 2, "done": 2, "sites": sites}))
    _, by_viewer, place = status.result_lines(tmp_path)  # nothing of who was drawn, which `status` shows the operator
    assert "public 1.5, server infinite" in by_viewer and "2.25" not in place


def test_the_commands_say_what_is_missing(tmp_path):
    command = [sys.executable, "-c", "from sordino.cli.main import main; main()", "deploy"]
    for words in (["up"], ["down"], ["run"], ["status"]):
        done = subprocess.run([*command, *words], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 2 and "sordino deploy init SPEC.toml" in done.stderr
        assert done.stderr.count("\n") == 1
