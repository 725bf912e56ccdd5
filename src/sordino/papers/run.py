"""Run the unfinished trials of an experiment, and read their results.

    OUT/002-fig4d/experiment.json   scale and settings; the same command resumes, others are refused once runs began
    OUT/002-fig4d/cells/TRIAL       one run folder per trial; figures made from the same runs share them

Trials are executed like the cells of a comparison: in processes, resumable, with one ledger for all.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from sordino.comparisons import compare
from sordino.comparisons.compare import Cell, News, Tell
from sordino.core import plugin
from sordino.core.errors import RunError, SordinoError, SpecError
from sordino.core.parts import PRIVATE, PUBLIC, locate, runs_below
from sordino.papers import feng, feng_times, feng_wind, li, xue
from sordino.papers.base import Experiment, Outcome, Trial
from sordino.run_folder.folder import RECORDS, RunFolder
from sordino.spec import spec

EXPERIMENTS: dict[str, Experiment] = {e.name: e for m in (xue, feng, feng_wind, feng_times, li) for e in m.EXPERIMENTS}
PAPERS = {
    "002": "Xue et al.: adaptive component noise",
    "003": "Feng et al.: UDP-FL and its Harmonizer",
    "004": "Li et al.: FedSDP",
}
EXPERIMENT = "experiment.json"
Trials = Sequence[tuple[Trial, Cell]]


class TimeUpError(Exception):
    """Raised when the time limit of a job is reached; finished trials are kept."""


def find(name: str) -> Experiment:
    """Return the experiment of that name."""
    if name in EXPERIMENTS:
        return EXPERIMENTS[name]
    raise SpecError(f"unknown experiment {name!r}. There are: {', '.join(EXPERIMENTS)}.")


def cells(experiment: Experiment, scale: float, overrides: Mapping[str, Any]) -> list[tuple[Trial, Cell]]:
    """Return every trial with all of its keys, and the cell that runs it.

    Overrides apply to the trials whose method has such a key."""
    if not 0 < scale <= 1:
        raise SpecError(f"scale must lie in (0, 1], not {scale!r}.")
    if fixed := [k for k in overrides if k in ("method", "seed")]:
        raise SpecError(f"--set {fixed[0]}: an experiment has its own.")
    out, used = [], set[str]()
    for trial in experiment.trials(scale):
        keys = {"mode": "research"} | dict(trial.keys) | {"seed": trial.seed}
        for key, value in overrides.items():
            if _has(keys, key):
                keys[key] = value
                used.add(key)
        wanted = spec.from_dict(keys)
        if not wanted.public_data and Path(wanted.data_dir or ".", wanted.dataset).exists():
            raise SpecError(
                f"{experiment.name} on {wanted.dataset}: its pages show bytes, seconds and exact figures, so its data "
                "must be public. Use a shipped benchmark, or --set public_data=true if all these records are public."
            )
        cell = Cell(trial.name, str(keys["method"]), keys.get("epsilon"), trial.seed, wanted)
        out.append((replace(trial, keys=wanted.to_dict()), cell))
    if missed := [k for k in overrides if k not in used]:
        raise SpecError(f"no method of {experiment.name} has a key {missed[0]!r}.")
    names = [c.name for _, c in out]
    if len(set(names)) < len(names):
        raise RunError(f"{experiment.name}: two trials have one name.")
    return out


def _has(keys: Mapping[str, Any], key: str) -> bool:
    """Return whether runs with these keys have such a key, in general or by their method or algorithm."""
    if key in {f.name for f in spec.fields()}:
        return True
    method = plugin.load("methods", str(keys["method"]))
    method_keys = {f.name for f in spec.plugin_fields("methods", str(keys["method"]))}
    algorithm = str(keys.get("algorithm", method.algorithm))
    return key in method_keys | {f.name for f in spec.plugin_fields("algorithms", algorithm)}


def sketch(path: Path, trials: Trials) -> None:
    """Refuse an experiment that cannot run at all, before its folder is created.

    Pairs of dataset and method are tried one by one until one can run. The others fail individually, so that a missing
    dataset affects only its own rows."""
    if not begun(path).isdisjoint(c.name for _, c in trials):  # the experiment has run before
        return
    kinds: dict[tuple[str, str], list[Cell]] = {}
    for _, cell in trials:
        kinds.setdefault((cell.spec.dataset, cell.method), []).append(cell)
    problems: list[SordinoError] = []
    for kind in kinds.values():
        try:
            compare.sketch(kind)
        except SordinoError as error:
            problems.append(error)
        else:
            return
    if problems:
        raise problems[0]


def place(out: Path, experiment: Experiment) -> Path:
    """Return the folder of the experiment's runs."""
    return out / (experiment.within or experiment.name).replace("/", "-")


def begun(path: Path) -> set[str]:
    """Return the names of the trials that were charged anything or are finished."""
    return {run.name for run in runs_below(path / "cells")}


def open_folder(out: Path, experiment: Experiment, scale: float, trials: Trials) -> RunFolder:
    """Open the folder of the experiment's runs, new or begun by the same command; it is locked until closed."""
    path = place(out, experiment)
    specs = json.loads(json.dumps({c.name: c.spec.to_dict() for _, c in trials}))
    before: dict[str, Any] = {}
    started = begun(path)
    if locate(path, PRIVATE, EXPERIMENT).is_file():
        folder = RunFolder(path)
        old_scale, before = _before(folder, started)
        both = before.keys() & specs.keys()
        if before and (old_scale != scale or any(before[name] != specs[name] for name in both)):
            raise RunError(f"{path} was made with another scale or other settings. Choose another --out.")
    elif started:
        raise RunError(f"{path} holds runs, but no {EXPERIMENT} that says which. Choose another --out.")
    else:
        folder = RunFolder(path) if path.is_dir() else RunFolder.create(str(out), path.name)
    folder.lock()
    experiment_name = experiment.within or experiment.name
    folder.write_json(EXPERIMENT, {"experiment": experiment_name, "scale": scale, "trials": before | specs})
    return folder


def _before(folder: RunFolder, started: set[str]) -> tuple[Any, dict[str, Any]]:
    """Return the scale, and the settings of the trials that have begun."""
    try:
        old = folder.read_json(EXPERIMENT)
        trials = {name: spec.completed(dict(keys)) for name, keys in old["trials"].items() if name in started}
        return old["scale"], trials
    except (RunError, KeyError, TypeError, ValueError, AttributeError) as error:
        reason = (
            str(error)
            if isinstance(error, RunError)
            else f"{locate(folder.path, PRIVATE, EXPERIMENT)} is damaged: {error!r}"
        )
        raise RunError(f"{reason}. Choose another --out, or move {folder.path} away.") from error


def execute(folder: RunFolder, trials: Trials, jobs: int, tell: Tell, minutes: float | None) -> dict[str, str]:
    """Run the trials and return the reasons of those that failed, by name.

    Raises:
        TimeUpError: after `minutes`; the same command then resumes.
    """
    end = None if minutes is None else time.monotonic() + 60 * minutes

    def heard(news: News) -> None:
        tell(news)
        if end is not None and time.monotonic() > end:
            raise TimeUpError

    quick = [
        replace(c, spec=replace(c.spec, checkpoint_seconds=min(c.spec.checkpoint_seconds, 5.0))) for _, c in trials
    ]
    return compare.execute(folder, quick, jobs, heard)


def outcomes(folder: Path, trials: Trials) -> list[Outcome]:
    """Return the results of the finished trials."""
    places = [(trial, folder / "cells" / cell.name) for trial, cell in trials]
    return [_outcome(trial, at) for trial, at in places if locate(at, PUBLIC, "result.json").is_file()]


def _rounds(file: Path) -> list[dict[str, Any]]:
    lines = file.read_text(encoding="utf-8").splitlines()
    return [{k: v for k, v in json.loads(line).items() if v is not None} for line in lines]


def _outcome(trial: Trial, at: Path) -> Outcome:
    file = locate(at, PRIVATE, RECORDS)
    try:
        owners = _rounds(file)  # the data are public, so seconds and bytes may be shown
        _ = [(float(o["seconds"]), int(o["bytes_up"])) for o in owners]
        file = locate(at, PUBLIC, RECORDS)
        records = [o | r for o, r in zip(owners, _rounds(file), strict=True)]
        _ = [int(r["round"]) for r in records]
        file = locate(at, PUBLIC, "result.json")
        made = Outcome(trial, json.loads(file.read_text(encoding="utf-8")), records, at)
        _ = made.score, made.honest, made.whom, int(made.result["rounds"]), dict(made.result.get("claim") or {})
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        again = f"Remove {at}, and the same command runs it anew."
        raise RunError(f"{file} is missing or damaged ({type(error).__name__}: {error}). {again}") from error
    return made
