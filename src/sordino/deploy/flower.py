"""Flower's commands: their environment, their settings, and what they answer."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from sordino.core.errors import RunError
from sordino.deploy.folder import CONNECTION, Folder

ENVIRONMENT = {
    "FLWR_TELEMETRY_ENABLED": "0",  # otherwise every start and exit is posted to the vendor
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",  # otherwise every run installs packages
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2",  # seconds
}
PASSED = ("LANG", "LC_ALL", "TZ", "PYTHONPATH", "LD_LIBRARY_PATH")  # of the user's environment, for a node
PATIENCE = 60.0  # seconds for one command
EXTRA = "pip install 'sordino[flower]'"


def require() -> None:
    """Raise RunError if Flower is not installed."""
    if find_spec("flwr") is None:
        raise RunError(f"a real federation needs Flower: {EXTRA}")


def program(name: str) -> str:
    """Return the path of a program of Flower, of the same installation as this interpreter."""
    beside = Path(sys.executable).with_name(name)
    found = str(beside) if beside.is_file() else shutil.which(name)
    if found is None:
        raise RunError(f"the program {name} is missing: {EXTRA}")
    return found


def server_environment(home: Path) -> dict[str, str]:
    """Return the environment of Flower's processes on the server, and of commands of the operator."""
    return dict(os.environ) | ENVIRONMENT | {"FLWR_HOME": str(home), "PATH": _path(os.environ.get("PATH", ""))}


def node_environment(home: Path) -> dict[str, str]:
    """Return the environment of a SuperNode: whatever else is in the user's environment stays with the user."""
    kept = {name: os.environ[name] for name in PASSED if name in os.environ}
    path = _path("/usr/local/bin:/usr/bin:/bin")
    return kept | ENVIRONMENT | {"FLWR_HOME": str(home), "HOME": str(home), "PATH": path}


def _path(rest: str) -> str:
    """Flower looks up its own programs by name, so the folder of this interpreter comes first."""
    return os.pathsep.join([str(Path(sys.executable).parent), rest])


def settings(home: Path, port: int, certificate: Path) -> None:
    """Write Flower's config.toml: where its commands find the SuperLink."""
    name = CONNECTION
    text = (
        f'[superlink]\ndefault = "{name}"\n\n[superlink.{name}]\naddress = "127.0.0.1:{port}"\n'
        f"root-certificates = {json.dumps(str(certificate))}\n"
    )
    (home / "config.toml").write_text(text, encoding="utf-8")


def call(folder: Folder, *words: str, seconds: float = PATIENCE) -> dict[str, Any]:
    """Run a command of Flower with --format json; return its answer, or raise RunError with what it said."""
    command = [program("flwr"), *words, "--format", "json"]
    try:
        done = subprocess.run(
            command,
            env=server_environment(folder.home),
            capture_output=True,
            text=True,
            timeout=seconds,
            stdin=subprocess.DEVNULL,
            cwd=folder.server,
        )
    except subprocess.TimeoutExpired as error:
        raise RunError(f"`flwr {words[0]}` did not answer within {seconds:g} s. Is the SuperLink running?") from error
    answer = _object(done.stdout)
    if done.returncode != 0 or answer is None or answer.get("success") is False:
        said = str((answer or {}).get("error-message") or done.stderr or done.stdout).strip().splitlines()
        raise RunError(f"`flwr {' '.join(words[:2])}` failed: {said[-1] if said else 'it said nothing'}")
    return answer


def _object(text: str) -> dict[str, Any] | None:
    start = text.find("{")
    try:
        content = json.loads(text[start:]) if start >= 0 else None
    except ValueError:
        return None
    return content if isinstance(content, dict) else None


def register(folder: Folder, site: str) -> str:
    """Enrol the node key of a site at the SuperLink; return the node's id."""
    public = folder.nodes / f"{site}.pub"
    return str(call(folder, "supernode", "register", str(public), CONNECTION)["node-id"])


def nodes(folder: Folder) -> dict[str, str]:
    """Return the state of every enrolled node by its id: registered, online or offline."""
    answer = call(folder, "supernode", "list", CONNECTION)
    return {str(node["node-id"]): str(node["status"]) for node in answer["nodes"]}


def start_run(folder: Folder, config: Sequence[str]) -> str:
    """Upload the app and queue a run; return its id."""
    options = [word for entry in config for word in ("-c", entry)]
    return str(call(folder, "run", str(folder.app), CONNECTION, *options)["run-id"])


def run_state(folder: Folder, run: str) -> str:
    """Return the state of a run, such as "running" or "finished:completed"."""
    answer = call(folder, "ls", CONNECTION, "--run-id", run)
    return str(answer["runs"][0]["status"])
