"""Run an experiment's trials, those that are left; read what they left.

    OUT/002-fig4d/experiment.json   scale and overrides; the same command goes on, another one is refused
    OUT/002-fig4d/cells/TRIAL       a run folder each; two figures made of the same runs share them

Trials run through the same machinery as comparisons: in processes, resumable, one ledger for all.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from sordino.core import plugin
from sordino.core.errors import RunError, SpecError
from sordino.experiments import feng, li, xue
from sordino.experiments.base import Experiment, Outcome, Trial
from sordino.runs import compare, spec
from sordino.runs.compare import Cell, News, Tell
from sordino.runs.folder import RunFolder

EXPERIMENTS: dict[str, Experiment] = {e.name: e for m in (xue, feng, li) for e in m.EXPERIMENTS}
PAPERS = {
    "002": "Xue et al.: adaptive component noise",
    "003": "Feng et al.: UDP-FL and its Harmonizer",
    "004": "Li et al.: FedSDP",
}


class TimeUpError(Exception):
    """The minutes of this job are over; what is finished stays."""


def find(name: str) -> Experiment:
    if name in EXPERIMENTS:
        return EXPERIMENTS[name]
    raise SpecError(f"unknown experiment {name!r}. There are: {', '.join(EXPERIMENTS)}.")


def cells(experiment: Experiment, scale: float, overrides: Mapping[str, Any]) -> list[tuple[Trial, Cell]]:
    """Every trial as a run, all specs checked; overrides go to every trial whose method has such a key."""
    if not 0 < scale <= 1:
        raise SpecError(f"scale must lie in (0, 1], not {scale!r}.")
    if fixed := [k for k in overrides if k in ("method", "seed")]:
        raise SpecError(f"--set {fixed[0]}: an experiment has its own.")
    out, used = [], set[str]()
    for trial in experiment.trials(scale):
        keys = dict(trial.keys) | {"seed": trial.seed}
        for key, value in overrides.items():
            if _has(keys, key):
                keys[key] = value
                used.add(key)
        method = str(keys["method"])
        out.append((trial, Cell(trial.name, method, keys.get("epsilon"), trial.seed, spec.from_dict(keys))))
    if missed := [k for k in overrides if k not in used]:
        raise SpecError(f"no method of {experiment.name} has a key {missed[0]!r}.")
    names = [c.name for _, c in out]
    if len(set(names)) < len(names):
        raise RunError(f"{experiment.name}: two trials have one name.")
    return out


def _has(keys: Mapping[str, Any], key: str) -> bool:
    if key in {f.name for f in spec.fields()}:
        return True
    method = plugin.load("methods", str(keys["method"]))
    own = {f.name for f in spec.plugin_fields("methods", str(keys["method"]))}
    algorithm = str(keys.get("algorithm", method.algorithm))
    return key in own | {f.name for f in spec.plugin_fields("algorithms", algorithm)}


def open_folder(out: Path, experiment: Experiment, scale: float, found: Sequence[tuple[Trial, Cell]]) -> RunFolder:
    """The folder of the experiment's runs, new or begun by the same command; locked until it is closed."""
    whole = experiment.within or experiment.name
    trials = json.loads(json.dumps({c.name: c.spec.to_dict() for _, c in found}))
    path, before = out / whole.replace("/", "-"), {}
    if (path / "experiment.json").is_file():
        folder = RunFolder(path)
        old = folder.read_json("experiment.json")
        before = old.get("trials", {})
        both = before.keys() & trials.keys()
        if old.get("scale") != scale or any(spec.completed(before[name]) != trials[name] for name in both):
            raise RunError(f"{path} was made with another scale or other settings. Choose another --out.")
    elif path.is_dir() and {f.name for f in path.iterdir()} <= {"lock"}:  # it died before it wrote anything
        folder = RunFolder(path)
    else:
        folder = RunFolder.create(str(out), path.name)
    folder.lock()
    folder.write_json("experiment.json", {"experiment": whole, "scale": scale, "trials": before | trials})
    return folder


def execute(
    folder: RunFolder, found: Sequence[tuple[Trial, Cell]], jobs: int, tell: Tell, minutes: float | None
) -> dict[str, str]:
    """Why trials failed, by name. Raises TimeUpError when the minutes are over; the same command then goes on."""
    end = None if minutes is None else time.monotonic() + 60 * minutes

    def heard(news: News) -> None:
        tell(news)
        if end is not None and time.monotonic() > end:
            raise TimeUpError

    quick = [replace(c, spec=replace(c.spec, checkpoint_seconds=min(c.spec.checkpoint_seconds, 5.0))) for _, c in found]
    return compare.execute(folder, quick, jobs, heard)


def outcomes(folder: Path, found: Sequence[tuple[Trial, Cell]]) -> list[Outcome]:
    """Of the trials that are finished."""
    out = []
    for trial, cell in found:
        at = folder / "cells" / cell.name
        if (at / "result.json").is_file():
            lines = (at / "records.jsonl").read_text(encoding="utf-8").splitlines()
            result = json.loads((at / "result.json").read_text(encoding="utf-8"))
            out.append(Outcome(trial, result, [json.loads(line) for line in lines], at))
    return out
