"""Flower apps with training code of their own that the owner of a site has reviewed, and the process that runs them.

The daemon runs a private copy that it makes of the owner's folder when it starts, never code that came from a server.
The copy holds exactly the files that Flower would pack, so the digest covers all of it. The process has no secret of
the daemon in its environment, but it is a process of the same user: what the app does there, the owner has reviewed.
"""

from __future__ import annotations

import io
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import warnings
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from sordino.core.errors import RunError, SpecError
from sordino.deploy import flower
from sordino.foreign import digest, frames
from sordino.foreign.request import Named, TrainRequest, renamed

PASSED = ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS")  # of the daemon's environment, beside those of a node
INFO = ".info/"  # where Flower lists the files of a packed app


@dataclass(frozen=True)
class AppMod:
    """What the process found among the mods of an app."""

    clip: float | None  # of its private_mod; None: it has none
    first: bool


@dataclass
class ReviewedApp:
    """A private copy of an app.

    Args:
        digest: sha256 of its files.
        folder: where the copy lies.
        log: file for whatever the app prints.
        seconds: time limit of one task.
    """

    digest: str
    folder: Path
    log: Path
    seconds: float
    _mod: AppMod | None = None

    def mod(self) -> AppMod:
        """Load the app in a process without data, once, and return its first mod."""
        if self._mod is None:
            header, _ = frames.unpacked(self._run("look", b""))
            clip, first = header.get("clip"), header.get("first")
            self._mod = AppMod(float(clip) if isinstance(clip, int | float) else None, first is True)
        return self._mod

    def train(self, request: TrainRequest, node: Mapping[str, Any]) -> Named:
        """Return the arrays that the app's training function makes of the data that `node` names: private values."""
        header, arrays = frames.unpacked(self._run("train", request.frame(node=dict(node))))
        return renamed(arrays, header.get("names"))

    def _run(self, task: str, stdin: bytes) -> bytes:
        """Run the process for one task, in a folder of its own; raise RunError if it fails or takes too long."""
        command = [sys.executable, "-m", "sordino.foreign.child", str(self.folder), task]
        with tempfile.TemporaryDirectory(dir=self.folder.parent) as home, self.log.open("ab") as log:
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=home,
                env=_environment(Path(home)),
                start_new_session=True,
            )
            try:
                out, _ = process.communicate(stdin, timeout=self.seconds)
            except BaseException as error:
                os.killpg(process.pid, signal.SIGKILL)  # and whatever it has started
                process.communicate()
                if isinstance(error, subprocess.TimeoutExpired):
                    raise RunError(f"the app took more than {self.seconds:g} seconds.") from error
                raise
        if process.returncode:
            raise RunError(f"the process of the app ended with code {process.returncode}; what it printed is above.")
        return out


def _environment(home: Path) -> dict[str, str]:
    """Return the environment of the process: nothing of the daemon's but what it needs to find Python."""
    kept = {name: os.environ[name] for name in PASSED if name in os.environ}
    return kept | flower.node_environment(home) | {"TMPDIR": str(home), "PYTHONDONTWRITEBYTECODE": "1"}


def bundle(app: Path) -> bytes:
    """Return an app as Flower packs it; `app` is its folder, or a .fab file."""
    flower.require()
    from flwr.cli.build import build_fab_from_disk

    if app.is_file():
        return app.read_bytes()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Flower's use of another library
        return build_fab_from_disk(app)


def packed_files(app: Path) -> dict[str, bytes]:
    """Return the files that Flower packs of an app, by their paths."""
    try:
        with zipfile.ZipFile(io.BytesIO(bundle(app))) as archive:
            names = [n for n in archive.namelist() if not n.startswith(INFO) and not n.endswith("/")]
            files = {name: archive.read(name) for name in names}
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise SpecError(f"{app} is no Flower app: {error} Give its folder, or a .fab file.") from error
    if any(PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts for name in files):
        raise SpecError(f"{app} holds files that lie outside of it.")
    return files


def digest_of(app: Path) -> str:
    """Return the digest by which a policy names an app."""
    return digest.of_files(packed_files(app))


def reviewed(app: Path, state: Path, seconds: float) -> ReviewedApp:
    """Copy an app into the private folder of a site and return the copy."""
    files = packed_files(app)
    name = digest.of_files(files)
    folder = state / "apps" / name
    if folder.exists():
        shutil.rmtree(folder)
    for path, content in files.items():
        (folder / path).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
    return ReviewedApp(name, folder, state / "log.txt", seconds)
