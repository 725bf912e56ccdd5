"""Start, resume and finish a run; `train` does all of it for callers from Python."""

from __future__ import annotations

import math
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from sordino.contract import pricing
from sordino.contract.claim import Claim
from sordino.core import faults
from sordino.core.errors import BudgetError, RunError, SpecError
from sordino.core.html import PublicNames
from sordino.core.record import OwnerRecord, RoundRecord
from sordino.core.rng import Stream
from sordino.core.saved import Saved
from sordino.core.types import SampleLoss, State
from sordino.data import canonical
from sordino.data.clients import ArrayClients
from sordino.data.objects import bring
from sordino.data.records import format_of
from sordino.federations.base import Work
from sordino.federations.workers import Workers
from sordino.ledger.account import Account
from sordino.ledger.ledger import Ledger
from sordino.ledger.transfer import old_ledger
from sordino.privacy.guarantee import Guarantee
from sordino.run_folder.folder import CHECKPOINT, RunFolder, pack_model
from sordino.run_folder.seal import plugin_hashes, write_seal
from sordino.run_folder.views import Observe
from sordino.runs import build, callbacks, early, head, left_out, loop, own_code, returned, statistics, verdict
from sordino.runs.accounting_facts import ACCOUNTING, accounting_facts
from sordino.runs.callbacks import Watch
from sordino.runs.dry_evaluation import try_evaluation
from sordino.runs.fingerprint import fingerprints
from sordino.runs.html import of_run
from sordino.runs.job import Job
from sordino.runs.live import progress_bar, watching
from sordino.runs.participation import PARTICIPATION, participation
from sordino.runs.paying import account, afford, opened, whose_data
from sordino.runs.predicts import Predicts
from sordino.runs.prepare import columns_of, with_tags, with_users
from sordino.runs.rehearse import rehearse
from sordino.spec import spec
from sordino.tasks.outputs import unwrapped

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
class Result(Predicts, PublicNames):
    """What a run leaves. All fields but `private` may be handed to anyone whom the guarantee names.

    It has `predict`, `predict_proba`, `predict_table` and `evaluate` for further records (docs/using.md); `report`
    writes its report."""

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
    claim: Claim | None = None  # what a paper claims for the method, if that does not hold

    @property
    def accuracy(self) -> float | None:
        return self.history[-1].accuracy if self.history else None

    @property
    def confusion(self) -> list[list[float]] | None:
        """The number of evaluated records by class (rows) and predicted class, after the last round."""
        return self.history[-1].confusion if self.history else None

    def _repr_html_(self) -> str:
        """Return the public part of the result for a notebook."""
        return of_run(self, self.notes, self.together)


def train(
    model: nn.Module | Callable[[], nn.Module],
    clients: Any,
    *,
    loss: str | SampleLoss | None = None,
    task: str | None = None,
    metric: str | Callable[[Any, Any], Any] | None = None,
    optimizer: str | Callable[[Any], Any] | None = None,
    test: Any = None,
    test_clients: Any = None,
    users: Any = None,
    private_data: Any = None,
    resume: str | Path | None = None,
    watch: Watch | Sequence[Watch] | None = None,
    observe: Observe | None = None,
    owner: Tell | None = None,
    finish: bool = False,
    progress: bool | None = None,
    **keys: Any,
) -> Result:
    """Train one model over many clients' data with a total (epsilon, delta).

    model    an nn.Module, or a function that makes one
    clients  a list with one (x, y) pair a client (tensors, numpy arrays, pandas objects, scipy.sparse matrices), or
             one map-style Dataset or DataLoader a client; or a table (pandas or polars DataFrame, Hugging Face Dataset,
             list of dict records) with label_column and, for several clients, client_column, or a list of tables
    loss     "cross_entropy", "squared_error" or a function (predictions, targets) -> one loss a record
    task     "multi-label" for targets [records, labels] of 0 and 1; other tasks are told by their targets
    metric   on public test records: a function (predictions, targets) -> a number, or one a record, shown beside the
             usual metrics. On private held-out records: one a record, in [0, 1], noisy and charged; or the name of a
             metric, such as "confusion"
    optimizer  "sgd", "momentum", "adam" or "rmsprop"; or your own class, where clients step along noisy gradients: made
             with their public settings in every round, it maps gradients [clients, dim] to steps (docs/models.md)
    test     an (x, y) pair, Dataset or table to evaluate on after every round. Its records are taken as public: what is
             shown of them is exact and not charged, and the guarantee says so. Without it nothing is held out unasked;
             validation = 0.1 holds out a tenth of each client's records (of the users) for one noisy, charged figure
             at the end
    test_clients  for each test record the number of its client, to see how unequal clients fare
    users    for unit = "user": one array a client, with the number of each record's user
    private_data  one array a client: the group of private attributes each record belongs to, 0 for none (fedsdp)
    resume   the folder of an interrupted run of the same model and clients
    watch    called after every round with its public record; or a list of such functions (docs/callbacks.md)
    observe  called with every View of the run: what the server saw in a phase, what the public saw after a round. Views
             of the server are the owner's alone; an attack is an observer. record_views = True stores them
    owner    called with what only the owner of the data may know (default: standard error, if it is a terminal)
    finish   with resume: make no further round, keep the model of the last checkpoint; what was planned stays charged
    progress show a live bar: by default in notebooks only; True: on standard error elsewhere; False: never
    **keys   any key of a run file: method, epsilon, delta, rounds, client_rate, batch_rate, clip, ... A method or an
             algorithm may also be an object, such as sordino.methods.DpSgd(clip=0.5)
    """
    heard: Watch | None = callbacks.combined(watch)
    callbacks.check(watch=heard, observe=observe, owner=owner)
    callbacks.check_loss(loss)
    if finish:
        may_finish(resume)
    own, named_keys = own_code.of(task, metric, optimizer)
    keys |= named_keys if resume is None else {k: v for k, v in named_keys.items() if v != "own"}
    if resume is not None:
        if not isinstance(resume, str | Path):
            raise RunError(f"resume must be the path of a run folder, not {resume!r}.")
        if keys:
            raise RunError("a resumed run keeps its keys: pass resume alone, without " + ", ".join(keys) + ".")
        keys = head.stored_keys(Path(resume))
    if named := [k for k in keys if k in spec.NAMED]:
        raise SpecError(f"{named[0]} belongs to `sordino run`; sordino.train takes its model and clients as arguments.")
    wanted = spec.from_dict(spec.by_name(keys))
    early.check_method(wanted)
    if resume is None:
        early.check_folders(wanted)
    data = bring(clients, columns_of(wanted), test)
    if users is not None and data.raw is not None:
        raise SpecError("users are for (x, y) pairs: for a table, name its user_column.")
    brought, test, users = data.clients, data.test, users if users is not None or wanted.unit != "user" else data.users
    if private_data is not None:
        brought = with_tags(brought, private_data)
    if users is not None:
        if wanted.unit != "user":
            raise SpecError("users need unit = user.")
        held, new_ids = with_users(brought, users, wanted)
        if test_clients is not None:  # clients without any record left were removed
            test_clients = [new_ids.get(int(i), -1) for i in np.asarray(test_clients).reshape(-1)]
        job = build.build(wanted, model, held, loss, test, test_clients, data.notes, brought, data.public, own=own)
    else:
        job = build.build(wanted, model, brought, loss, test, test_clients, data.notes, None, data.public, own=own)
    if isinstance(brought, ArrayClients):
        if users is not None:
            gone = left_out.by_users(wanted, brought.all_sizes().tolist(), held.all_sizes().tolist())
            job = replace(job, owner=replace(job.owner, notes=gone))
        names = list(data.names) or np.arange(brought.count)
        who = None if users is None else np.concatenate([np.asarray(u) for u in users])
        raw = data.raw or canonical.of_arrays(brought.x, users=who, clients=names)
        job = replace(job, owner=replace(job.owner, raw=raw))
    if data.table is not None and job.form is not None:
        job = replace(job, form=replace(format_of(data.table, data.table.x_train[:1], 0), outputs=None, task=job.task))
    at = None if resume is None else Path(resume)
    with progress_bar(progress) as bar:
        heard = watching(job, bar, heard)
        return execute(job, own_model=True, at=at, watch=heard, owner=owner, observe=observe, finish=finish)


def resume_spec(path: Path) -> Job:
    """Return the job of a stored run; `execute(job, ..., at=path)` continues it where it stopped."""
    if head.job_file(path).get("own"):
        raise RunError(f"{path} was started from Python with its own model; use sordino.train(..., resume='{path}').")
    return build.from_spec(stored_spec(path))


def may_finish(run: str | Path | None) -> None:
    """Raise RunError unless this is the folder of a run that was begun and has not ended."""
    if run is None:
        raise RunError("finish = True stops an interrupted run: name its folder, by resume.")
    head.job_file(Path(run))
    if (RunFolder(Path(run)).public / "result.json").is_file():
        raise RunError(f"{run} is finished already; there is nothing to stop.")


def stored_spec(path: Path) -> spec.Spec:
    """Return the spec that is stored in a run folder."""
    return spec.from_dict(head.stored_keys(path))


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
        audit=False,
        name=name,
        budgets=None,
    )
    plan = replace(job.plan, noise_multiplier=None)
    if job.statistics:
        job = build.again(replace(job, model=replace(job.model, module=statistics.reset(job.model.module))))
        job = replace(job, rows=None if job.rows is None else job.rows.exact())
    plain = replace(job, spec=wanted, method=wanted.method_object(), plan=plan, viewer="server", once=(), apart=())
    return replace(plain, budgets=None, caps=None, planted=None)


def execute(
    job: Job,
    own_model: bool,
    at: Path | None = None,
    watch: Watch | None = None,
    began: Callable[[Path], None] | None = None,
    owner: Tell | None = None,
    observe: Observe | None = None,
    finish: bool = False,
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
        finish: make no further round, and keep the model of the last checkpoint of the interrupted run.
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
    head.refuse_flat(folder)
    folder.lock()
    book, ledger = None, None
    try:
        if at is None:
            head.write_head(folder, job, own_model, ordered, whose)
            _tell_owner(folder, owner, job.owner.notes)
        else:
            head.check_same(folder, job, ordered)
        faults.point("planning")
        book = opened(folder)
        ledger = account(book, folder, job, whose)
        _tell_owner(folder, owner, (*ledger.owner_notes, *old_ledger(Path(job.spec.out) / "ledger.sqlite", book)))
        faults.point("planned")
        if began is not None:
            began(folder.path)
        checkpoint = folder.load_state() if at is not None else None
        _check_resumable(job, folder, ledger, at, checkpoint, finish)
        if job.statistics:  # paid for with the plan
            drawn = replace(job, rng=_statistics_stream(job, folder))
            statistics.release(drawn, None if checkpoint is None else checkpoint[0])
            job = build.again(job)
        state, done, warning = _begun(job, folder, ledger, checkpoint)
        notes = (*job.notes, warning) if warning else job.notes
        loop.complete(job, folder, ledger, state, done)
        end = callbacks.End(finish)
        for record in loop.run(job, folder, ledger, state, done, [] if observe is None else [observe], end):
            with loop.noting(folder):
                end.tell(watch, record)
        stopped = end.asked and len(folder.records()) < job.plan.rounds
        result = _finish(job, folder, ledger, notes, book.together(ledger.job), stopped)
        callbacks.finished(watch, summary(job, result))
        return result
    except (BudgetError, RunError) as error:
        unpaid = ledger is None if isinstance(error, BudgetError) else book is None
        if at is None and unpaid:  # nothing was charged, so the new folder is removed
            shutil.rmtree(folder.path, ignore_errors=True)
        raise
    finally:
        callbacks.finished(watch, None)
        _close(job, book, folder)


def _close(job: Job, book: Ledger | None, folder: RunFolder) -> None:
    job.federation.close()
    if book is not None:
        book.close()
    folder.close()


def _check_resumable(
    job: Job, folder: RunFolder, ledger: Account, at: Path | None, checkpoint: Checkpoint | None, finish: bool = False
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
    if finish:
        if checkpoint is None or not checkpoint[1]:
            raise RunError(
                f"{folder.path}: no round is on file, so there is no model to keep. `sordino resume {folder.path}` "
                "continues the run; what was planned stays charged in any case."
            )
        return
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


def _tell_owner(folder: RunFolder, owner: Tell | None, notes: Sequence[str]) -> None:
    """Tell the owner of the data what nobody else may know, and write it to private/notes.txt."""
    for text in notes:
        folder.tell_owner(text)
        (owner or to_owner)(text)


def to_owner(text: str) -> None:
    """Print a message for the owner of the data to standard error, but only to a terminal: a file may be passed on."""
    if sys.stderr.isatty():
        print(f"sordino: {text}", file=sys.stderr, flush=True)


def _finish(
    job: Job,
    folder: RunFolder,
    ledger: Account,
    notes: tuple[str, ...],
    together: str | None,
    stopped: bool = False,
) -> Result:
    """Write the final files of a run and return its result.

    If it was stopped before its plan ended, the guarantee is that of the whole plan: when a run ends is an answer too,
    and it was not charged for fewer rounds."""
    history, checkpoint = folder.records(), folder.load_state()
    state = loop.begin(job) if checkpoint is None else checkpoint[0].restored(loop.begin(job), job.device)
    if not bool(torch.isfinite(state.model).all()):
        notes += ("the model's weights are not finite: training has diverged. Lower learning_rate",)
    notes += tuple(verdict.remarks(job, history))
    module = unwrapped(loop.trained(job, state.model.to(job.device)))
    rounds, most = (job.plan.rounds, job.plan.participations) if stopped else (ledger.charged, ledger.most)
    if stopped:
        notes += (callbacks.stopped_note(len(history), job.plan.rounds),)
    guarantees = {v: job.guarantee(v, rounds, job.planned(rounds)) for v in job.viewers}
    drawn = {v: job.guarantee(v, rounds, most) for v in job.viewers}
    faults.point("finishing")
    folder.publish("model.safetensors", pack_model(module))
    last = (history[-1].metrics if history else None) or {}
    figures = last | loop.evaluate_own(job, state)
    owners = OwnersPart(folder.owner_records(), drawn, folder.owner_notes())
    outcome = (guarantees[job.viewer], guarantees, history, folder.path, notes, figures, owners, together)
    result = Result(module.cpu(), *outcome, claim=job.method.claim(job.plan))
    folder.note_ledger(ledger.head())
    folder.write_json("result.json", {"guarantees": {v: g.to_json() for v, g in drawn.items()}})
    folder.write_json(PARTICIPATION, participation(ledger, job.plan.population))
    folder.publish_json(ACCOUNTING, accounting_facts(job, rounds, guarantees), compact=True)
    folder.publish_json("result.json", summary(job, result))
    chosen = (("methods", job.spec.method), ("algorithms", job.spec.algorithm), ("models", job.spec.model))
    write_seal(folder, folder.read_json("ledger.json"), plugin_hashes(chosen))
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
        "confusion": result.confusion,
        "notes": list(result.notes),
        "together": result.together,
    }
