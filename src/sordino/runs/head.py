"""The head of a run folder: what is written before the first round, and what a resumed run must share with it."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from sordino.core.errors import RunError
from sordino.core.parts import PUBLIC, locate
from sordino.run_folder import boundary
from sordino.run_folder.folder import INPUTS, RunFolder
from sordino.runs.describe import describe
from sordino.runs.fingerprint import of_job
from sordino.runs.identity import Whose
from sordino.runs.job import Job
from sordino.runs.paying import ledger_path
from sordino.runs.prepare import dataset_path
from sordino.spec import spec, toml


def write_head(folder: RunFolder, job: Job, own_model: bool, ordered: str, whose: Whose) -> None:
    """Write what a run folder holds before its first round."""
    named = job.spec.ledger
    path = None if named is None else os.path.relpath(ledger_path(job), folder.path.absolute())
    fresh = {"path": path, "job": os.urandom(8).hex(), "data": whose.public_name, "entries": 0, "head": ""}
    folder.write_json("ledger.json", fresh)
    full_spec = {k: v for k, v in absolute(job.spec).to_dict().items() if not (own_model and k in spec.NAMED)}
    shown = boundary.public_spec(job.spec, job.public_data, own_model)
    boundary.check_fields("spec.toml", shown, boundary.options_of(job.spec))
    folder.publish("spec.toml", _toml(shown))
    folder.publish_json("plan.json", describe(job))
    if job.form is not None:
        folder.publish_json(INPUTS, job.form.to_json())
    folder.write("spec.toml", _toml(full_spec))
    folder.write_json("job.json", {"own": own_model, "fingerprint": of_job(job, ordered)})


def _toml(keys: dict[str, Any]) -> bytes:
    return ("\n".join(f"{k} = {toml.to_toml(v)}" for k, v in keys.items()) + "\n").encode()


def absolute(wanted: spec.Spec) -> spec.Spec:
    """Return the spec with absolute paths, so that the run can be resumed from any working directory."""
    return replace(
        wanted,
        dataset=dataset_path(wanted),
        data_dir=None if wanted.data_dir is None else str(Path(wanted.data_dir).absolute()),
        test=None if wanted.test is None else str((Path(wanted.data_dir or ".") / wanted.test).absolute()),
        schema=_absolute_path(wanted.schema),
        budgets=_absolute_path(wanted.budgets),
        private_data=_absolute_path(wanted.private_data, "file:"),
        initial_weights=_absolute_path(wanted.initial_weights),
    )


def _absolute_path(text: str | None, prefix: str = "") -> str | None:
    """Return the absolute path of a file, after its prefix; text that names no file here is returned unchanged."""
    name = None if text is None else text.removeprefix(prefix)
    if text is None or name is None or not text.startswith(prefix) or not os.path.isfile(name):  # noqa: PTH113
        return text
    return prefix + str(Path(name).absolute())


def job_file(path: Path) -> dict[str, Any]:
    """Return the contents of job.json, or raise RunError if this is no run folder that can be continued."""
    if not path.is_dir():
        raise RunError(f"there is no run folder {path}.")
    folder = RunFolder(path)
    refuse_flat(folder)
    data = folder.read_json("job.json")
    if not isinstance(data, dict):
        raise RunError(f"{folder.private / 'job.json'} is damaged.")
    return data


def refuse_flat(folder: RunFolder) -> None:
    """Raise RunError if the folder has no private part of this version."""
    if folder.flat:
        raise RunError(
            f"{folder.path} was made by an earlier version of Sordino, or is a public part alone: it can be read "
            "(`sordino explain`), but not continued. Start a new run."
        )


def stored_keys(path: Path) -> dict[str, Any]:
    """Return the keys of the spec that is stored in a run folder."""
    if not path.is_dir():
        raise RunError(f"there is no run folder {path}.")
    private = RunFolder(path).private / "spec.toml"
    return spec.read(private if private.is_file() else locate(path, PUBLIC, "spec.toml"))


def check_same(folder: RunFolder, job: Job, ordered: str) -> None:
    """Raise RunError unless the job is the one that the folder was started with."""
    if job_file(folder.path).get("fingerprint") != of_job(job, ordered):
        raise RunError(
            f"{folder.path} was started with another model, other data, another spec or an earlier version of Sordino; "
            "a resumed run must be the same."
        )
