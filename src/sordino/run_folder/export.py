"""Copy the public part of a run folder, and nothing else, to a folder or an archive."""

from __future__ import annotations

import io
import json
import shutil
import tarfile
import tomllib
import zipfile
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load

from sordino.core.errors import RunError
from sordino.core.parts import PUBLIC, runs_below
from sordino.run_folder import boundary
from sordino.run_folder.folder import RECORDS, RunFolder
from sordino.spec import spec

WHOLE = {"spec.toml", "plan.json", "records.jsonl", "model.safetensors", "result.json"}  # files of every finished run
EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest time that a .zip archive can hold; it hides when a file was written


def export(run: Path, target: Path, anyway: bool = False) -> list[str]:
    """Write the public files of a run, or of a comparison and its cells, to `target`; return their names.

    Args:
        run: the folder of the run or comparison.
        target: a folder or archive (.zip, .tar, .tar.gz, .tgz) that does not exist yet.
        anyway: export a run on private data even if it has no finite guarantee.

    Raises:
        RunError: if the run is unfinished or damaged, or promises nothing to whoever sees the files.
    """
    if not run.is_dir():
        raise RunError(f"there is no run folder {run}.")
    if target.exists():
        raise RunError(f"{target} exists already. Choose another name, or remove it first.")
    if target.absolute().is_relative_to(run.absolute()):
        raise RunError(f"{target} is inside the run folder. Choose a place outside {run}.")
    cells = runs_below(run / "cells")
    if not cells and (below := [str(each) for each in runs_below(run)]):
        raise RunError(f"{run} is not a run folder; runs in it: {', '.join(below[:8])}.")
    if run.name == PUBLIC and (run / "plan.json").is_file():
        raise RunError(f"{run} is the public part of a run: name the run itself, {run.parent}.")
    files: dict[str, bytes] = {}
    for at, prefix in [(run, ""), *((cell, f"cells/{cell.name}/") for cell in cells)]:
        if at == run and cells:
            files |= _files(at, prefix)
            continue
        may_leave(at, anyway)
        public_files = _files(at, prefix)
        for name in sorted(WHOLE - {name.removeprefix(prefix) for name in public_files}):
            raise RunError(f"{at / PUBLIC / name} is missing. Put it back, or train again.")
        files |= public_files
    try:
        _write(target, files)
    except OSError as error:
        raise RunError(f"cannot write {target}: {error.strerror or error}.") from error
    return sorted(files)


def may_leave(run: Path, anyway: bool) -> None:
    """Raise RunError if a run has no public part, is unfinished, or promises nothing to whoever sees its files."""
    folder = RunFolder(run)
    if not folder.public.is_dir():
        raise RunError(
            f"{run} has no public part: it was made by an earlier version of Sordino, and its records tell about "
            "the draws. Train again to get one."
        )
    result = folder.read_json("result.json", PUBLIC) if (folder.public / "result.json").is_file() else None
    if result is None:
        raise RunError(f"{run} is not finished. Run `sordino resume {run}`, then export it.")
    plan: dict[str, Any] = folder.read_json("plan.json", PUBLIC)
    try:
        promised = result["guarantees"]["public"]
        if promised["infinite"] and not plan["public_data"] and not anyway:
            raise RunError(
                f"{run}: {promised['sentence']} Nothing of it may be handed out; --anyway exports it all the same."
            )
    except (KeyError, TypeError) as error:
        raise RunError(f"{folder.public / 'result.json'} is damaged: {error!r}.") from error


def _files(run: Path, prefix: str) -> dict[str, bytes]:
    """Return the files of a public part by name; every file and field is checked again."""
    files = {}
    for path in sorted((run / PUBLIC).iterdir()):
        if path.name.endswith(".tmp"):
            continue
        try:
            data = path.read_bytes()
        except OSError as error:
            raise RunError(f"cannot read {path}: {error.strerror or error}.") from error
        _check(path, data)
        files[prefix + path.name] = data
    return files


def _check(path: Path, data: bytes) -> None:
    boundary.check_file(path.name)
    try:
        if path.name == "spec.toml":
            keys = tomllib.loads(data.decode())
            boundary.check_fields(path.name, keys, boundary.options_of(spec.from_dict(keys)))
        elif path.name == RECORDS:
            for line in data.decode().splitlines():
                boundary.check_fields(path.name, json.loads(line))
        elif path.suffix == ".json":
            boundary.check_fields(path.name, json.loads(data))
        elif path.suffix == ".safetensors":
            load(data)
    except (ValueError, TypeError, AttributeError, SafetensorError) as error:
        raise RunError(f"{path} is damaged: {error}") from error


def _write(target: Path, files: dict[str, bytes]) -> None:
    """Write either all files or none."""
    beside = target.with_name(target.name + ".tmp")
    try:
        if target.name.endswith(".zip"):
            with zipfile.ZipFile(beside, "w", zipfile.ZIP_DEFLATED) as archive:
                for name, data in sorted(files.items()):
                    archive.writestr(zipfile.ZipInfo(name, EPOCH), data, zipfile.ZIP_DEFLATED)
        elif target.name.endswith((".tar.gz", ".tgz", ".tar")):
            with tarfile.open(beside, "w" if target.suffix == ".tar" else "w:gz") as archive_:
                for name, data in sorted(files.items()):
                    entry = tarfile.TarInfo(name)
                    entry.size = len(data)
                    archive_.addfile(entry, io.BytesIO(data))
        else:
            for name, data in sorted(files.items()):
                (beside / name).parent.mkdir(parents=True, exist_ok=True)
                (beside / name).write_bytes(data)
        beside.rename(target)
    except OSError:
        if beside.is_file():
            beside.unlink()
        shutil.rmtree(beside, ignore_errors=True)
        raise
