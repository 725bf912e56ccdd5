"""`sordino deploy up` and `down`: start a federation as real processes of this machine, and end exactly those."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import secrets
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from sordino.core.errors import RunError
from sordino.deploy import accounts, certificates, flower, processes, sockets
from sordino.deploy.folder import Folder, Roster
from sordino.deploy.processes import ProcessRecord, SystemUser

Say = Callable[[str], None]
WAVE = 4  # sites that start at the same time; more of them only wait for each other's processors
SLOW = 120.0  # seconds until something that has not become ready counts as failed
REJOIN = 75.0  # seconds for which the SuperLink may hold the former process of a node for online
FREED = 5.0  # seconds for which the port of a process that was killed may still be taken
REGISTERED = "nodes.json"


def site_command(site: Path, number: int, data: str, socket_path: Path) -> list[str]:
    """Return the command of a site's daemon."""
    return [
        flower.program("sordino"), "site", "--data", data, "--policy", str(site / "policy.toml"),
        "--client", str(number), "--socket", str(socket_path),
    ]  # fmt: skip


@dataclass
class Launch:
    """One call of `up`: what runs already, and what this call has started."""

    folder: Folder
    roster: Roster
    say: Say
    user: SystemUser | None = None
    records: list[ProcessRecord] = field(default_factory=list)
    started: list[ProcessRecord] = field(default_factory=list)

    def running(self, name: str) -> ProcessRecord | None:
        return next((r for r in self.records if r.name == name and processes.alive(r)), None)

    def start(
        self,
        name: str,
        command: Sequence[str],
        log: Path,
        environment: dict[str, str],
        cwd: Path,
        user: SystemUser | None = None,
    ) -> ProcessRecord:
        """Start a process and write it down before anything else happens."""
        if log.exists():
            log.replace(log.with_suffix(".log.previous"))
        record = processes.start(name, command, log, secrets.token_hex(8), environment, cwd, user)
        self.records = [r for r in self.records if r.name != name] + [record]
        self.started = [r for r in self.started if r.name != name] + [record]
        processes.write(self.folder.state, self.records)
        return record

    def wait(self, record: ProcessRecord, ready: Callable[[], bool]) -> None:
        """Wait until a process is ready; raise RunError, with the end of its log, if it ends or takes too long."""
        end = time.monotonic() + SLOW
        while not ready():
            if not processes.alive(record) or time.monotonic() > end:
                said = processes.tail(record.log)
                what = "did not become ready" if processes.alive(record) else "ended"
                raise RunError(f"{record.name} {what}; its log {record.log} ends with:\n{said}")
            time.sleep(0.1)


def up(
    folder: Folder,
    nodes: int | None = None,
    data: str | None = None,
    flower_user: str | None = None,
    bind: str | None = None,
    say: Say = print,
    command: Callable[[Path, int, str, Path], list[str]] = site_command,
) -> None:
    """Start the server and the first sites of a federation on this machine; what runs already is left alone.

    Args:
        folder: the federation.
        nodes: how many sites to start here; None starts all, 0 the server alone.
        data: the data of the sites, a name or a path (default: `dataset` of the run file).
        flower_user: the user under which Flower's processes of sites run.
        bind: the address on which the gate listens (default: the host of the roster).
        say: where to write progress, line by line.
        command: makes the command of a site's daemon.
    """
    flower.require()
    roster = folder.roster()
    count = len(roster.sites) if nodes is None else nodes
    if not 0 <= count <= len(roster.sites):
        raise RunError(f"the federation has {len(roster.sites)} sites: --nodes must be 0 to {len(roster.sites)}.")
    check_certificates(folder)
    with locked(folder):
        user, warning = accounts.choose(flower_user, folder.sites) if count else (None, None)
        if warning:
            say(warning)
        launch = Launch(folder, roster, say, user, processes.read(folder.state))
        try:
            _server(launch, bind)
            _register(launch, count)
            data = _dataset(folder) if data is None else data
            data = str(Path(data).absolute()) if Path(data).exists() else data
            for first in range(0, count, WAVE):
                _sites(launch, range(first, min(count, first + WAVE)), data, command)
            if count:
                _all_online(launch, count)
            for record in launch.started:
                launch.wait(record, partial(processes.alive, record))  # nothing ended while others started
        except BaseException:
            if launch.started:
                say("Something failed: stopping what was started.")
                _end(launch.started, say)
                processes.write(folder.state, [r for r in launch.records if processes.alive(r)])
            raise


def down(folder: Folder, say: Say = print) -> int:
    """End the processes that `up` started, and nothing else; return how many were still running."""
    with locked(folder):
        records = processes.read(folder.state)
        running = sum(map(processes.alive, records))
        _end(records, say)
        processes.write(folder.state, [r for r in records if processes.alive(r)])
        for site in folder.roster().sites:
            sockets.clean(folder.site(site.name))
    return running


def _end(records: Sequence[ProcessRecord], say: Say) -> None:
    """Nodes first, so that they can sign off; then the sites' daemons, then the server."""
    nodes = [r for r in records if r.name.endswith(" node")]
    server = [r for r in records if r.name in ("superlink", "superexec", "gate")]
    daemons = [r for r in records if r not in nodes and r not in server]
    for group in (nodes, daemons, server):
        processes.stop(group, say=say)


@contextlib.contextmanager
def locked(folder: Folder) -> Iterator[None]:
    """Hold the federation, so that two commands do not change it at the same time."""
    folder.state.mkdir(mode=0o700, exist_ok=True)
    with (folder.state / "lock").open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise RunError(f"another `sordino deploy` works on {folder.path}: wait until it has finished.") from error
        yield


def _dataset(folder: Folder) -> str:
    """Return the data that the run file names."""
    from sordino.spec import spec as specs  # takes seconds, and only `up` needs it

    return str(specs.read(folder.spec).get("dataset", specs.Spec.dataset))


def check_certificates(folder: Folder) -> None:
    """Raise RunError if the certificate of the server has expired."""
    end = certificates.expires(folder.server / "server.crt")
    if end <= datetime.now(UTC):
        raise RunError(
            f"the certificates of this federation expired on {end:%Y-%m-%d}: make a new one with `sordino deploy init`."
        )


def _check_port(host: str, port: int) -> None:
    """Raise RunError if a port stays in use; that of a process which was just killed is free a moment later."""
    kind, end = socket.AF_INET6 if ":" in host else socket.AF_INET, time.monotonic() + FREED
    while True:
        with socket.socket(kind, socket.SOCK_STREAM) as line:
            line.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                line.bind((host, port))
            except OSError as error:
                if error.errno != errno.EADDRINUSE or time.monotonic() > end:
                    raise RunError(
                        f"cannot listen on {host}:{port}: {error.strerror}. Stop what uses it, make the federation "
                        "with another --port, or give `up` a local address with --bind."
                    ) from error
            else:
                return
        time.sleep(0.1)


def _listens(host: str, port: int) -> bool:
    local = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    with contextlib.suppress(OSError), socket.create_connection((local, port), timeout=1.0):
        return True
    return False


def _server(launch: Launch, bind: str | None) -> None:
    folder, roster = launch.folder, launch.roster
    for path in (folder.log, folder.runs):
        path.mkdir(mode=0o700, exist_ok=True)
    flower.settings(folder.home, roster.inner_port, folder.server / "ca.crt")  # the folder may have been moved
    environment, server = flower.server_environment(folder.home), folder.server
    secret = ["--superexec-auth-secret-file", str(server / "superexec.secret")]
    inner = f"127.0.0.1:{roster.inner_port}"
    superlink = [
        flower.program("flower-superlink"), "--host", "127.0.0.1", "--port", str(roster.inner_port),
        "--ssl-certfile", str(server / "server.crt"), "--ssl-keyfile", str(server / "server.key"),
        "--ssl-ca-certfile", str(server / "ca.crt"), "--enable-supernode-auth",
        "--database", str(folder.state / "superlink.db"), "--isolation", "process", *secret,
    ]  # fmt: skip
    superexec = [
        flower.program("flower-superexec"), "--runtime-api-address", inner,
        "--root-certificates", str(server / "ca.crt"), *secret,
    ]  # fmt: skip
    host = bind or roster.host
    gate = [
        sys.executable, "-m", "sordino.deploy.gate", "--listen", f"{host}:{roster.port}", "--upstream", inner,
        "--certificate", str(server / "server.crt"), "--key", str(server / "server.key"),
        "--ca", str(server / "ca.crt"),
    ]  # fmt: skip
    parts = (
        (
            "superlink",
            superlink,
            ("127.0.0.1", roster.inner_port),
            f"the SuperLink listens on {inner}, for this machine",
        ),
        ("superexec", superexec, None, "starts the jobs of the server"),
        ("gate", gate, (host, roster.port), f"sites reach the server at {host}:{roster.port}"),
    )
    for name, command, address, what in parts:
        if launch.running(name):
            launch.say(f"{name}: already running.")
            continue
        if address is not None:
            _check_port(*address)
        record = launch.start(name, command, folder.log / f"{name}.log", environment, server)
        launch.wait(record, partial(_listens, *address) if address else lambda: True)
        launch.say(f"{name}: {what}.")


def _register(launch: Launch, count: int) -> None:
    """Enrol the keys of sites that this database does not know yet."""
    file = launch.folder.state / REGISTERED
    known = known_nodes(launch.folder)
    if known:
        present = flower.nodes(launch.folder)
        known = {site: node for site, node in known.items() if node in present}  # the database may be a new one
    for site in launch.roster.sites:
        if site.name not in known:
            known[site.name] = flower.register(launch.folder, site.name)
            file.write_text(json.dumps(known, indent=1) + "\n")
            launch.say(f"{site.name}: its key is enrolled.")


def known_nodes(folder: Folder) -> dict[str, str]:
    """Return the node id of every enrolled site."""
    try:
        return {str(k): str(v) for k, v in json.loads((folder.state / REGISTERED).read_text()).items()}
    except (OSError, ValueError, AttributeError):
        return {}


def _sites(launch: Launch, numbers: range, data: str, command: Callable[[Path, int, str, Path], list[str]]) -> None:
    """Start some sites: first their daemons, then, when these listen, their nodes."""
    entries = [(number, launch.roster.sites[number].name) for number in numbers]
    waiting: list[tuple[ProcessRecord, Path]] = []
    for number, name in entries:
        site = launch.folder.site(name)
        path = sockets.place(site)
        if launch.running(name):
            launch.say(f"{name}: already running.")
            continue
        sockets.prepare(path)
        if launch.user is not None:
            accounts.let_in(path.parent, launch.user)
        for part in ("state", "log"):
            (site / part).mkdir(mode=0o700, exist_ok=True)
        environment = _daemon_environment(site, len(launch.roster.sites))
        record = launch.start(name, command(site, number, data, path), site / "log" / "site.log", environment, site)
        waiting.append((record, path))
    for record, path in waiting:
        launch.wait(record, partial(sockets.answers, path))
        launch.say(f"{record.name}: the daemon listens.")
    nodes = [(number, name, _node(launch, number, name)) for number, name in entries]
    for number, name, node in nodes:
        if node is not None:
            _joined(launch, number, name, node)


def _daemon_environment(site: Path, sites: int) -> dict[str, str]:
    """Return the environment of a daemon: a ledger of its own, and its share of the processors that all sites use."""
    threads = max(1, (os.cpu_count() or 1) // sites)
    return {"OMP_NUM_THREADS": str(threads)} | dict(os.environ) | {"SORDINO_HOME": str(site / "state")}


def _node(launch: Launch, number: int, name: str) -> ProcessRecord | None:
    """Start the SuperNode of a site; None if it runs already."""
    site, port = launch.folder.site(name), launch.roster.node_port(number)
    if launch.running(f"{name} node"):
        launch.say(f"{name} node: already running.")
        return None
    _check_port("127.0.0.1", port)
    home, path = site / "home", sockets.place(site)
    home.mkdir(mode=0o700, exist_ok=True)
    if launch.user is not None:
        accounts.hand_over(site, launch.user)
    host = f"[{launch.roster.host}]" if ":" in launch.roster.host else launch.roster.host
    command = [
        flower.program("flower-supernode"), "--superlink", f"{host}:{launch.roster.port}",
        "--root-certificates", str(site / "ca.crt"), "--auth-supernode-private-key", str(site / "node"),
        "--host", "127.0.0.1", "--port", str(port), "--ssl-certfile", str(site / "site.crt"),
        "--ssl-keyfile", str(site / "site.key"), "--ssl-ca-certfile", str(site / "ca.crt"),
        "--node-config", f'socket={json.dumps(str(path))} site={json.dumps(name)}',
    ]  # fmt: skip
    environment = flower.node_environment(home)
    return launch.start(f"{name} node", command, site / "log" / "node.log", environment, home, launch.user)


def _joined(launch: Launch, number: int, name: str, node: ProcessRecord) -> None:
    """Wait until a node is online; the SuperLink refuses it while it holds a former process of it for online."""
    end = time.monotonic() + REJOIN
    while True:
        try:
            launch.wait(node, partial(_says_its_id, node))
        except RunError:
            if "305" not in processes.tail(node.log) or time.monotonic() > end:
                raise
            launch.say(f"{name} node: the SuperLink still waits for its former process; trying again in 5 s.")
            time.sleep(5.0)
            node = _node(launch, number, name) or node
            continue
        launch.say(f"{name} node: online.")
        return


def _says_its_id(node: ProcessRecord) -> bool:
    return "SuperNode ID" in processes.tail(node.log, 200)


def _all_online(launch: Launch, count: int) -> None:
    """Ask the SuperLink itself which nodes it sees."""
    known, end = known_nodes(launch.folder), time.monotonic() + 30
    while True:
        states = flower.nodes(launch.folder)
        absent = [s.name for s in launch.roster.sites[:count] if states.get(known.get(s.name, "")) != "online"]
        if not absent:
            launch.say(f"All {count} sites are online." if count > 1 else "The site is online.")
            return
        if time.monotonic() > end:
            raise RunError(f"the SuperLink does not see {', '.join(absent)}; look into sites/{absent[0]}/log/node.log.")
        time.sleep(1.0)
