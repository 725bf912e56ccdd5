"""Comparisons: runs that differ only in method, epsilon and seed, one cell per run, in one folder and one ledger.

    OUT/NAME/private/comparison.json   what is compared; the same command resumes, another one is refused
    OUT/NAME/public            tables and figures, made from the cells' public parts alone
    OUT/NAME/ledger.sqlite     charges of all cells on a public benchmark; other data use the user's registry
    OUT/NAME/cells/CELL        one run folder per cell: METHOD-epsE-seedS; a method without privacy runs once per seed

Cells with the same seed share the partition and the initial model, and the data order if their batches are of the same
kind: all of these are drawn from the seed alone. Cells are ordered by seed first, so that an interrupted comparison
has covered every method.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import signal
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from multiprocessing import connection, get_context
from pathlib import Path
from typing import Any

import torch

from sordino.advice import case
from sordino.contract.method import Method
from sordino.core import check, plugin
from sordino.core.errors import RunError, SordinoError, SpecError
from sordino.core.parts import PRIVATE, PUBLIC, locate
from sordino.core.record import RoundRecord
from sordino.ledger import home
from sordino.run_folder.folder import RunFolder
from sordino.runs import build, head, prepare, run
from sordino.runs.prepare import Kept
from sordino.runs.rehearse import rehearse
from sordino.spec import spec
from sordino.spec.spec import Spec

COMPARISON, RESULT = "comparison.json", "result.json"
CHOSEN = ("method", "epsilon", "seed", "name", "out")  # keys set by the comparison itself
SHARED = (  # keys that must be the same for all methods, as another value would make it a different problem
    *CHOSEN, "delta", "budgets", "mode", "dataset", "data_dir", "label_column", "client_column", "user_column",
    "split_column", "schema", "decimal", "time_column", "window", "horizon", "stride", "time_step", "data_name",
    "test", "public_share", "public_data", "partition", "clients",
    "without_private", "server_data", "validation", "tuning", "evaluate_on", "baseline", "ledger",
    "initial_weights", "initial_weights_from",
)  # fmt: skip


KEPT: Kept = {}  # data and features shared by the cells of a process


@dataclass(frozen=True)
class Cell:
    """One run of a comparison."""

    name: str
    method: str
    epsilon: float | None  # requested epsilon; None: the method has no noise
    seed: int
    spec: Spec


@dataclass(frozen=True)
class News:
    """An event in a cell."""

    cell: str
    kind: str  # began, round, done, failed; owner, refused: for the data owner only
    round: int = 0
    rounds: int = 0
    accuracy: float | None = None
    rmse: float | None = None  # for a regression
    reason: str = ""


Tell = Callable[[News], None]


# --- the cells


def cells(
    methods: Sequence[str],
    epsilons: Sequence[float],
    seeds: int,
    common: Mapping[str, Any],
    overrides: Mapping[str, Mapping[str, Any]],
) -> list[Cell]:
    """Return all cells of a comparison, with checked specs.

    Args:
        methods: the names of the methods.
        epsilons: the requested epsilons.
        seeds: the number of seeds.
        common: keys for every method that has them.
        overrides: keys for single methods, by method.
    """
    check.count(seeds=seeds)
    for what, values in (("methods", methods), ("epsilon", epsilons)):
        if not values:
            raise SpecError(f"{what} is empty: name at least one.")
        if twice := [v for v, n in Counter(values).items() if n > 1]:
            raise SpecError(f"{what} names {twice[0]} twice.")
    for epsilon in epsilons:
        check.positive(epsilon=epsilon)
    if common.get("mode") == "secure":
        raise SpecError(
            "a comparison runs every cell with a seed, so that all methods get the same clients and first model; "
            "mode = secure accepts none. Drop mode, or run the methods one by one with `sordino run`."
        )
    keys = {m: _keys(m, common, overrides) for m in methods}
    for key in common:
        if not any(key in keys[m] for m in methods):
            whose = f"; it belongs to {', '.join(owners)}" if (owners := spec.owners(key)) else ""
            raise SpecError(f"none of {', '.join(methods)} has a key {key!r}{whose}.")
    out = []
    for seed in range(seeds):
        for epsilon in epsilons:
            for method in methods:
                budget = takes_epsilon(method)
                if budget or epsilon == epsilons[0]:
                    out.append(_cell(method, epsilon if budget else None, seed, keys[method]))
    return out


def takes_epsilon(method: str) -> bool:
    """Return whether epsilon has an effect on the method: its noise, or a paper's claim, is calibrated to it."""
    method_class: type[Method] = plugin.load("methods", method)
    return method_class.private or method_class.claim is not Method.claim


def _keys(method: str, common: Mapping[str, Any], overrides: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the keys of one method's runs, except epsilon and seed."""
    mine = overrides.get(method, {})
    if fixed := [k for k in mine if k in SHARED]:
        raise SpecError(f"{method}.{fixed[0]}: {fixed[0]} is the same for all methods that are compared.")
    algorithm = mine.get("algorithm") or common.get("algorithm") or plugin.load("methods", method).algorithm
    known = {f.name for f in spec.fields()}
    known |= {f.name for k, n in zip(spec.PLUGINS, (method, algorithm), strict=True) for f in spec.plugin_fields(k, n)}
    method_class: type[Method] = plugin.load("methods", method)
    if not method_class.private and not method_class.own_noise:  # most papers claim one epsilon for all clients
        known -= {"budgets"}
    return {k: v for k, v in common.items() if k in known} | dict(mine)


def _cell(method: str, epsilon: float | None, seed: int, keys: Mapping[str, Any]) -> Cell:
    asked = {} if epsilon is None else {"epsilon": epsilon}
    wanted = spec.from_dict({**keys, **asked, "method": method, "mode": "research", "seed": seed})
    budget = "" if epsilon is None else f"-eps{shown(epsilon)}"
    return Cell(f"{method}{budget}-seed{seed}", method, epsilon, seed, head.absolute(wanted))


def shown(epsilon: float) -> str:
    """Return an epsilon as it appears in file names; different epsilons have different names."""
    return repr(float(epsilon)).removesuffix(".0").replace("+", "")


def sketch(cells: Iterable[Cell]) -> dict[str, case.Case]:
    """Refuse a comparison that cannot run, before its folder is created.

    Each method is checked once, at its largest epsilon, without training. An epsilon that is too small for a method is
    a result, not a mistake: such cells fail individually.

    Returns:
        The case that was examined for each method.
    """
    largest: dict[str, Cell] = {}
    seen: dict[str, case.Case] = {}
    for cell in cells:
        if cell.method not in largest or (cell.epsilon or 0) > (largest[cell.method].epsilon or 0):
            largest[cell.method] = cell
    for cell in largest.values():
        try:
            prepare.device_of(cell.spec.device)
            sketched = seen[cell.method] = case.of_spec(cell.spec)
            problem = sketched.problem
            if sketched.job is not None:
                rehearse(sketched.job)
        except SordinoError as error:
            problem = error
        if problem is not None:
            named = str(problem).startswith(f"{cell.method}:")
            raise type(problem)(str(problem) if named else f"{cell.method}: {problem}")
    return seen


# --- the folder


def canonical(cells: Sequence[Cell]) -> dict[str, Any]:
    """Return what identifies a comparison: the settings of every method, the cells and the digests of input files."""
    methods = {c.method: {k: v for k, v in c.spec.to_dict().items() if k not in CHOSEN} for c in cells}
    listed = [{"name": c.name, "method": c.method, "epsilon": c.epsilon, "seed": c.seed} for c in cells]
    named = {(c.spec.dataset, c.spec.test, c.spec.schema, c.spec.budgets, c.spec.private_data) for c in cells}
    texts = sorted({text.removeprefix("file:") for each in named for text in each if text})
    files = [Path(text) for text in texts if os.path.isfile(text)]  # noqa: PTH113 (any text, also one too long for a name)
    return {"methods": methods, "cells": listed, "files": {str(p): _digest(p) for p in files}}


def _digest(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise RunError(f"cannot read {path}: {error.strerror}.") from error


def open_folder(out: str, name: str | None, cells: Sequence[Cell]) -> RunFolder:
    """Open a new folder, or the one in which the same comparison was begun; it is locked until closed."""
    wanted = canonical(cells)
    if name is not None and not spec.NAME.match(name):
        raise SpecError(f"name must be 1 to 64 letters, digits, '.', '_' or '-', not {name!r}.")
    path = Path(out) / name if name is not None else None
    if path is None or not path.exists():
        folder = RunFolder.create(out, name)
    elif locate(path, PRIVATE, COMPARISON).is_file():
        folder = RunFolder(path)
        if difference := _difference(folder.read_json(COMPARISON), wanted):
            raise RunError(f"{path} holds another comparison ({difference}). Choose another name.")
    elif path.is_dir() and _empty(path):  # an earlier start died immediately
        folder = RunFolder(path)
    else:
        raise RunError(f"{path} exists, but holds no comparison. Choose another name.")
    folder.lock()
    folder.write_json(COMPARISON, wanted)
    return folder


def _empty(path: Path) -> bool:
    """Return whether a folder contains only what it is created with."""
    inside = {p.relative_to(path).as_posix() for p in path.rglob("*")}
    return inside <= {PUBLIC, PRIVATE, f"{PRIVATE}/lock", f"{PRIVATE}/{COMPARISON}.tmp"}


def _difference(old: Any, new: dict[str, Any]) -> str:
    """Return the first difference between two comparisons; empty if there is none."""
    if old == new:
        return ""
    try:
        before = {method: spec.completed(keys | {"method": method}) for method, keys in old["methods"].items()}
        before = {method: {k: v for k, v in keys.items() if k not in CHOSEN} for method, keys in before.items()}
        after = new["methods"]
        if before.keys() != after.keys():
            return f"methods {', '.join(before)}"
        for method, keys in after.items():
            for key in sorted({*keys, *before[method]}):
                if before[method].get(key) != keys.get(key):
                    return f"{method} with {key} = {before[method].get(key)}, not {keys.get(key)}"
        for path, digest in new["files"].items():
            if old.get("files", {}).get(path, digest) != digest:
                return f"{path} has changed since"
        return "" if old["cells"] == new["cells"] else "other epsilons or seeds"
    except (KeyError, TypeError, AttributeError):
        return f"its {COMPARISON} is damaged"


# --- running


def execute(folder: RunFolder, cells: Sequence[Cell], jobs: int, tell: Tell) -> dict[str, str]:
    """Run the cells that are not finished yet, and return the reasons of those that failed, by name.

    With one job, cells run in this process; with several, in separate processes."""
    failures: dict[str, str] = {}

    def heard(news: News) -> None:
        if news.kind in ("owner", "refused"):  # not for the tables
            if news.kind == "refused" or news.cell == left[0].name:  # later cells would report the earlier ones
                folder.tell_owner(news.reason)
                run.to_owner(news.reason)
            return
        if news.kind == "failed":
            failures[news.cell] = news.reason
        tell(news)

    left: list[Cell] = []
    for cell in cells:
        place = folder.path / "cells"
        at = place / cell.name
        if locate(at, PUBLIC, RESULT).is_file():
            heard(_finished(at))
        else:
            ledger = cell.spec.ledger or (str(folder.path / "ledger.sqlite") if _shipped(cell.spec) else None)
            left.append(replace(cell, spec=replace(cell.spec, out=str(place), name=cell.name, ledger=ledger)))
    if jobs == 1 or len(left) < 2:
        for cell in left:
            _run(cell, heard)
    else:
        _in_processes(left, jobs, heard)
    return failures


def _shipped(wanted: Spec) -> bool:
    """Return whether the data are a public benchmark; runs on other data are charged to the user's registry."""
    return wanted.dataset in plugin.available("data.sets")


def _finished(at: Path) -> News:
    try:
        result = RunFolder(at).read_json(RESULT, PUBLIC)
        return News(at.name, "done", accuracy=result["accuracy"], rmse=(result.get("metrics") or {}).get("rmse"))
    except (RunError, KeyError, TypeError) as error:
        return News(at.name, "failed", reason=f"{at / RESULT} cannot be read: {error}")


def _run(cell: Cell, tell: Tell) -> None:
    """Run or resume one cell until it is finished or fails."""
    at = Path(cell.spec.out) / str(cell.spec.name)
    begun = locate(at, PRIVATE, "job.json").is_file() or RunFolder(at).flat  # flat: by an earlier version
    if at.is_dir() and not begun:  # it died before anything was charged
        shutil.rmtree(at)
    tell(News(cell.name, "began", rounds=cell.spec.rounds))

    def watch(record: RoundRecord) -> None:
        tell(News(cell.name, "round", record.round, cell.spec.rounds, record.accuracy))

    try:
        resumed = at.is_dir()
        job = run.resume_spec(at) if resumed else build.from_spec(cell.spec, KEPT)
        result = run.execute(
            job,
            own_model=False,
            at=at if resumed else None,
            watch=watch,
            owner=lambda text: tell(News(cell.name, "owner", reason=text)),
        )
    except (SordinoError, torch.OutOfMemoryError) as error:
        reason = (str(error) or "no reason").splitlines()[0]
        if (public := getattr(error, "public", None)) is not None:
            tell(News(cell.name, "refused", reason=f"{cell.name}: {reason}"))
            reason = public
        tell(News(cell.name, "failed", reason=f"{type(error).__name__}: {reason}"))
    else:
        tell(News(cell.name, "done", accuracy=result.accuracy, rmse=result.metrics.get("rmse")))


class Worker:
    """A process that runs cells one after another."""

    def __init__(self, threads: int) -> None:
        context = get_context("forkserver")  # imports torch once for all workers, without initialising CUDA
        context.set_forkserver_preload([__name__])
        self.pipe, theirs = context.Pipe()
        place = str(home.folder())  # the fork server may have started before this was set
        self.process = context.Process(target=_serve, args=(theirs, threads, place), daemon=True)
        self.process.start()
        theirs.close()  # so that the pipe ends when the process does
        self.cell: Cell | None = None

    def give(self, cell: Cell | None) -> None:
        """Send a cell to the process; None ends it."""
        self.cell = cell
        with contextlib.suppress(ConnectionError):  # the process died; the next `hear` reports it
            self.pipe.send(cell)

    def hear(self) -> News:
        """Wait for the next event of the process; if it has died, report its cell as failed."""
        try:
            news: News = self.pipe.recv()
            return news
        except (EOFError, ConnectionError):
            self.process.join()
            name = self.cell.name if self.cell is not None else ""
            return News(name, "failed", reason=f"its process ended with code {self.process.exitcode}")

    @property
    def alive(self) -> bool:
        """Whether the process is running."""
        return self.process.exitcode is None


def _in_processes(waiting: Sequence[Cell], jobs: int, tell: Tell) -> None:
    """Run cells in several processes; if a process dies, only its cell fails, and the process is replaced."""
    queue, threads = list(reversed(waiting)), max(1, (os.cpu_count() or 1) // jobs)
    workers: list[Worker] = []
    leaving: list[Worker] = []
    try:
        while queue or workers:
            while queue and len(workers) < jobs:
                workers.append(Worker(threads))
                workers[-1].give(queue.pop())
            ready = connection.wait([w.pipe for w in workers])
            for worker in [w for w in workers if w.pipe in ready]:
                news = worker.hear()
                if news.kind in ("done", "failed"):
                    if not worker.alive:
                        workers.remove(worker)
                    elif queue:
                        worker.give(queue.pop())
                    else:
                        worker.give(None)
                        workers.remove(worker)
                        leaving.append(worker)
                tell(news)
        for worker in leaving:
            worker.process.join()
    finally:
        for worker in workers:
            worker.process.terminate()
            worker.process.join()


def _serve(pipe: connection.Connection, threads: int, place: str) -> None:
    """Run the cells received from the pipe and send back their events, until None is received."""
    os.environ["SORDINO_HOME"] = place
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent process decides when to stop
    torch.set_num_threads(threads)
    try:
        while (cell := pipe.recv()) is not None:
            _run(cell, pipe.send)
    except (EOFError, ConnectionError):
        return  # the parent is gone; runs can be resumed from disk
