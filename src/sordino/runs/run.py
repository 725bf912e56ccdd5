"""Start, resume and finish a run; `train` does all of it for callers from Python."""

from __future__ import annotations

import math
import os
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from sordino.contract import pricing
from sordino.core import faults
from sordino.core.errors import BudgetError, RunError, SpecError
from sordino.core.parts import PUBLIC, locate
from sordino.core.record import OwnerRecord, RoundRecord
from sordino.core.rng import Stream
from sordino.core.types import SampleLoss, State
from sordino.data import canonical
from sordino.data.clients import ArrayClients, adopt
from sordino.federations.base import Work
from sordino.federations.workers import Workers
from sordino.ledger.account import Account
from sordino.ledger.transfer import old_ledger
from sordino.privacy.guarantee import Guarantee
from sordino.run_folder import boundary
from sordino.run_folder.folder import CHECKPOINT, RunFolder, pack_model
from sordino.run_folder.saved import Saved
from sordino.run_folder.views import Observe
from sordino.runs import build, callbacks, early, loop, returned, statistics
from sordino.runs.describe import describe
from sordino.runs.dry_evaluation import try_evaluation
from sordino.runs.fingerprint import fingerprints, of_job
from sordino.runs.identity import Whose
from sordino.runs.job import Job
from sordino.runs.paying import account, afford, ledger_path, opened, whose_data
from sordino.runs.prepare import dataset_path, with_tags, with_users
from sordino.runs.rehearse import rehearse
from sordino.spec import spec, toml

Watch = Callable[[RoundRecord], None]  # called after every round with its public record
Tell = Callable[[str], None]  # called with what the owner of the data must know, and nobody else
STATISTICS_KEY = "statistics.key"
Checkpoint = tuple[Saved, int, str | None]  # a state, the number of rounds completed, a warning


@dataclass(frozen=True)
class OwnersPart:
    """What only the owner of the data may know of a run: it tells who was drawn. Do not publish it."""

    history: list[OwnerRecord]  # one a round: clients, bytes, seconds, what the method decided
    guarantees: dict[str, Guarantee]  # by viewer, from the draws that happened
    notes: tuple[str, ...] = ()  # what the owner was told, such as overlap with other data


@dataclass(frozen=True)
class Result:
    """What a run leaves. All fields but `private` may be handed to anyone whom the guarantee names."""

    model: nn.Module
    guarantee: Guarantee
    guarantees: dict[str, Guarantee]  # by viewer, as planned: they do not depend on who was drawn
    history: list[RoundRecord]
    folder: Path
    notes: tuple[str, ...] = ()

    metrics: dict[str, float] = field(
        default_factory=dict
    )  # of the last round; personal models' where clients have them
    private: OwnersPart = field(default_factory=lambda: OwnersPart([], {}), repr=False)
    together: str | None = None  # what all runs under the name of these data promise, up to this one

    @property
    def accuracy(self) -> float | None:
        return self.history[-1].accuracy if self.history else None


def train(
    model: nn.Module | Callable[[], nn.Module],
    clients: Any,
    *,
    loss: str | SampleLoss | None = None,
    test: tuple[Any, Any] | None = None,
    test_clients: Any = None,
    users: Any = None,
    private_data: Any = None,
    resume: str | Path | None = None,
    watch: Watch | None = None,
    observe: Observe | None = None,
    owner: Tell | None = None,
    **keys: Any,
) -> Result:
    """Train one model over many clients' data with a total (epsilon, delta).

    model    an nn.Module, or a function that makes one
    clients  a list of (x, y) pairs, one a client: tensors, numpy arrays, pandas objects; or map-style Datasets
    loss     "cross_entropy", "squared_error" or a function (predictions, targets) -> one loss a record
    test     an (x, y) pair to evaluate on after every round. Its records are taken as public: what is shown of them is
             exact and not charged, and the guarantee says so. Without it nothing is held out unasked; validation = 0.1
             holds out a tenth of each client's records (of the users) for one noisy, charged figure at the end
    test_clients  for each test record the number of its client, to see how unequal clients fare
    users    for unit = "user": one array a client, with the number of each record's user
    private_data  one array a client: the group of private attributes each record belongs to, 0 for none (fedsdp)
    resume   the folder of an interrupted run of the same model and clients
    watch    called after every round with its public record
    observe  called with every View of the run: what the server saw in a phase, what the public saw after a round. Views
             of the server are the owner's alone; an attack is an observer. record_views = True stores them
    owner    called with what only the owner of the data may know (default: standard error, if it is a terminal)
    **keys   any key of a run file: method, epsilon, delta, rounds, client_rate, batch_rate, clip, ... A method or an
             algorithm may also be an object, such as sordino.methods.DpSgd(clip=0.5)
    """
    callbacks.check(watch=watch, observe=observe, owner=owner)
    callbacks.check_loss(loss)
    if resume is not None:
        if not isinstance(resume, str | Path):
            raise RunError(f"resume must be the path of a run folder, not {resume!r}.")
        if keys:
            raise RunError("a resumed run keeps its keys: pass resume alone, without " + ", ".join(keys) + ".")
        keys = _stored(Path(resume))
    if named := [k for k in keys if k in spec.NAMED]:
        raise SpecError(f"{named[0]} belongs to `sordino run`; sordino.train takes its model and clients as arguments.")
    wanted = spec.from_dict(spec.by_name(keys))
    early.check_method(wanted)
    if resume is None:
        early.check_folders(wanted)
    brought = adopt(clients)
    if private_data is not None:
        brought = with_tags(brought, private_data)
    if users is not None:
        if wanted.unit != "user":
            raise SpecError("users need unit = user.")
        held, new_ids = with_users(brought, users, wanted)
        if test_clients is not None:  # clients without any record left were removed
            test_clients = [new_ids.get(int(i), -1) for i in np.asarray(test_clients).reshape(-1)]
        job = build.build(wanted, model, held, loss, test, test_clients, (), brought)
    else:
        job = build.build(wanted, model, brought, loss, test, test_clients)
    if isinstance(brought, ArrayClients):
        names = list(clients) if isinstance(clients, Mapping) else np.arange(brought.count)
        who = None if users is None else np.concatenate([np.asarray(u) for u in users])
        job = replace(job, owner=replace(job.owner, raw=canonical.of_arrays(brought.x, users=who, clients=names)))
    return execute(
        job, own_model=True, at=None if resume is None else Path(resume), watch=watch, owner=owner, observe=observe
    )


def resume_spec(path: Path) -> Job:
    """Return the job of a stored run; `execute(job, ..., at=path)` continues it where it stopped."""
    if _job_file(path).get("own"):
        raise RunError(f"{path} was started from Python with its own model; use sordino.train(..., resume='{path}').")
    return build.from_spec(stored_spec(path))


def stored_spec(path: Path) -> spec.Spec:
    """Return the spec that is stored in a run folder."""
    return spec.from_dict(_stored(path))


def without_privacy(job: Job) -> Job:
    """Return the job with the same clients, features, model and rounds, but without clipping and noise."""
    name = f"{job.spec.name[:48]}-without-privacy" if job.spec.name else None
    option_names = {f.name for f in spec.plugin_fields("algorithms", job.spec.algorithm)}
    wanted = replace(
        job.spec,
        method="none",
        options=tuple((k, v) for k, v in job.spec.options if k in option_names),
        viewer=None,
        baseline=False,
        name=name,
        budgets=None,
    )
    plan = replace(job.plan, noise_multiplier=None)
    if job.spec.standardise:
        job = build.again(replace(job, model=replace(job.model, module=statistics.reset(job.model.module))))
    plain = replace(job, spec=wanted, method=wanted.method_object(), plan=plan, viewer="server", once=(), apart=())
    return replace(plain, budgets=None, caps=None)


def execute(
    job: Job,
    own_model: bool,
    at: Path | None = None,
    watch: Watch | None = None,
    began: Callable[[Path], None] | None = None,
    owner: Tell | None = None,
    observe: Observe | None = None,
) -> Result:
    """Run a job to its end and return its result.

    Args:
        job: the job.
        own_model: whether the caller passed their own model and clients; the keys that would name them are not stored.
        at: the folder of an interrupted run, which is continued; None: a new folder.
        watch: called after every round with its public record.
        began: called with the path of the folder before the first round.
        owner: called with what only the owner of the data may know, such as overlap with other data; by default it is
            printed to standard error, if that is a terminal. It is also written to private/notes.txt.
        observe: called with every View of the server and the public.
    """
    ordered, exact = fingerprints(job.owner.brought)
    whose = whose_data(job, exact, at)
    if at is None:
        afford(job, whose)
        if isinstance(job.federation, Workers):
            job.federation.check()
        rehearse(job)
        try_evaluation(job)
    folder = RunFolder(at) if at is not None else RunFolder.create(job.spec.out, job.spec.name)
    _refuse_flat(folder)
    folder.lock()
    book, ledger = None, None
    try:
        if at is None:
            _write_head(folder, job, own_model, ordered, whose)
        else:
            _check_same(folder, job, ordered)
        faults.point("planning")
        book = opened(folder)
        ledger = account(book, folder, job, whose)
        for text in (*ledger.owner_notes, *old_ledger(Path(job.spec.out) / "ledger.sqlite", book)):
            folder.tell_owner(text)
            (owner or to_owner)(text)
        faults.point("planned")
        if began is not None:
            began(folder.path)
        checkpoint = folder.load_state() if at is not None else None
        _check_resumable(job, folder, ledger, at, checkpoint)
        if job.spec.standardise:  # paid for with the plan
            drawn = replace(job, rng=_statistics_stream(job, folder))
            statistics.release(drawn, None if checkpoint is None else checkpoint[0])
            job = build.again(job)
        state, done, warning = _begun(job, folder, ledger, checkpoint)
        notes = (*job.notes, warning) if warning else job.notes
        loop.complete(job, folder, ledger, state, done)
        for record in loop.run(job, folder, ledger, state, done, [] if observe is None else [observe]):
            if watch is not None:
                with loop.noting(folder):
                    watch(record)
        return _finish(job, folder, ledger, notes, book.together(ledger.job))
    except (BudgetError, RunError) as error:
        unpaid = ledger is None if isinstance(error, BudgetError) else book is None
        if at is None and unpaid:  # nothing was charged, so the new folder is removed
            shutil.rmtree(folder.path, ignore_errors=True)
        raise
    finally:
        job.federation.close()
        if book is not None:
            book.close()
        folder.close()


def _check_resumable(
    job: Job, folder: RunFolder, ledger: Account, at: Path | None, checkpoint: Checkpoint | None
) -> None:
    """Raise RunError if the ledger, the checkpoints or the secret noise of earlier rounds were lost."""
    if checkpoint is not None and ledger.charged < checkpoint[1]:
        raise RunError(
            f"{folder.path}: the ledger has {ledger.charged} charges for {checkpoint[1]} rounds; it was lost."
        )
    if at is not None and checkpoint is None and ledger.charged:
        raise RunError(
            f"{folder.path}: both checkpoints are gone, after {ledger.charged} rounds were charged. Put "
            f"{folder.private / CHECKPOINT} back, or start a new run."
        )
    if ledger.charged and pricing.correlated(job.method, job.plan) and job.spec.mode == "secure":
        raise RunError(
            f"{folder.path}: the secret noise of its rounds was lost with the process that drew it, so "
            f"{job.spec.method} cannot continue in secure mode. Start a new run."
        )


def _begun(
    job: Job, folder: RunFolder, ledger: Account, checkpoint: Checkpoint | None
) -> tuple[State, int, str | None]:
    """Open the federation; return the state to continue from, the number of rounds completed, and a warning or None."""
    state = loop.begin(job)
    faults.point("beginning")
    if checkpoint is None:
        folder.save_state(state, 0)  # a resumed run continues from these statistics and weights, not from new ones
    folder.remove(STATISTICS_KEY)
    job.federation.open(Work(returned.checked(job), job.model, job.plan))
    if loop.remembers(job, state):
        # a round that was charged but not saved may have been seen, and late answers in its sum with it
        lost = checkpoint is not None and job.spec.mode == "secure" and ledger.charged > checkpoint[1]
        job.federation.resume(folder.private / "clients.sqlite", 0 if checkpoint is None else checkpoint[1], seen=lost)
    if checkpoint is None:
        return state, 0, None
    saved, done, warning = checkpoint
    return saved.restored(state, job.device), done, warning


def _statistics_stream(job: Job, folder: RunFolder) -> Stream:
    """Return the stream below which the noise of private statistics is drawn.

    In secure mode its key is on disk until the statistics are: a run that dies in between draws the same ones again,
    which is the same release, so that nothing is charged anew."""
    if job.spec.mode == "research":
        return job.rng
    path = folder.private / STATISTICS_KEY
    if not path.is_file():
        folder.write(STATISTICS_KEY, os.urandom(32))
    return Stream(path.read_bytes(), secure=True)


def to_owner(text: str) -> None:
    """Print a message for the owner of the data to standard error, but only to a terminal: a file may be passed on."""
    if sys.stderr.isatty():
        print(f"sordino: {text}", file=sys.stderr, flush=True)


def _finish(job: Job, folder: RunFolder, ledger: Account, notes: tuple[str, ...], together: str | None) -> Result:
    history, checkpoint = folder.records(), folder.load_state()
    state = loop.begin(job) if checkpoint is None else checkpoint[0].restored(loop.begin(job), job.device)
    if not bool(torch.isfinite(state.model).all()):
        notes += ("the model's weights are not finite: training has diverged. Lower learning_rate",)
    module = loop.trained(job, state.model.to(job.device))
    guarantees = {v: job.guarantee(v, ledger.charged, job.planned(ledger.charged)) for v in job.viewers}
    drawn = {v: job.guarantee(v, ledger.charged, ledger.most) for v in job.viewers}
    faults.point("finishing")
    folder.publish("model.safetensors", pack_model(module))
    last = (history[-1].metrics if history else None) or {}
    figures = last | loop.evaluate_own(job, state)
    owners = OwnersPart(folder.owner_records(), drawn, folder.owner_notes())
    outcome = (guarantees[job.viewer], guarantees, history, folder.path, notes, figures, owners, together)
    result = Result(module.cpu(), *outcome)
    folder.note_ledger(ledger.head())
    folder.write_json("result.json", {"guarantees": {v: g.to_json() for v, g in drawn.items()}})
    folder.publish_json("result.json", summary(job, result))
    return result


def summary(job: Job, result: Result) -> dict[str, Any]:
    """Return what a finished run may tell anyone whom its guarantee names."""
    return {
        "guarantee": result.guarantee.to_json(),
        "guarantees": {v: g.to_json() for v, g in result.guarantees.items()},
        "claim": None if (claim := job.method.claim(job.plan)) is None else claim.to_json(),
        "rounds": len(result.history),
        "accuracy": result.accuracy,
        "metrics": {k: v if math.isfinite(v) else None for k, v in result.metrics.items()},
        "notes": list(result.notes),
        "together": result.together,
    }


# --- the head of a run folder


def _write_head(folder: RunFolder, job: Job, own_model: bool, ordered: str, whose: Whose) -> None:
    named = job.spec.ledger
    path = None if named is None else os.path.relpath(ledger_path(job), folder.path.absolute())
    fresh = {"path": path, "job": os.urandom(8).hex(), "data": whose.public_name, "entries": 0, "head": ""}
    folder.write_json("ledger.json", fresh)
    full_spec = {k: v for k, v in absolute(job.spec).to_dict().items() if not (own_model and k in spec.NAMED)}
    shown = boundary.public_spec(job.spec, job.public_data, own_model)
    boundary.check_fields("spec.toml", shown, boundary.options_of(job.spec))
    folder.publish("spec.toml", _toml(shown))
    folder.publish_json("plan.json", describe(job))
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
    )


def _absolute_path(text: str | None, prefix: str = "") -> str | None:
    """Return the absolute path of a file, after its prefix; text that names no file here is returned unchanged."""
    name = None if text is None else text.removeprefix(prefix)
    if text is None or name is None or not text.startswith(prefix) or not os.path.isfile(name):  # noqa: PTH113
        return text
    return prefix + str(Path(name).absolute())


def _job_file(path: Path) -> dict[str, Any]:
    if not path.is_dir():
        raise RunError(f"there is no run folder {path}.")
    folder = RunFolder(path)
    _refuse_flat(folder)
    data = folder.read_json("job.json")
    if not isinstance(data, dict):
        raise RunError(f"{folder.private / 'job.json'} is damaged.")
    return data


def _refuse_flat(folder: RunFolder) -> None:
    if folder.flat:
        raise RunError(
            f"{folder.path} was made by an earlier version of Sordino, or is a public part alone: it can be read "
            "(`sordino explain`), but not continued. Start a new run."
        )


def _stored(path: Path) -> dict[str, Any]:
    if not path.is_dir():
        raise RunError(f"there is no run folder {path}.")
    private = RunFolder(path).private / "spec.toml"
    return spec.read(private if private.is_file() else locate(path, PUBLIC, "spec.toml"))


def _check_same(folder: RunFolder, job: Job, ordered: str) -> None:
    if _job_file(folder.path).get("fingerprint") != of_job(job, ordered):
        raise RunError(
            f"{folder.path} was started with another model, other data, another spec or an earlier version of Sordino; "
            "a resumed run must be the same."
        )
