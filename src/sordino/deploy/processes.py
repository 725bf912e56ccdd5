"""Processes that `sordino deploy up` started: which they are, whether they still run, and how they are ended.

A process id is used again after its process has ended, so a process is known by its id and the time at which it began.
Every process carries a random mark in its environment, which its children inherit; children that leave their parent's
group, or outlive it, are found by that mark (Linux). Nothing else is ever signalled.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from sordino.core.errors import RunError

MARK = "SORDINO_DEPLOYED"
FILE = "processes.json"
PROC = Path("/proc")
PATIENCE = 10.0  # seconds between SIGTERM and SIGKILL
_children: dict[int, subprocess.Popen[bytes]] = {}  # of this process, so that their ends are noticed


@dataclass(frozen=True)
class ProcessRecord:
    """A started process."""

    name: str  # such as "superlink" or "site-1 node"
    pid: int
    began: str  # time of its start, as the system tells it
    log: str
    mark: str


@dataclass(frozen=True)
class SystemUser:
    """The user under which a process runs."""

    name: str
    uid: int
    gid: int


def start(
    name: str,
    command: Sequence[str],
    log: Path,
    mark: str,
    environment: Mapping[str, str],
    folder: Path,
    account: SystemUser | None = None,
) -> ProcessRecord:
    """Start a process in a session of its own, with its output in a log file; return what identifies it."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with os.fdopen(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "wb") as output:
        try:
            child = subprocess.Popen(
                list(command),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=dict(environment) | {MARK: mark},
                cwd=folder,
                start_new_session=True,
                user=None if account is None else account.uid,
                group=None if account is None else account.gid,
                extra_groups=None if account is None else [],
            )
        except OSError as error:
            raise RunError(f"cannot start {name}: {command[0]}: {error.strerror}.") from error
    _children[child.pid] = child
    return ProcessRecord(name, child.pid, began(child.pid) or "", str(log), mark)


def began(pid: int) -> str | None:
    """Return when a process began, in words that differ between two processes of one id; None if it has ended."""
    if (child := _children.get(pid)) is not None and child.poll() is not None:
        return None
    if PROC.joinpath("self").exists():
        try:
            state, *rest = (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
            boot = (PROC / "sys/kernel/random/boot_id").read_text().strip()
        except (OSError, ValueError):
            return None
        return None if state in "ZX" else f"{boot} {rest[18]}"
    done = subprocess.run(["ps", "-o", "stat=,lstart=", "-p", str(pid)], capture_output=True, text=True)
    words = done.stdout.split(maxsplit=1)
    return None if done.returncode or len(words) < 2 or words[0].startswith("Z") else words[1].strip()


def alive(record: ProcessRecord) -> bool:
    """Return whether this very process still runs; another one with its id does not count."""
    return bool(record.began) and began(record.pid) == record.began


def family(marks: Iterable[str]) -> list[ProcessRecord]:
    """Return all running processes that carry one of these marks in their environment, whoever their parent is."""
    wanted = {f"{MARK}={mark}".encode() for mark in marks}
    out = []
    for folder in PROC.glob("[0-9]*") if PROC.joinpath("self").exists() else ():
        try:
            entries = (folder / "environ").read_bytes().split(b"\0")
        except OSError:
            continue  # it has ended, or belongs to someone else
        carried = wanted.intersection(entries)
        if carried and (start_time := began(int(folder.name))) is not None and int(folder.name) != os.getpid():
            out.append(ProcessRecord("child", int(folder.name), start_time, "", carried.pop().decode().split("=")[1]))
    return out


def stop(
    records: Sequence[ProcessRecord], patience: float = PATIENCE, say: Callable[[str], None] = lambda _: None
) -> None:
    """End these processes and their children: SIGTERM, then SIGKILL for whatever is left after a while."""
    running = [record for record in records if alive(record)]
    for record in records:
        if record not in running:
            say(f"{record.name}: had ended already.")
    for record in running:
        _signal(record, signal.SIGTERM)
    _wait(running, patience)
    killed = {record.pid for record in running if alive(record)}
    left = family(r.mark for r in records)
    for record in left:
        if record.pid not in killed:
            _signal(record, signal.SIGTERM)
    _wait([r for r in left if r.pid not in killed], min(3.0, patience))
    for record in (*running, *family(r.mark for r in records)):
        if alive(record):
            _signal(record, signal.SIGKILL, group=record in running)
    _wait(running, 5.0)
    for record in running:
        how = "did not react and was killed" if record.pid in killed else "stopped"
        say(f"{record.name}: {how}." if not alive(record) else f"{record.name}: process {record.pid} cannot be ended.")


def _signal(record: ProcessRecord, number: int, group: bool = False) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if alive(record):
            os.killpg(record.pid, number) if group else os.kill(record.pid, number)


def _wait(records: Sequence[ProcessRecord], seconds: float) -> None:
    end = time.monotonic() + seconds
    while any(alive(record) for record in records) and time.monotonic() < end:
        time.sleep(0.05)


def read(state: Path) -> list[ProcessRecord]:
    """Return the processes that are written down; none if nothing was started."""
    try:
        content = json.loads((state / FILE).read_text())
        return [ProcessRecord(**entry) for entry in content["processes"]]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise RunError(
            f"cannot read {state / FILE}: {error}. Find the processes with `ps`, end them, and delete the file."
        ) from error


def write(state: Path, records: Sequence[ProcessRecord]) -> None:
    """Write the processes down, in one step."""
    state.mkdir(parents=True, exist_ok=True, mode=0o700)
    temporary = state / f"{FILE}.new"
    temporary.write_text(json.dumps({"processes": [asdict(r) for r in records]}, indent=1) + "\n")
    temporary.chmod(0o600)
    temporary.replace(state / FILE)


def tail(log: str | Path, lines: int = 15) -> str:
    """Return the last lines of a log."""
    try:
        with Path(log).open("rb") as handle:
            handle.seek(max(0, handle.seek(0, os.SEEK_END) - 8192))
            text = handle.read().decode(errors="replace")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-lines:])
