"""The trials of a search: one training run each, in the private part of the folder of the search.

Nothing of a trial is public, not even that it took place. Its rounds are booked in a file of the folder
(private/rounds.sqlite), so that an interrupted trial goes on without making a release twice; the whole search was
charged to the user's ledger before the first trial.
"""

from __future__ import annotations

import math
import os
import shutil
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from sordino.core.errors import RunError
from sordino.core.parts import PRIVATE, PUBLIC, locate
from sordino.ledger import home
from sordino.run_folder.folder import RunFolder
from sordino.runs import run
from sordino.runs.job import Job
from sordino.tuning.total import Search, cheaper

ROUNDS, RESULT = "rounds.sqlite", "result.json"


@dataclass(frozen=True)
class TuningTrial:
    """One trial, as it was drawn."""

    number: int
    settings: dict[str, Any]
    seed: int | None  # of its noise, in research mode


@dataclass(frozen=True)
class Scored:
    """A finished trial with its score; higher is better."""

    trial: TuningTrial
    score: float


def path_of(folder: Path, trial: TuningTrial) -> Path:
    """Return the run folder of a trial."""
    return folder / PRIVATE / "trials" / f"{trial.number:04d}"


def run_all(
    folder: Path,
    search: Search,
    budget: float,
    trials: Sequence[TuningTrial],
    processes: int,
    tell: Callable[[Scored], None],
) -> list[Scored]:
    """Run the trials that are not finished yet, and return all of them with their scores."""
    scored = []
    for result in _results(folder, search, budget, trials, processes):
        tell(result)
        scored.append(result)
    return sorted(scored, key=lambda s: s.trial.number)


def _results(
    folder: Path, search: Search, budget: float, trials: Sequence[TuningTrial], processes: int
) -> Iterator[Scored]:
    if processes == 1:
        for trial in trials:
            yield run_trial(folder, search, budget, trial)
        return
    context = get_context("forkserver")  # imports torch once for all processes, without initialising CUDA
    context.set_forkserver_preload([__name__])
    threads, place = max(1, (os.cpu_count() or 1) // processes), str(home.folder())
    with ProcessPoolExecutor(processes, context, _begin, (threads, place)) as pool:
        waiting = [pool.submit(run_trial, folder, search, budget, trial) for trial in trials]
        try:
            for done in as_completed(waiting):
                yield done.result()
        except BrokenProcessPool as error:
            raise RunError("a process that ran a trial has died. The same command goes on.") from error
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _begin(threads: int, place: str) -> None:
    os.environ["SORDINO_HOME"] = place  # the fork server may have started before this was set
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent process decides when to stop
    torch.set_num_threads(threads)


def run_trial(folder: Path, search: Search, budget: float, trial: TuningTrial) -> Scored:
    """Run or resume one trial, and return its score."""
    at = path_of(folder, trial)
    if not locate(at, PUBLIC, RESULT).is_file():
        job = search.trial(budget, trial.settings, trial.seed)
        if not cheaper(job, search.trial(budget, {})):
            raise RunError(f"the settings {trial.settings} change what a trial costs. Search other keys.")
        train(folder, job, at)
    return Scored(trial, score_of(RunFolder(at).read_json(RESULT, PUBLIC)))


def train(folder: Path, job: Job, at: Path) -> None:
    """Train a job of the search in the private part; a run that was begun there goes on."""
    if at.is_dir() and not locate(at, PRIVATE, "job.json").is_file():  # it died before its first round
        shutil.rmtree(at)
    wanted = replace(job.spec, out=str(at.parent), name=at.name, ledger=str(folder / PRIVATE / ROUNDS))
    run.execute(replace(job, spec=wanted), own_model=False, at=at if at.is_dir() else None, owner=lambda text: None)


def score_of(result: dict[str, Any]) -> float:
    """Return the score of a finished run: its accuracy, or minus its error; minus infinity where there is none."""
    metrics = result.get("metrics") or {}
    error = next((metrics[name] for name in ("rmse", "mae") if metrics.get(name) is not None), None)
    accuracy = result.get("accuracy")
    score = accuracy if accuracy is not None else -math.inf if error is None else -error
    return float(score) if math.isfinite(score) else -math.inf


def best(scored: Sequence[Scored]) -> Scored | None:
    """Return the trial with the best score, the first of equal ones; None if no trial was drawn."""
    return max(scored, key=lambda s: s.score, default=None)
