"""`sordino deploy run`: hand the app to the SuperLink, and follow the job until it ends."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from sordino.core.errors import RunError
from sordino.deploy import flower, processes, status
from sordino.deploy.folder import CONNECTION, Folder

EVERY = 0.3  # seconds between two looks at the file of the job
FAILED = "failed.json"  # in server/runs: why the server gave up on the last job
ASKING = 3.0  # seconds between two questions to the SuperLink, each of which starts a process and costs a CPU second
RARELY = 20.0  # the same, while the file of the job says that its rounds go on
LOST = 120.0  # seconds for which the SuperLink may be out of reach before a job counts as lost


def begin(
    folder: Folder, resume: str | None = None, name: str | None = None, timeout: float | None = None
) -> tuple[str, Path]:
    """Start a job; return Flower's id of it, and its run folder.

    Args:
        folder: the federation; it must be up.
        resume: a run folder to continue: a path, or a name below server/runs.
        name: the name of the run folder (default: derived from the time).
        timeout: seconds to wait for the answers of one exchange (default: as in the app).
    """
    flower.require()
    running = {r.name for r in processes.read(folder.state) if processes.alive(r)}
    if missing := {"superlink", "superexec"} - running:
        raise RunError(f"the federation is not up ({', '.join(sorted(missing))} not running): sordino deploy up")
    if resume is not None:
        run = _resumed(folder, resume)
        config = [f"resume={json.dumps(str(run))}"]
    else:
        run = folder.runs / (name or time.strftime("%Y%m%d-%H%M%S"))
        if run.exists():
            raise RunError(f"{run} exists already. Choose another --name, or continue it with --resume {run.name}.")
        config = [f"name={json.dumps(run.name)}"]
    config.append(f"out={json.dumps(str(folder.runs))}")
    if timeout is not None:
        config.append(f"timeout={float(timeout)!r}")
    (folder.runs / FAILED).unlink(missing_ok=True)  # of an earlier job
    return flower.start_run(folder, config), run


def _resumed(folder: Folder, resume: str) -> Path:
    for run in (Path(resume), folder.runs / resume):
        if run.is_dir():
            return run.absolute()
    raise RunError(f"there is no run {resume}, neither here nor in {folder.runs}.")


def follow(folder: Folder, job: str, run: Path, say: Callable[[str], None], stream: bool = False) -> str:
    """Wait until a job has ended, telling its progress; return how it ended, such as "finished:completed"."""
    state, said, heard, asked = "pending", "", time.monotonic(), 0.0
    log = _log(folder, job) if stream else None
    try:
        while not state.startswith("finished"):
            progress = status.read_progress(run)
            if time.monotonic() - asked > (RARELY if _goes_on(folder, progress) else ASKING):
                try:
                    state = flower.run_state(folder, job)
                    heard = time.monotonic()
                except RunError:
                    state = "the SuperLink is out of reach"
                    if time.monotonic() - heard > LOST:
                        raise
                asked = time.monotonic()
            line = state if progress is None else f"{state}: {progress.sentence()}"
            if line != said:
                say(line)
                said = line
            time.sleep(EVERY)
        return state
    finally:
        if log is not None:
            log.terminate()
            log.wait()


def _goes_on(folder: Folder, progress: status.JobProgress | None) -> bool:
    """Return whether the server is between two rounds, as far as its files say."""
    if progress is None or progress.done is None or progress.rounds is None:
        return False
    return progress.done < progress.rounds and reason(folder) is None


def _log(folder: Folder, job: str) -> subprocess.Popen[bytes]:
    """Show Flower's own log of the job on standard error."""
    command = [flower.program("flwr"), "log", job, CONNECTION, "--stream"]
    environment = flower.server_environment(folder.home)
    return subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=2, cwd=folder.server)


def reason(folder: Folder) -> str | None:
    """Return why the server gave up on the last job, in its own words; None if it did not say."""
    try:
        return str(json.loads((folder.runs / FAILED).read_text(encoding="utf-8"))["error"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def last_words(folder: Folder, job: str, lines: int = 15) -> str:
    """Return the end of Flower's log of a job."""
    command = [flower.program("flwr"), "log", job, CONNECTION, "--show"]
    environment = flower.server_environment(folder.home)
    try:
        done = subprocess.run(
            command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=30
        )
    except subprocess.TimeoutExpired:
        return ""
    return "\n".join(done.stdout.splitlines()[-lines:])
